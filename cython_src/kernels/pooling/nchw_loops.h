/* Inner loops of pooling, with images in the vector lanes or neighbouring pixels of one image. */
#ifndef FORKTASK_NCHW_POOLING_LOOPS_H
#define FORKTASK_NCHW_POOLING_LOOPS_H

#include <stdint.h>

typedef struct NchwPoolingLoops {
    /* Maximum of 2 x 2 windows of two rows: `width` pooled pixels of `lanes` floats. index: 0 ... 3
     * (row-major, the first of equals). With `relu`: of max(x, 0), and index 4 where nothing is positive. */
    void (*pool_row)(const float *row0, const float *row1, int width, int lanes, int relu, float *out, uint8_t *index);
    /* Two rows of gradient from one pooled row: the value where the index points, zero elsewhere. */
    void (*unpool_row)(const float *in, const uint8_t *index, int width, int lanes, float *row0, float *row1);
} NchwPoolingLoops;

#endif
