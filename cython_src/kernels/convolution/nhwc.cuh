/* Attributes of convolutions of the layout "nhwc" and panels of packed weights. */
#ifndef FORKTASK_CONVOLUTION_NHWC_CUH
#define FORKTASK_CONVOLUTION_NHWC_CUH

#include "cython_src/kernels/linear/tiles.cuh"
#include "cython_src/kernels/maps/nhwc.cuh"

/* How many channels a panel of sixteen written channels sums over, the same for all panels, and the first of them; as
 * algorithms.panel_inputs(). */
__device__ inline int panel_depth(int written, int read, int groups)
{
    const int part = written / groups;
    int count = read;
    if (groups > 1) {
        count = 0;
        for (int c = 0; c < written; c += LANES)
            count = max(count, (min(written, c + LANES) - 1) / part + 1 - c / part);
        count *= read / groups;
    }
    return max(4, count);
}

__device__ inline int panel_start(int panel, int depth, int written, int read, int groups)
{
    return max(0, min(LANES * panel / (written / groups) * (read / groups), read - depth));
}

#endif
