"""Addresses within maps that hold the channels in the vector lanes; nhwc.py beside it describes the geometry."""

from libc.string cimport memcpy, memset

from maps_c cimport *


cdef inline NhwcMap with_halo(const NhwcMap *m, int halo) noexcept nogil:
    """A map that differs from another in its halo alone."""
    cdef NhwcMap other = m[0]
    other.halo = halo
    return other


cdef inline Py_ssize_t row_size(const NhwcMap *m) noexcept nogil:
    """Floats from one row to the next."""
    return <Py_ssize_t> (m.width + 2 * m.halo) * m.pitch


cdef inline Py_ssize_t image_size(const NhwcMap *m) noexcept nogil:
    """Floats from one image to the next."""
    return (m.height + 2 * m.halo) * row_size(m)


cdef inline Py_ssize_t pixel(const NhwcMap *m, Py_ssize_t n, Py_ssize_t y, Py_ssize_t x) noexcept nogil:
    """Offset of channel 0 of interior pixel (y, x) of image n; row -halo is the first of the halo."""
    return n * image_size(m) + (y + m.halo) * row_size(m) + (x + m.halo) * m.pitch


cdef struct Tile:
    const float *at
    Py_ssize_t row, step


cdef inline Tile read_tile(const NhwcMap *m, const float *x, int n, int y, int x_, int rows, int columns, int side,
                           int channels, float *patch) noexcept nogil:
    """Where a tile's side x side inputs lie: in the map, or, if only the first of them are to be read, in a copy
    with zeros beyond. (y, x_) may lie in the halo."""
    cdef Tile result
    cdef const float *p = x + pixel(m, n, y, x_)
    cdef int i, j
    result.at, result.row, result.step = p, row_size(m), m.pitch
    if rows >= side and columns >= side:
        return result
    for i in range(side):
        for j in range(side):
            if i < rows and j < columns:
                memcpy(patch + (i * side + j) * channels, p + i * row_size(m) + <Py_ssize_t> j * m.pitch,
                       channels * sizeof(float))
            else:
                memset(patch + (i * side + j) * channels, 0, channels * sizeof(float))
    result.at, result.row, result.step = patch, side * channels, channels
    return result


cdef inline int channel_end(const NhwcMap *m, int c1) noexcept nogil:
    """One past the last physical channel of a block that ends at channel c1: padding goes with the last."""
    cdef int end = (c1 + LANES - 1) // LANES * LANES
    return end if end < m.pitch else m.pitch


cdef inline void clear_pixels(const NhwcMap *m, float *p, int count, int c0, int c1) noexcept nogil:
    """Zero channels [c0, c1) of `count` pixels in a row, from p, the first one's channel 0."""
    cdef int x
    if c0 == 0 and c1 == m.pitch:
        memset(p, 0, <size_t> count * m.pitch * sizeof(float))
        return
    for x in range(count):
        memset(p + <Py_ssize_t> x * m.pitch + c0, 0, (c1 - c0) * sizeof(float))


cdef inline void clear_channel_halo(const NhwcMap *m, float *p, const Box *b) noexcept nogil:
    """Zero the halo that belongs to a block's rows, in its images and physical channels."""
    cdef int n, y, columns = m.width + 2 * m.halo, end = channel_end(m, b.c1)
    for n in range(b.n0, b.n1 if m.halo else b.n0):
        if b.y0 == 0:
            for y in range(-m.halo, 0):
                clear_pixels(m, p + pixel(m, n, y, -m.halo), columns, b.c0, end)
        for y in range(b.y0, b.y1):
            clear_pixels(m, p + pixel(m, n, y, -m.halo), m.halo, b.c0, end)
            clear_pixels(m, p + pixel(m, n, y, m.width), m.halo, b.c0, end)
        if b.y1 == m.height:
            for y in range(m.height, m.height + m.halo):
                clear_pixels(m, p + pixel(m, n, y, -m.halo), columns, b.c0, end)


cdef inline void set_plane(NhwcTask *task, int number, float *p, const NhwcMap *m, const Box *b) noexcept nogil:
    """Plane of a block's images and rows, from its first channel; NULL stays NULL."""
    task.plane[number].p = p + pixel(m, b.n0, b.y0, 0) + b.c0 if p != NULL else NULL
    task.plane[number].image = image_size(m)
    task.plane[number].row = row_size(m)


cdef inline void set_vectors(NhwcTask *task, int number, int c0, const float *first,
                             const float *second) noexcept nogil:
    """Two vectors, from a block's first channel; NULL stays NULL."""
    task.vector[number] = first + c0 if first != NULL else NULL
    task.vector[number + 1] = second + c0 if second != NULL else NULL


cdef inline NhwcTask block_task(const NhwcMap *m, const Box *b) noexcept nogil:
    """A task without planes, of a block's size, padding channels included."""
    cdef NhwcTask task
    memset(&task, 0, sizeof(NhwcTask))
    task.pitch = m.pitch
    task.images = b.n1 - b.n0
    task.rows = b.y1 - b.y0
    task.pixels = m.width
    task.channels = channel_end(m, b.c1) - b.c0
    return task


cdef inline WindowTask windows_task(float *source, const NhwcMap *source_map, float *target, const NhwcMap *target_map,
                                    bint backward, const Window *window, const Box *b) noexcept nogil:
    """Windows between two maps, for a block of the target: the large side backward, the small one forward."""
    cdef const NhwcMap *large = target_map if backward else source_map
    cdef const NhwcMap *small = source_map if backward else target_map
    cdef WindowTask task
    memset(&task, 0, sizeof(WindowTask))
    task.input.p = source + pixel(source_map, b.n0, 0, 0) + b.c0
    task.input.image, task.input.row = image_size(source_map), row_size(source_map)
    task.out.p = target + pixel(target_map, b.n0, 0, 0) + b.c0
    task.out.image, task.out.row = image_size(target_map), row_size(target_map)
    task.pitch = target_map.pitch
    task.images = b.n1 - b.n0
    task.y0, task.y1 = b.y0, b.y1
    task.channels = channel_end(target_map, b.c1) - b.c0
    task.large_height, task.large_width, task.large_halo = large.height, large.width, large.halo
    task.small_height, task.small_width = small.height, small.width
    task.kernel, task.stride, task.padding = window.kernel, window.stride, window.padding
    return task
