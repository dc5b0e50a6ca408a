/* Softmax over a vocabulary; see kernels/loss/vocabulary_loops.h. Sums run over four vectors side by side, in an order
 * that depends on the length alone. */
#include "vocabulary_loops.h"

#include "cython_src/kernels/simd/vectors.h"

#include "cython_src/kernels/elementwise/functions.h"

static float largest(const float *z, ptrdiff_t length)
{
    float most = z[0];
    Vec chains[CHAINS];
    ptrdiff_t i = 0;
    UNROLL for (int c = 0; c < CHAINS; c++) chains[c] = splat(most);
    for (; i + CHAINS * VL <= length; i += CHAINS * VL)
        UNROLL for (int c = 0; c < CHAINS; c++) chains[c] = maximum(load(z + i + c * VL), chains[c]);
    for (int c = 0; c < CHAINS; c++)
        for (int l = 0; l < VL; l++)
            most = chains[c][l] > most ? chains[c][l] : most;
    for (; i < length; i++)
        most = z[i] > most ? z[i] : most;
    return most;
}

INLINE Vec power(const float *z, int n, float shift, float *powers)
{
    Vec e = first_lanes(exponential(load_some(z, n) - shift), n);
    if (powers)
        store_some(powers, e, n);
    return e;
}

INLINE float sum_of_powers(const float *z, ptrdiff_t length, float shift, float *powers)
{
    Vec sum[CHAINS] = {{0}};
    SUM_VECTORS(sum, i, n, length, sum[chain] += power(z + i, n, shift, powers ? powers + i : NULL));
    return chains_sum(sum);
}

static float sum_powers(const float *z, ptrdiff_t length, float shift, float *powers)
{
    return powers ? sum_of_powers(z, length, shift, powers) : sum_of_powers(z, length, shift, NULL);
}

static void scale(float *z, ptrdiff_t length, float factor)
{
    FOR_VECTORS(i, n, length, store_some(z + i, load_some(z + i, n) * factor, n));
}

static void scaled_powers(float *z, ptrdiff_t length, float shift, float factor)
{
    FOR_VECTORS(i, n, length, store_some(z + i, exponential(load_some(z + i, n) - shift) * factor, n));
}

const VocabularyLoops ISA_SYMBOL(forktask_vocabulary) = {
    .largest = largest,
    .sum_powers = sum_powers,
    .scale = scale,
    .scaled_powers = scaled_powers,
};
