"""Geometry of a convolution in the layout "nhwc", from its kernel's attributes: maps, panels of weights, tiles; and
sizes of its scratch memory, and of what lies in it, in floats.

Shared by the kernels that pack weights, convolve forward and backward, and sum weight gradients. They divide their
scratch memory by these functions, and `KernelSpec.scratch_bytes` asks them for the whole: there is no other copy of a
formula or of a limit. Parts begin at cache lines.
"""

from libc.string cimport memcpy, memset

from convolution_c cimport *

from ..maps.nhwc cimport pixel, row_size

ctypedef NhwcConvolutionLoops Loops
ctypedef NhwcWinogradLoops WinogradLoops

cdef enum Algorithm:
    DIRECT
    WINOGRAD2
    WINOGRAD4


cdef struct Convolution:
    NhwcMap source, target
    int kernel, stride, padding, dilation, groups, algorithm, option
    int side  # outputs in a row of a Winograd tile, or 0
    bint transposed  # data gradient: `stride` is between outputs


cdef inline int winograd_side(int algorithm) noexcept nogil:
    """Return the outputs in a row of a Winograd tile; 0 for other algorithms."""
    return 2 if algorithm == WINOGRAD2 else 4 if algorithm == WINOGRAD4 else 0


cdef inline Convolution convolution_of(NhwcMap source, NhwcMap target, Geometry g, int option,
                                       bint transposed) noexcept nogil:
    cdef Convolution c = Convolution(source, target, g.kernel, g.stride, g.padding, g.dilation, g.groups, g.algorithm,
                                     option, winograd_side(g.algorithm), transposed)
    if transposed:  # of the equivalent convolution with reversed taps
        c.padding = (c.kernel - 1) * c.dilation - c.padding
    return c


cdef inline int divide(int a, int b) noexcept nogil:
    """Divide, rounding down; b is positive."""
    return a // b if a >= 0 else -((b - 1 - a) // b)


cdef inline int panel_inputs(int written, int read, int groups, int32_t *starts) noexcept nogil:
    """Find the first input channel of each panel, unless `starts` is NULL; returns how many channels follow."""
    cdef int p, first, last, count = 0, panels = (written + LANES - 1) // LANES
    cdef int part = written // groups, inputs = read // groups
    for p in range(panels):
        first = LANES * p // part
        last = (min(written, LANES * (p + 1)) - 1) // part
        count = max(count, (last + 1 - first) * inputs)
    count = max(4, count)
    for p in range(panels if starts != NULL else 0):
        # Not past the last channel: what lies there may be no channel at all.
        starts[p] = max(0, min(LANES * p // part * inputs, read - count))
    return count


cdef inline void read_tile(const NhwcMap *m, const float *x, int n, int y, int x_, int rows, int columns, int side,
                           int channels, float *patch, const float **at, Py_ssize_t *row,
                           Py_ssize_t *step) noexcept nogil:
    """Where a tile's side x side inputs lie: in the map, or, if only the first of them are to be read, in a copy
    with zeros beyond. (y, x_) may lie in the halo."""
    cdef const float *p = x + pixel(m, n, y, x_)
    cdef int i, j
    if rows >= side and columns >= side:
        at[0] = p
        row[0] = row_size(m)
        step[0] = m.pitch
        return
    for i in range(side):
        for j in range(side):
            if i < rows and j < columns:
                memcpy(patch + (i * side + j) * channels, p + i * row_size(m) + <Py_ssize_t> j * m.pitch,
                       channels * sizeof(float))
            else:
                memset(patch + (i * side + j) * channels, 0, channels * sizeof(float))
    at[0] = patch
    row[0] = side * channels
    step[0] = channels


# --- sizes -----------------------------------------------------------------------------------------------------------

cpdef enum:
    MAX_KERNEL = 15  # side of a kernel
    MAX_CHANNELS = 16384  # of a map

cdef enum:
    MAX_PANELS = MAX_CHANNELS // LANES
    MAX_TAPS = MAX_KERNEL * MAX_KERNEL
    MAX_GROUPS = 1024  # groups of pixels in a list, unless two rows have more
    ROW_FLOATS = 1 << 16  # copied rows of inputs
    SMALL_WEIGHTS = 1 << 16  # floats that may stay in the L2 cache beside a list of pixels
    WINOGRAD_PANELS = 2  # panels that are summed at a time
    WEIGHT_TILES = 32  # Winograd tiles of a strip of the weight gradient
    STRIP = 128  # pixels of a strip of the weight gradient, at least


cdef inline Py_ssize_t lines(Py_ssize_t floats) noexcept nogil:
    """Round up to whole cache lines."""
    return (floats + LANES - 1) // LANES * LANES


cdef inline Py_ssize_t group_floats(Py_ssize_t groups) noexcept nogil:
    """Return the size of a list of groups of pixels."""
    return lines(groups * <Py_ssize_t> (sizeof(PixelGroup) // sizeof(float)))


# --- packing of weights -----------------------------------------------------------------------------------------------


cdef inline Py_ssize_t pack_index(int taps) noexcept nogil:
    """Return the size of the places of LANES inputs' weights; a panel before its transform follows."""
    return lines(LANES * taps)


cdef inline Py_ssize_t pack_scratch(int taps, int k, int side) noexcept nogil:
    return pack_index(taps) + (<Py_ssize_t> taps * k * LANES if side else 0)


# --- forward pass and data gradient -----------------------------------------------------------------------------------

cdef enum Method:  # how outputs of one phase are computed
    FLAT  # straight from the map, whose pixels follow on
    COPIED  # by way of copies
    ROWS  # straight from the map, row by row


cdef inline Method method_of(const Convolution *c, int images, int rows, int columns, bint whole) noexcept nogil:
    """Return the method for a block's part of a phase; `whole`: the block has all rows of the map."""
    # Pixels side by side in both maps: one row for the whole block, or of an image.
    if (whole and c.kernel == 1 and c.stride == 1 and c.padding == 0 and c.source.halo == 0
            and c.target.halo == 0 and <Py_ssize_t> images * rows * columns >= 4):
        return FLAT
    return COPIED if columns < 4 else ROWS


cdef inline int num_taps(const Convolution *c, int phase, int step) noexcept nogil:
    """Return how many taps along one axis the outputs phase + step j meet."""
    cdef int tap, at, count = 0
    for tap in range(c.kernel):
        at = phase - c.padding + tap * c.dilation
        count += divide(at, step) * step == at
    return count


cdef inline int copied_channels(const Convolution *c, int k) noexcept nogil:
    """Return how many channels a tap copies: those of all groups, with padding where a product takes more."""
    return k if c.groups == 1 else max(4, c.source.channels)


cdef struct CopiedScratch:
    int chunk  # outputs at a time
    Py_ssize_t copied, sums, end  # behind a list of groups


cdef inline CopiedScratch copied_scratch(Py_ssize_t length, int width, Py_ssize_t total) noexcept nogil:
    """Divide the scratch memory of products by copies: `total` outputs of `length` inputs and `width` results."""
    cdef CopiedScratch s
    s.chunk = <int> min(192, max(12, ROW_FLOATS // max(1, length) // 12 * 12))
    s.chunk = <int> min(s.chunk, (total + 3) // 4 * 4)
    s.copied = group_floats(s.chunk // 4)
    s.sums = s.copied + lines(s.chunk * length)
    s.end = s.sums + <Py_ssize_t> s.chunk * width
    return s


cdef inline int list_groups(int pitch) noexcept nogil:
    """Return how many groups of pixels of `pitch` floats stay in the L2 cache while all panels pass."""
    return min(MAX_GROUPS, max(24, 32768 // pitch))


cdef inline int flat_groups(const Convolution *c, int k, int num_panels) noexcept nogil:
    """Return the groups of a list of pixels that follow on: whole tiles of three; one of the next list comes besides.

    Their results stay in the cache too where the weights leave them room.
    """
    cdef int beside = c.target.pitch if <Py_ssize_t> k * num_panels * LANES <= SMALL_WEIGHTS else 0
    return min(MAX_GROUPS - 3, list_groups(c.source.pitch + beside)) // 3 * 3


cdef inline int num_tiles(int side, int channels, Py_ssize_t total) noexcept nogil:
    """Return the tiles of a chunk, which fit the L2 cache with their sums: nearly equal chunks of whole groups."""
    cdef int most = (24 if channels <= 128 else 48) * (4 // side)
    cdef Py_ssize_t chunks = (total + most - 1) // most
    return <int> (((total + chunks - 1) // chunks + 3) // 4 * 4)


cdef struct WinogradScratch:
    int points, channels  # interpolation points; channels that are transformed, in whole vectors
    int chunk  # tiles at a time
    # Behind a list of groups: inputs of a tile at the edge, transformed inputs, sums; from one point to the next there
    # is an odd number of cache lines, because a power of two would put all points in one cache set.
    Py_ssize_t patch, inputs, inputs_point, sums, sums_point, end


cdef inline WinogradScratch winograd_scratch(const Convolution *c, int k, int images, int rows) noexcept nogil:
    cdef WinogradScratch s
    cdef Py_ssize_t tiles = (rows + c.side - 1) // c.side * ((c.target.width + c.side - 1) // c.side)
    s.points = (c.side + 2) * (c.side + 2)
    s.channels = <int> lines(k)
    s.chunk = num_tiles(c.side, s.channels, images * tiles)
    s.patch = group_floats(s.chunk // 4)
    s.inputs = s.patch + <Py_ssize_t> s.points * s.channels
    s.inputs_point = <Py_ssize_t> s.chunk * s.channels + LANES
    s.sums = s.inputs + s.points * s.inputs_point
    s.sums_point = <Py_ssize_t> s.chunk * WINOGRAD_PANELS * LANES + LANES
    s.end = s.sums + s.points * s.sums_point
    return s


cdef inline Py_ssize_t convolution_scratch(const Convolution *c, int k, int images, int rows,
                                           int channels) noexcept nogil:
    """Return the size for a block of the forward pass or of the data gradient: that of its largest phase."""
    cdef int step = c.stride if c.transposed else 1, num_panels = (channels + LANES - 1) // LANES
    cdef int ry, rx, columns, phase_rows, of_row, taps_y, taps_x
    cdef Py_ssize_t size, largest = 0, groups
    cdef Method method
    if c.side:
        return winograd_scratch(c, k, images, rows).end
    for ry in range(step):
        for rx in range(step):
            phase_rows = (rows + step - 1) // step  # at most
            columns = (c.target.width - rx + step - 1) // step
            if columns <= 0:
                continue
            taps_y = num_taps(c, ry, step)
            taps_x = num_taps(c, rx, step)
            method = method_of(c, images, phase_rows, columns, rows == c.target.height)
            if method == COPIED:
                size = copied_scratch(<Py_ssize_t> copied_channels(c, k) * taps_y * taps_x, num_panels * LANES,
                                      <Py_ssize_t> images * phase_rows * columns).end
            elif method == FLAT:
                groups = (<Py_ssize_t> images * phase_rows * columns + 3) // 4
                size = group_floats(min(groups, <Py_ssize_t> flat_groups(c, k * c.kernel, num_panels) + 3))
            else:
                of_row = (columns + 3) // 4
                groups = max(2 * of_row, list_groups(c.source.pitch))
                size = group_floats(min(groups, <Py_ssize_t> images * phase_rows * of_row))
            largest = max(largest, size)
    return largest


# --- weight gradient --------------------------------------------------------------------------------------------------


cdef inline int piece_outputs(const Convolution *c) noexcept nogil:
    """Return how many output channels are summed at a time."""
    return 128 if c.side else 256 if c.kernel == 1 else 64


cdef inline int piece_inputs(const Convolution *c) noexcept nogil:
    """Return how many input channels are summed at a time."""
    return 128 if c.side else 16 if c.kernel > 7 else 64 if c.kernel > 1 else 256


cdef inline Py_ssize_t weight_index(const Convolution *c, int inputs) noexcept nogil:
    """Return the size of the places of an output channel's sums; all else follows."""
    return lines(<Py_ssize_t> inputs * c.kernel * c.kernel)


cdef struct WeightScratch:
    int copied, inputs  # channels that are copied together; all of the piece
    int joined  # floats of a column where a row of taps is summed as one, else 0
    int calls, rows  # products, each of so many rows of sums
    int chunks  # of 32 output channels
    int images, height, columns  # a strip: images, rows of the gradient, columns of the input
    int step, move  # between inputs that are copied, and between those of neighbouring outputs
    Py_ssize_t sums, sums_size, gradient, gradient_size, input, end


cdef inline WeightScratch weight_scratch(const Convolution *c, int images, int outputs, int inputs) noexcept nogil:
    """Divide the scratch memory of the direct algorithm; `source` is the gradient's map, `target` the input's."""
    cdef WeightScratch s
    cdef int k = c.kernel, pixels = c.source.height * c.source.width, reach = (k - 1) * c.dilation + 1
    s.step = c.stride if k == 1 else 1  # a single tap reads every step-th pixel only
    s.move = 1 if k == 1 else c.stride
    s.copied = min(LANES, c.target.pitch)
    s.inputs = s.copied if c.target.pitch < LANES else <int> lines(inputs)
    s.joined = s.copied if c.target.pitch < LANES and c.dilation == 1 else 0
    s.calls = k if s.joined else k * k
    s.rows = s.copied * k if s.joined else s.inputs
    s.chunks = (outputs + 31) // 32
    s.images = min(images, STRIP // pixels) if pixels < STRIP else 1
    s.height = c.source.height if pixels <= STRIP else (STRIP + c.source.width - 1) // c.source.width
    s.columns = (c.source.width - 1) * s.move + reach
    s.sums = weight_index(c, inputs)
    s.sums_size = <Py_ssize_t> s.calls * s.rows * 32
    s.gradient = s.sums + s.chunks * s.sums_size
    s.gradient_size = <Py_ssize_t> s.images * s.height * c.source.width * 32
    s.input = s.gradient + s.chunks * s.gradient_size
    s.end = s.input + <Py_ssize_t> s.images * ((s.height - 1) * s.move + reach) * s.columns * s.copied
    return s


cdef struct WinogradWeightScratch:
    int inputs, outputs  # channels of the piece, in whole vectors
    int points, chunk  # interpolation points; tiles at a time
    # Transformed inputs and gradients have odd numbers of cache lines between points. The weights take their place.
    Py_ssize_t sums, sums_point, patch, input, input_point, gradient, gradient_point, end


cdef inline WinogradWeightScratch winograd_weight_scratch(const Convolution *c, int images, int outputs,
                                                          int inputs) noexcept nogil:
    cdef WinogradWeightScratch s
    cdef Py_ssize_t tiles = (c.source.height + c.side - 1) // c.side * ((c.source.width + c.side - 1) // c.side)
    s.inputs = <int> lines(inputs)
    s.outputs = <int> lines(outputs)
    s.points = (c.side + 2) * (c.side + 2)
    s.chunk = <int> min(WEIGHT_TILES, images * tiles)
    s.sums = weight_index(c, inputs)
    s.sums_point = <Py_ssize_t> s.inputs * s.outputs + LANES
    s.patch = s.sums + s.points * s.sums_point
    s.input = s.patch + <Py_ssize_t> s.points * max(s.inputs, s.outputs)
    s.input_point = <Py_ssize_t> s.chunk * s.inputs + LANES
    s.gradient = s.input + s.points * s.input_point
    s.gradient_point = <Py_ssize_t> s.chunk * s.outputs + LANES
    s.end = max(s.gradient + s.points * s.gradient_point,
                s.input + <Py_ssize_t> c.kernel * c.kernel * s.inputs * min(32, s.outputs))
    return s


cdef inline Py_ssize_t weight_gradient_scratch(const Convolution *c, int images, int outputs,
                                               int inputs) noexcept nogil:
    """Return the size for a block of the weight gradient: that of its largest piece."""
    outputs = min(outputs, piece_outputs(c))
    inputs = min(inputs, piece_inputs(c))
    if c.side:
        return winograd_weight_scratch(c, images, outputs, inputs).end
    return weight_scratch(c, images, outputs, inputs).end
