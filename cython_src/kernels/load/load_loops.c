/* Inner loop of loading images, see kernels/load/load_loops.h. Compiled once per instruction set. */
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

const LoadLoops ISA_SYMBOL(forktask_load) = {
    .interleave_row = interleave_row,
};
