/* Feature maps with images side by side (kernels/maps/nchw.py). */
#ifndef FORKTASK_NCHW_CUH
#define FORKTASK_NCHW_CUH

#include "cython_src/kernels/interface/block_kernel.cuh"

/* Offset of lane 0 of the interior pixel (y, x); either may lie in the halo. */
__device__ inline long long pixel(const Map &m, int group, int channel, int y, int x)
{
    return ((((long long)group * m.channels + channel) * m.rows + y + m.halo) * m.pitch + x + m.halo) * m.lanes;
}

/* Zero everything but the interior in the physical rows that belong to interior rows [y0, y1); all threads of the
 * grid row divide it. */
__device__ inline void clear_halo(const Map &m, float *p, int g0, int g1, int c0, int c1, int y0, int y1)
{
    if (m.halo == 0)
        return;
    const int sides = m.pitch - m.width;
    const int above = y0 == 0 ? m.halo * m.pitch : 0;
    const int beside = (y1 - y0) * sides;
    const int below = y1 == m.height ? (m.rows - m.height - m.halo) * m.pitch : 0;
    const int plane = (above + beside + below) * m.lanes;
    const long long total = (long long)(g1 - g0) * (c1 - c0) * plane;
    for (long long i = thread_of_row(); i < total; i += threads_of_row()) {
        const int which = (int)(i / plane), lane = (int)(i % plane) % m.lanes;
        int at = (int)(i % plane) / m.lanes, y, x;
        if (at < above) {
            y = at / m.pitch - m.halo;
            x = at % m.pitch - m.halo;
        } else if ((at -= above) < beside) {
            y = y0 + at / sides;
            x = at % sides;
            x = x < m.halo ? x - m.halo : x - m.halo + m.width;
        } else {
            at -= beside;
            y = m.height + at / m.pitch;
            x = at % m.pitch - m.halo;
        }
        p[pixel(m, g0 + which / (c1 - c0), c0 + which % (c1 - c0), y, x) + lane] = 0;
    }
}

/* One element of a map. */
struct Place {
    int group, channel, y, x, lane;
};

/* Call body(place) for the elements of a block of groups, channels and rows of `width` pixels, every `step`-th from
 * `first` on: by default all threads of the grid row divide them. */
template <typename Bounds, typename Body>
__device__ inline void for_places(const Bounds &b, int width, int lanes, Body body, int first = thread_of_row(),
                                  int step = threads_of_row())
{
    const int channels = b.c1 - b.c0, rows = b.y1 - b.y0;
    const long long items = (long long)(b.g1 - b.g0) * channels * rows * width * lanes;
    for (long long i = first; i < items; i += step) {
        const long long at = i / lanes, row = at / width, plane = row / rows;
        body(Place{b.g0 + (int)(plane / channels), b.c0 + (int)(plane % channels), b.y0 + (int)(row % rows),
                   (int)(at % width), (int)(i % lanes)});
    }
}

#endif
