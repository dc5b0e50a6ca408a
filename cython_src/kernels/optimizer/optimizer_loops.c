/* Inner loops of the optimisers, see kernels/optimizer/optimizer_loops.h. Compiled once per instruction set. */
#include "optimizer_loops.h"
#include "cython_src/kernels/simd/vectors.h"

#include <math.h>

/* Pieces of [start, stop) that are contiguous in a partial. */
#define EACH_RUN(t)                                              \
    for (ptrdiff_t e = (t)->start, run; e < (t)->stop; e += run) \
        if (run = (t)->row_length - e % (t)->row_length, run = run < (t)->stop - e ? run : (t)->stop - e, 1)

INLINE const float *run_of(const OptimizerTask *t, ptrdiff_t e)
{
    return t->partial ? t->partial + e / t->row_length * t->row_stride + e % t->row_length : NULL;
}

INLINE Vec summed(const OptimizerTask *t, const float *partial, ptrdiff_t e, ptrdiff_t i, int n)
{
    if (partial == NULL)
        return load_some(t->gradient + e + i, n);
    Vec g = load_some(partial + i, n);
    for (int p = 1; p < t->partials; p++)
        g += load_some(partial + p * t->partial_stride + i, n);
    store_some(t->gradient + e + i, g, n);
    return g;
}

INLINE float summed_one(const OptimizerTask *t, const float *partial, ptrdiff_t e, ptrdiff_t i)
{
    if (partial == NULL)
        return t->gradient[e + i];
    float g = partial[i];
    for (int p = 1; p < t->partials; p++)
        g += partial[p * t->partial_stride + i];
    return t->gradient[e + i] = g;
}

static void sgd(const OptimizerTask *t)
{
    EACH_RUN(t)
    {
        const float *partial = run_of(t, e);
        float *w = t->parameter + e, *v = t->first ? t->first + e : NULL;
        FOR_VECTORS(i, n, run, {
            Vec weight = load_some(w + i, n), g = t->scale * summed(t, partial, e, i, n) + t->decay * weight;
            if (v) {
                g += t->momentum * load_some(v + i, n);
                store_some(v + i, g, n);
            }
            store_some(w + i, weight - t->rate * g, n);
        });
    }
}

/* Numbers at the end of a row one by one: a masked vector of three maps takes longer. */
static void adam(const OptimizerTask *t)
{
    EACH_RUN(t)
    {
        const float *partial = run_of(t, e);
        float *w = t->parameter + e, *m = t->first + e, *s = t->second + e;
        ptrdiff_t i = 0;
        for (; i + VL <= run; i += VL) {
            Vec weight = load(w + i), g = t->scale * summed(t, partial, e, i, VL) + t->decay * weight;
            Vec first = t->beta1 * load(m + i) + (1 - t->beta1) * g;
            Vec second = t->beta2 * load(s + i) + (1 - t->beta2) * (g * g);
            store(m + i, first);
            store(s + i, second);
            store(w + i, t->shrink * weight - t->step * first / (square_root(second) * t->correction + t->eps));
        }
        for (; i < run; i++) {
            float g = t->scale * summed_one(t, partial, e, i) + t->decay * w[i];
            m[i] = t->beta1 * m[i] + (1 - t->beta1) * g;
            s[i] = t->beta2 * s[i] + (1 - t->beta2) * (g * g);
            w[i] = t->shrink * w[i] - t->step * m[i] / (sqrtf(s[i]) * t->correction + t->eps);
        }
    }
}

static float gradient_sum(const OptimizerTask *t)
{
    float total = 0;
    EACH_RUN(t)
    {
        const float *partial = run_of(t, e);
        Vec squares = {0}, rest = {0};
        FOR_VECTORS(i, n, run, {
            Vec g = summed(t, partial, e, i, n);
            if (n == VL)
                squares += g * g;
            else
                rest = g;
        });
        total += lane_sum(squares);
        for (int i = 0; i < run % VL; i++)
            total += rest[i] * rest[i];
    }
    return total;
}

const OptimizerLoops ISA_SYMBOL(forktask_optimizer) = {
    .sgd = sgd,
    .adam = adam,
    .gradient_sum = gradient_sum,
};
