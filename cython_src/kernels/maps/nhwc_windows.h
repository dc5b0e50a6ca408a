/* Task of pooling and depthwise convolution: windows over maps with the channels in the vector lanes. */
#ifndef FORKTASK_NHWC_WINDOWS_H
#define FORKTASK_NHWC_WINDOWS_H

#include <stddef.h>
#include <stdint.h>

#include "nhwc_planes.h"

/* Lines of a map to prefetch while a depthwise convolution computes others, so that they come meanwhile: with pixel (y, x),
 * from p + step (y row + x pitch) on. */
typedef struct Ahead {
    const float *p;
    ptrdiff_t image, row;
    int step, write;
} Ahead;

#define MAX_AHEAD 3

/* Pooling or depthwise convolution of some images, rows [y0, y1) of `out`, all columns. Planes stand at the first
 * channel of interior pixel (0, 0) of the first image. `small` is the side that windows are counted on, `large` the
 * side they lie in: window (y, x) begins at (stride y - padding, stride x - padding). Forward, in is large; backward
 * passes gather, so in is small. Rows and columns up to large_halo outside may be read: they are zero. */
typedef struct WindowTask {
    ChannelPlane in, out;
    const float *weight, *bias; /* depthwise: (channels / 16, kernel^2, 16); bias may be NULL */
    const float *scale, *shift; /* depthwise, forward: reads activation(scale in + shift); or NULL */
    uint8_t *index;             /* maximum: of the small side, without halo */
    float *statistics;          /* depthwise, forward: as of statistics(); or NULL */
    Ahead ahead[MAX_AHEAD];
    ptrdiff_t pitch, statistics_stride;
    int num_ahead, images, y0, y1, channels, large_height, large_width, large_halo, small_height, small_width;
    int kernel, stride, padding, accumulate, activation, in_activation;
} WindowTask;

#endif
