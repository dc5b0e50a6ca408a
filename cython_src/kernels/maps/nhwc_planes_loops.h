/* Loops over the planes of a NhwcTask, in pieces that stay in a cache; shared by the inner loops of several concepts. */
#ifndef FORKTASK_NHWC_PLANES_LOOPS_H
#define FORKTASK_NHWC_PLANES_LOOPS_H

#include "nhwc_planes.h"
#include "cython_src/kernels/simd/vectors.h"

/* Registers of channels that an inner loop keeps constants and sums of: a vector's, or those of several vectors. */
#define WIDE BY_ISA(REGISTERS, REGISTERS, REGISTERS, 4)
/* Floats of a map between two visits of the per-channel constants: a few maps' pieces stay in the first-level cache,
 * and sums are taken in two steps, which keeps their rounding small. */
#define CHUNK 2048

typedef void Body(const NhwcTask *t, float *const *p, int pixels, float *sums, ptrdiff_t stride, const int a,
                  const int b);

/* Call `body` for pieces of all rows. Rows that follow one another in memory are one row. */
INLINE void each_chunk(const NhwcTask *t, const int planes, Body *body, float *sums, ptrdiff_t stride, const int a,
                       const int b)
{
    int rows = t->rows, pixels = t->pixels, whole = 1;
    UNROLL for (int i = 0; i < planes; i++) whole &= t->plane[i].p == NULL || t->plane[i].row == pixels * t->pitch;
    if (whole)
        pixels *= rows, rows = 1;
    int step = CHUNK / t->pitch < 4 ? 4 : CHUNK / t->pitch;
    for (int n = 0; n < t->images; n++)
        for (int y = 0; y < rows; y++)
            for (int x = 0; x < pixels; x += step) {
                float *p[MAX_PLANES];
                UNROLL for (int i = 0; i < planes; i++) p[i] =
                    t->plane[i].p ? t->plane[i].p + n * t->plane[i].image + y * t->plane[i].row + x * t->pitch : NULL;
                body(t, p, pixels - x < step ? pixels - x : step, sums, stride, a, b);
            }
}

/* Floats ahead at which lines are asked for, or 0: maps that do not fit the second-level cache come from further away than
 * the processor looks ahead by itself; for others it would only cost time. */
#define L2_BYTES      1048576
#define AHEAD         4096
#define ASK(P, WRITE) UNROLL for (int v = 0; v < N; v++) __builtin_prefetch((P) + v * VL + ahead, WRITE, 2)

INLINE ptrdiff_t ahead_of(const NhwcTask *t, int planes)
{
    return t->streamed || sizeof(float) * planes * t->pitch * t->images * t->rows * t->pixels > L2_BYTES ? AHEAD : 0;
}

/* Call CALL(N) with c the first channel, for N registers of channels at a time: several chains of operations side by
 * side. */
#define EACH_PART(CALL)                                      \
    {                                                        \
        int c = 0;                                           \
        for (; c + WIDE * VL <= t->channels; c += WIDE * VL) \
            CALL(WIDE);                                      \
        if (WIDE != REGISTERS)                               \
            for (; c < t->channels; c += REGISTERS * VL)     \
                CALL(REGISTERS);                             \
    }

/* Call F(A, B) with constants for activations A, none, ReLU or ReLU6, and modes B from 0 to 2. */
#define BY_ACTIVATION(F, MODE)            \
    switch (3 * (MODE) + t->activation) { \
    case 0:                               \
        F(0, 0);                          \
        break;                            \
    case 1:                               \
        F(1, 0);                          \
        break;                            \
    case 2:                               \
        F(2, 0);                          \
        break;                            \
    case 3:                               \
        F(0, 1);                          \
        break;                            \
    case 4:                               \
        F(1, 1);                          \
        break;                            \
    case 5:                               \
        F(2, 1);                          \
        break;                            \
    case 6:                               \
        F(0, 2);                          \
        break;                            \
    case 7:                               \
        F(1, 2);                          \
        break;                            \
    case 8:                               \
        F(2, 2);                          \
        break;                            \
    }

#endif
