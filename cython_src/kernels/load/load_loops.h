/* Inner loops of loading images. */
#ifndef FORKTASK_LOAD_LOOPS_H
#define FORKTASK_LOAD_LOOPS_H

#include <stddef.h>
#include <stdint.h>

enum { TAPS_STEP = 4 }; /* taps come in multiples of it, filled up with weights of zero */

/* How the positions of one axis of an image become those of another size: position i is the sum over taps k of
   weights[i * taps + k] times the old position first[i] + k. */
typedef struct ScaledAxis {
    const int32_t *first;
    const float *weights;
    int count, taps;
} ScaledAxis;

typedef struct LoadLoops {
    /* out[x * 16 + i] = rows[i][x]: sixteen rows of pixels become one row in the layout "nchw16". */
    void (*interleave_row)(const float *const *rows, int width, float *out);
    /* out[c][y][x] from pixels[y][x][c] of another size, three channels of bytes. Weights down are multiples of 2^-12, those
       across of 2^-11, and rows between are rounded to sixteenths: all sums are exact, so each instruction set gives the
       same pixels. turned: scratch memory, LANES * (3 * (width + TAPS_STEP) + LANES) floats. */
    void (*scale)(const uint8_t *pixels, int height, int width, const ScaledAxis *down, const ScaledAxis *across,
                  float *turned, uint8_t *out);
} LoadLoops;

#endif
