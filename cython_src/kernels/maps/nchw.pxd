"""Addresses within feature maps, shared by the kernels.

A map is a buffer (groups, channels, rows, pitch, lanes). The interior pixel (y, x) lies at row y + halo and
column x + halo. In the layout "nchw16" a group is sixteen images, one a lane; in the layout "nchw" (one lane) it is
one image, and the right halo of a row is the left halo of the next.
"""

from libc.string cimport memset

from maps_c cimport *


cdef inline Py_ssize_t plane_size(const Map *m) noexcept nogil:
    return <Py_ssize_t> m.rows * m.pitch * m.lanes


cdef inline Py_ssize_t offset(const Map *m, Py_ssize_t group, Py_ssize_t channel,
                              Py_ssize_t y) noexcept nogil:
    """Of the first interior pixel of row y (row -halo is the first of the halo)."""
    return ((group * m.channels + channel) * m.rows + y + m.halo) * m.pitch * m.lanes + m.halo * m.lanes


cdef inline void clear_halo(const Map *m, float *p, Py_ssize_t group, Py_ssize_t channel, int y0,
                            int y1) noexcept nogil:
    """Zero everything but the interior in the physical rows that belong to interior rows [y0, y1)."""
    cdef Py_ssize_t row_size = <Py_ssize_t> m.pitch * m.lanes
    cdef float *plane = p + (group * m.channels + channel) * plane_size(m)
    cdef int y, right = m.pitch - m.halo - m.width
    if m.halo == 0:
        return
    if y0 == 0:
        memset(plane, 0, m.halo * row_size * sizeof(float))
    for y in range(y0 + m.halo, y1 + m.halo):
        memset(plane + y * row_size, 0, m.halo * m.lanes * sizeof(float))
        memset(plane + y * row_size + (m.halo + m.width) * m.lanes, 0, right * m.lanes * sizeof(float))
    if y1 == m.height:
        y = m.height + m.halo
        memset(plane + y * row_size, 0, (m.rows - y) * row_size * sizeof(float))
