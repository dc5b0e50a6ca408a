/* Feature maps with the channels of a pixel side by side (kernels/maps/nhwc.py), and loops over them. */
#ifndef FORKTASK_NHWC_CUH
#define FORKTASK_NHWC_CUH

#include "cython_src/kernels/interface/block_kernel.cuh"
#include "cython_src/kernels/simd/float4.cuh"
#include "cython_src/kernels/simd/lanes.h"

/* A map that differs in its halo only. */
__device__ inline NhwcMap with_halo(NhwcMap m, int halo)
{
    m.halo = halo;
    return m;
}

__device__ inline long long row_size(const NhwcMap &m)
{
    return (long long)(m.width + 2 * m.halo) * m.pitch;
}

/* Offset of channel 0 of the interior pixel (y, x); either may lie in the halo. */
__device__ inline long long pixel(const NhwcMap &m, int n, int y, int x)
{
    return (((long long)n * (m.height + 2 * m.halo) + y + m.halo) * (m.width + 2 * m.halo) + x + m.halo) * m.pitch;
}

/* One past the last physical channel of a block that ends at channel c1: padding goes with the last. */
__device__ inline int channel_end(const NhwcMap &m, int c1)
{
    return min(divide_up(c1, LANES) * LANES, m.pitch);
}

/* Zero the halo that belongs to interior rows [y0, y1), physical channels [c0, end); all threads of the grid row
 * divide it. */
__device__ inline void clear_channel_halo(const NhwcMap &m, float *p, int n0, int n1, int y0, int y1, int c0, int end)
{
    if (m.halo == 0)
        return;
    const int columns = m.width + 2 * m.halo, above = y0 == 0 ? m.halo * columns : 0, beside = (y1 - y0) * 2 * m.halo;
    const int below = y1 == m.height ? m.halo * columns : 0, channels = end - c0;
    const unsigned plane = above + beside + below, total = (n1 - n0) * plane * channels;
    for (unsigned i = thread_of_row(); i < total; i += threads_of_row()) {
        const int c = c0 + (int)(i % channels), n = n0 + (int)(i / channels / plane);
        int at = (int)(i / channels % plane), y, x;
        if (at < above) {
            y = at / columns - m.halo;
            x = at % columns - m.halo;
        } else if ((at -= above) < beside) {
            y = y0 + at / (2 * m.halo);
            x = at % (2 * m.halo);
            x = x < m.halo ? x - m.halo : x - m.halo + m.width;
        } else {
            at -= beside;
            y = m.height + at / columns;
            x = at % columns - m.halo;
        }
        p[pixel(m, n, y, x) + c] = 0;
    }
}

/* Call body(n, y, x, c) for every `step` channels from c on of the interior of a block, [n0, n1) x [y0, y1) x [c0, end).
 * The CUDA blocks of the grid row divide strips of NORM_CHANNELS channels and pixels; a thread keeps its channels, so that
 * what belongs to them is loaded once, and its neighbours have the next ones. */
template <typename Bounds, typename Body>
__device__ inline void for_channels(const NhwcMap &m, const Bounds &b, int c0, int end, int step, Body body)
{
    const int strips = divide_up(end - c0, NORM_CHANNELS), groups = max(1, (int)gridDim.x / strips);
    const unsigned wide = min(NORM_CHANNELS, end - c0) / step, together = THREADS / wide;
    const unsigned rows = b.y1 - b.y0, width = m.width;
    const unsigned pixels = threadIdx.x < together * wide ? (b.n1 - b.n0) * rows * width : 0;
    for (int unit = (int)blockIdx.x; unit < strips * groups; unit += (int)gridDim.x) {
        const int c = c0 + unit % strips * NORM_CHANNELS + (int)(threadIdx.x % wide) * step;
        unsigned at = c < end ? unit / strips * together + threadIdx.x / wide : pixels;
        for (; at < pixels; at += groups * together)
            body(b.n0 + (int)(at / width / rows), b.y0 + (int)(at / width % rows), (int)(at % width), c);
    }
}

/* Pixels that a thread loads together, so that memory is waited for once. */
#define LOADS 8

/* For the pixels of images [n0, n1) and rows [y0, y1) of a map that are those of the thread's strip, of THREADS / CHANNELS
 * strips, in order: add(load(n, y, x)). The loads of PIXELS of them come before what is added. */
template <int CHANNELS = STRIP_CHANNELS, int PIXELS = LOADS, typename Load, typename Add>
__device__ inline void for_strip(const NhwcMap &m, int n0, int n1, int y0, int y1, Load load, Add add)
{
    const unsigned rows = y1 - y0, width = m.width;
    each_ahead<PIXELS>(
        threadIdx.x / CHANNELS, (n1 - n0) * rows * width, THREADS / CHANNELS,
        [&](unsigned p) { return load(n0 + (int)(p / width / rows), y0 + (int)(p / width % rows), (int)(p % width)); },
        [&](int, const decltype(load(0, 0, 0)) &loaded) { add(loaded); });
}

#endif
