"""Addresses within maps that hold the channels in the vector lanes; channels.py beside it describes the geometry."""

from libc.stdint cimport int64_t
from libc.string cimport memset

from ..simd.lanes cimport LANES


cdef struct ChannelsMap:
    int channels, height, width, halo, pitch


cdef inline void read_channels_map(ChannelsMap *m, const int64_t *integers) noexcept nogil:
    """From a kernel's integer attributes, in the order of channels_maps.channels_attributes()."""
    m.channels = <int> integers[0]
    m.height = <int> integers[1]
    m.width = <int> integers[2]
    m.halo = <int> integers[3]
    m.pitch = <int> integers[4]


cdef inline ChannelsMap with_halo(const ChannelsMap *m, int halo) noexcept nogil:
    """A map that differs from another in its halo alone."""
    cdef ChannelsMap other = m[0]
    other.halo = halo
    return other


cdef inline Py_ssize_t row_size(const ChannelsMap *m) noexcept nogil:
    """Floats from one row to the next."""
    return <Py_ssize_t> (m.width + 2 * m.halo) * m.pitch


cdef inline Py_ssize_t image_size(const ChannelsMap *m) noexcept nogil:
    """Floats from one image to the next."""
    return (m.height + 2 * m.halo) * row_size(m)


cdef inline Py_ssize_t pixel(const ChannelsMap *m, Py_ssize_t n, Py_ssize_t y, Py_ssize_t x) noexcept nogil:
    """Offset of channel 0 of interior pixel (y, x) of image n; row -halo is the first of the halo."""
    return n * image_size(m) + (y + m.halo) * row_size(m) + (x + m.halo) * m.pitch


cdef inline int channel_end(const ChannelsMap *m, int c1) noexcept nogil:
    """One past the last physical channel of a block that ends at channel c1: padding goes with the last."""
    cdef int end = (c1 + LANES - 1) // LANES * LANES
    return end if end < m.pitch else m.pitch


cdef inline void clear_pixels(const ChannelsMap *m, float *p, int count, int c0, int c1) noexcept nogil:
    """Zero channels [c0, c1) of `count` pixels in a row, from p, the first one's channel 0."""
    cdef int x
    if c0 == 0 and c1 == m.pitch:
        memset(p, 0, <size_t> count * m.pitch * sizeof(float))
        return
    for x in range(count):
        memset(p + <Py_ssize_t> x * m.pitch + c0, 0, (c1 - c0) * sizeof(float))


cdef inline void clear_channel_halo(const ChannelsMap *m, float *p, Py_ssize_t n, int y0, int y1, int c0,
                                    int c1) noexcept nogil:
    """Zero the halo that belongs to interior rows [y0, y1), physical channels [c0, c1), of image n."""
    cdef int y, columns = m.width + 2 * m.halo
    if m.halo == 0:
        return
    if y0 == 0:
        for y in range(-m.halo, 0):
            clear_pixels(m, p + pixel(m, n, y, -m.halo), columns, c0, c1)
    for y in range(y0, y1):
        clear_pixels(m, p + pixel(m, n, y, -m.halo), m.halo, c0, c1)
        clear_pixels(m, p + pixel(m, n, y, m.width), m.halo, c0, c1)
    if y1 == m.height:
        for y in range(m.height, m.height + m.halo):
            clear_pixels(m, p + pixel(m, n, y, -m.halo), columns, c0, c1)
