/* Inner loops of loading images, see kernels/load/load_loops.h. Compiled once per instruction set. */
#include "load_loops.h"
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

typedef float Pixel __attribute__((vector_size(16), aligned(4), may_alias)); /* three channels, and one value more */

/* The weighted sum of four rows of bytes, added to `row` unless it is the first. */
INLINE void add_rows(const uint8_t *const *rows, const float *weights, int length, int first, float *restrict row)
{
    const uint8_t *restrict a = rows[0], *restrict b = rows[1], *restrict c = rows[2], *restrict d = rows[3];
    const float v = weights[0], w = weights[1], x = weights[2], y = weights[3];
    for (int i = 0; i < length; i++)
        row[i] = first ? a[i] * v + b[i] * w + c[i] * x + d[i] * y : row[i] + a[i] * v + b[i] * w + c[i] * x + d[i] * y;
}

static void scale(const uint8_t *pixels, int height, int width, const ScaledAxis *down, const ScaledAxis *across,
                  float *row, float *wide, uint8_t *out)
{
    const int length = 3 * width;
    for (int i = length; i < length + 3 * TAPS_STEP + 1; i++)
        row[i] = 0;
    for (int y = 0; y < down->count; y++) {
        for (int k = 0; k < down->taps; k += TAPS_STEP) {
            const uint8_t *rows[TAPS_STEP];
            for (int i = 0; i < TAPS_STEP; i++) {
                int at = down->first[y] + k + i; /* a tap beyond the image has weight zero */
                rows[i] = pixels + (ptrdiff_t)(at < height ? at : height - 1) * length;
            }
            const float *weights = down->weights + (ptrdiff_t)y * down->taps + k;
            if (k == 0)
                add_rows(rows, weights, length, 1, row);
            else
                add_rows(rows, weights, length, 0, row);
        }
        for (int i = 0; i < length; i++)
            row[i] = (float)(int32_t)(row[i] * 16 + 0.5f);
        for (int x = 0; x < across->count; x++) {
            const float *from = row + 3 * across->first[x], *weights = across->weights + (ptrdiff_t)x * across->taps;
            Pixel sum = {0};
            for (int k = 0; k < across->taps; k += TAPS_STEP)
                UNROLL for (int i = 0; i < TAPS_STEP; i++) sum += *(const Pixel *)(from + 3 * (k + i)) * weights[k + i];
            *(Pixel *)(wide + 4 * x) = sum;
        }
        for (int c = 0; c < 3; c++) {
            uint8_t *restrict line = out + ((ptrdiff_t)c * down->count + y) * across->count;
            for (int x = 0; x < across->count; x++)
                line[x] = (uint8_t)(int32_t)(wide[4 * x + c] * 0.0625f + 0.5f);
        }
    }
}

const LoadLoops ISA_SYMBOL(forktask_load) = {
    .interleave_row = interleave_row,
    .scale = scale,
};
