/* Inner loops over maps with images in the vector lanes, see kernels/maps/nchw_loops.h. Compiled once per instruction
 * set. */
#include "nchw_loops.h"
#include "nchw_sums.h"

/* R rows of sums, each in S parts that are added at the end: few rows alone would wait for each other. */
INLINE void reduce_tile(const NchwReduction *t, const int R, const int S, const float *a, const float *b, float *out)
{
    Vec acc[S][R][REGISTERS];
    UNROLL for (int s = 0; s < S; s++) UNROLL for (int r = 0; r < R; r++) UNROLL for (int i = 0; i < REGISTERS; i++)
        acc[s][r][i] = s == 0 && t->accumulate ? load(out + r * t->out_row + i * VL) : (Vec){0};
    const ptrdiff_t a_row = t->a_row;
    for (int k = 0; k < t->length; k += S, a += S, b += S * LANES)
        UNROLL for (int s = 0; s < S; s++)
        {
            Vec x[REGISTERS];
            UNROLL for (int i = 0; i < REGISTERS; i++) x[i] = load(b + s * LANES + i * VL);
            UNROLL for (int r = 0; r < R; r++)
            {
                Vec factor = splat(a[r * a_row + s]);
                UNROLL for (int i = 0; i < REGISTERS; i++) acc[s][r][i] += factor * x[i];
            }
        }
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int i = 0; i < REGISTERS; i++)
    {
        UNROLL for (int s = 1; s < S; s++) acc[0][r][i] += acc[s][r][i];
        store(out + r * t->out_row + i * VL, acc[0][r][i]);
    }
}

#define REDUCE_PARTS(R) (BY_ISA(2, 4, 4, 8) / (R == 1 ? 1 : R <= 3 ? 2 : R <= 8 ? 4 : 8))
#define REDUCE_INSTANCE(R, _)                                                                  \
    static void reduce_##R(const NchwReduction *t, const float *a, const float *b, float *out) \
    {                                                                                          \
        reduce_tile(t, R, REDUCE_PARTS(R), a, b, out);                                         \
    }
#define REDUCE_NAME(R, _) reduce_##R,
EACH_TO(REDUCE_R, REDUCE_INSTANCE, _)
const ReduceTile reduce_tiles[REDUCE_R] = {EACH_TO(REDUCE_R, REDUCE_NAME, _)};

const NchwLoops ISA_SYMBOL(forktask_nchw) = {
    .transpose = transpose_lanes,
    .sum_rows = sum_of_rows,
};
