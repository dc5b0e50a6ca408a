/* Inner loops of loading images, see kernels/load/load_loops.h. Compiled once per instruction set. */
#include "load_loops.h"

#include <string.h>

#include "cython_src/kernels/simd/vectors.h"

static void interleave_row(const float *const *rows, int width, float *out)
{
    int x = 0;
    for (; x + VL <= width; x += VL)
        for (int part = 0; part < LANES; part += VL) {
            Vec v[VL];
            UNROLL for (int i = 0; i < VL; i++) v[i] = load(rows[part + i] + x);
            transpose(v);
            UNROLL for (int i = 0; i < VL; i++) store(out + (x + i) * LANES + part, v[i]);
        }
    for (; x < width; x++)
        for (int i = 0; i < LANES; i++)
            out[x * LANES + i] = rows[i][x];
}

enum {
    SCALED_COLUMNS = 256
}; /* columns that are scaled down together, so that VL rows of them stay in the nearest cache */

/* The weighted sum of four rows of bytes, added to `row` unless it is the first. A plain loop: GCC turns bytes into
   floats one by one where they are vectors. */
INLINE void add_rows(const uint8_t *const *rows, const float *weights, int length, int first, float *restrict row)
{
    const uint8_t *restrict a = rows[0], *restrict b = rows[1], *restrict c = rows[2], *restrict d = rows[3];
    const float v = weights[0], w = weights[1], x = weights[2], y = weights[3];
    for (int i = 0; i < length; i++)
        row[i] = first ? a[i] * v + b[i] * w + c[i] * x + d[i] * y : row[i] + a[i] * v + b[i] * w + c[i] * x + d[i] * y;
}

/* Columns [begin, end) of row y of the new size, in sixteenths. */
INLINE void scale_down(const uint8_t *pixels, int height, int width, const ScaledAxis *down, int y, int begin, int end,
                       float *restrict row)
{
    for (int k = 0; k < down->taps; k += TAPS_STEP) {
        const uint8_t *rows[TAPS_STEP];
        for (int i = 0; i < TAPS_STEP; i++) /* a tap beyond the image has weight zero */
            rows[i] = pixels + (ptrdiff_t)smaller(down->first[y] + k + i, height - 1) * 3 * width + begin;
        const float *weights = down->weights + (ptrdiff_t)y * down->taps + k;
        if (k == 0)
            add_rows(rows, weights, end - begin, 1, row);
        else
            add_rows(rows, weights, end - begin, 0, row);
    }
    for (int i = 0; i < end - begin; i++)
        row[i] = (float)(int32_t)(row[i] * 16 + 0.5f);
}

/* Channel c of pixel x of the new size, of VL rows that `turned` has as columns. */
INLINE Vec scale_across(const float *turned, const ScaledAxis *across, int x, int c)
{
    const float *from = turned + (3 * (ptrdiff_t)across->first[x] + c) * VL;
    const float *weights = across->weights + (ptrdiff_t)x * across->taps;
    Vec sum = {0};
    for (int k = 0; k < across->taps; k += TAPS_STEP)
        UNROLL for (int i = 0; i < TAPS_STEP; i++) sum += load(from + 3 * VL * (k + i)) * weights[k + i];
    return sum;
}

/* VL rows at a time: each is scaled down by vectors along the row; then they are turned, and scaled across by vectors that
   hold a column of all rows, whatever the columns' distances are. */
static void scale_pixels(const uint8_t *pixels, int height, int width, const ScaledAxis *down, const ScaledAxis *across,
                         float *turned, uint8_t *out)
{
    const int last = across->count - 1;
    /* The columns that have a weight: part of the image may be wanted. */
    const int begin = 3 * across->first[0], end = 3 * smaller(across->first[last] + across->taps, width);
    memset(turned + 3 * (ptrdiff_t)width * VL, 0, (3 * TAPS_STEP + VL) * VL * sizeof(float));
    for (int y = 0; y < down->count; y += VL) {
        const int rows = smaller(VL, down->count - y);
        float lines[VL][SCALED_COLUMNS] __attribute__((aligned(64)));
        Vec v[VL];
        for (int start = begin; start < end; start += SCALED_COLUMNS) {
            const int stop = smaller(start + SCALED_COLUMNS, end);
            for (int i = 0; i < VL; i++) {
                memset(lines[i] + (stop - start) / VL * VL, 0, (stop - start) % VL ? VL * sizeof(float) : 0);
                scale_down(pixels, height, width, down, y + smaller(i, rows - 1), start, stop, lines[i]);
            }
            for (int x = start; x < stop; x += VL) {
                UNROLL for (int i = 0; i < VL; i++) v[i] = load(lines[i] + x - start);
                transpose(v);
                UNROLL for (int i = 0; i < VL; i++) store(turned + (ptrdiff_t)(x + i) * VL, v[i]);
            }
        }
        for (int c = 0; c < 3; c++)
            for (int start = 0; start < across->count; start += SCALED_COLUMNS) {
                const int count = smaller(SCALED_COLUMNS, across->count - start);
                for (int x = start; x < start + count; x += VL) {
                    UNROLL for (int i = 0; i < VL; i++) v[i] = scale_across(turned, across, smaller(x + i, last), c);
                    transpose(v);
                    UNROLL for (int i = 0; i < VL; i++) store(lines[i] + x - start, v[i]);
                }
                for (int i = 0; i < rows; i++) {
                    uint8_t *restrict to = out + ((ptrdiff_t)c * down->count + y + i) * across->count + start;
                    for (int x = 0; x < count; x++)
                        to[x] = (uint8_t)(int32_t)(lines[i][x] * 0.0625f + 0.5f);
                }
            }
    }
}

const LoadLoops ISA_SYMBOL(forktask_load) = {
    .interleave_row = interleave_row,
    .scale = scale_pixels,
};
