/* Inner loops of batch normalisation, see kernels/norm/nhwc_loops.h. Compiled once per instruction set. */
#include "nhwc_loops.h"
#include "nhwc_rows.h"
#include "cython_src/kernels/maps/nhwc_planes_loops.h"
#include "cython_src/kernels/simd/activations.h"

#include <string.h>

/* Sums of x - shift and of its square, the shift being a pixel in the middle of the block's first image: it lies within
 * the distribution, so nothing is lost where the mean is large; a pixel at the border may lack half of its taps. */
INLINE void statistics_part(const NhwcTask *t, const float *x, int pixels, int c, const int N, float *sums,
                            ptrdiff_t stride)
{
    Vec shift[WIDE], sum[WIDE], square[WIDE];
    UNROLL for (int v = 0; v < N; v++) shift[v] = load(sums + 2 * stride + c + v * VL), sum[v] = square[v] = (Vec){0};
    const ptrdiff_t ahead = ahead_of(t, 1);
    for (int i = 0; i < pixels; i++, x += t->pitch) {
        if (ahead)
            ASK(x + c, 0);
        UNROLL for (int v = 0; v < N; v++)
        {
            Vec d = load(x + c + v * VL) - shift[v];
            sum[v] += d;
            square[v] += d * d;
        }
    }
    UNROLL for (int v = 0; v < N; v++)
    {
        store(sums + c + v * VL, load(sums + c + v * VL) + sum[v]);
        store(sums + stride + c + v * VL, load(sums + stride + c + v * VL) + square[v]);
    }
}

INLINE void statistics_body(const NhwcTask *t, float *const *p, int pixels, float *sums, ptrdiff_t stride, const int a,
                            const int b){
#define CALL(N) statistics_part(t, p[0], pixels, c, N, sums, stride)
    EACH_PART(CALL)
#undef CALL
}

SHARED void add_statistics(const NhwcTask *t, float *out, ptrdiff_t stride)
{
    each_chunk(t, 1, statistics_body, out, stride, 0, 0);
}

static void statistics(const NhwcTask *t, float *out, ptrdiff_t stride)
{
    start_statistics(t, out, stride);
    add_statistics(t, out, stride);
    finish_statistics((float)t->images * t->rows * t->pixels, t->channels, out, stride);
}

static void merge_statistics(const float *partial, int partials, ptrdiff_t pitch, int channels, float count,
                             float *mean, float *squares)
{
    for (int c = 0; c < channels; c += VL) {
        Vec total = {0}, square = {0};
        for (int p = 0; p < partials; p++) {
            const float *from = partial + p * 3 * pitch + c;
            total += load(from) * load(from + 2 * pitch);
        }
        Vec m = total / count;
        for (int p = 0; p < partials; p++) {
            const float *from = partial + p * 3 * pitch + c;
            Vec d = load(from) - m;
            square += load(from + pitch) + load(from + 2 * pitch) * d * d;
        }
        store(mean + c, m);
        store(squares + c, square);
    }
}

static void sum_partials(const float *partial, int partials, ptrdiff_t stride, int channels, float *out)
{
    FOR_VECTORS(c, n, channels, {
        Vec total = load_some(partial + c, n);
        for (int p = 1; p < partials; p++)
            total += load_some(partial + p * stride + c, n);
        store_some(out + c, total, n);
    });
}

INLINE void norm_apply_part(const NhwcTask *t, float *const *p, int pixels, int c, const int N, const int activation,
                            const int residual)
{
    const float *const *vector = t->vector;
    const ptrdiff_t pitch = t->pitch;
    const float *x = p[0] + c, *r = residual ? p[2] + c : NULL;
    float *y = p[1] + c;
    Vec scale[WIDE], shift[WIDE], scale2[WIDE];
    UNROLL for (int v = 0; v < N; v++)
    {
        scale[v] = load(vector[0] + c + v * VL), shift[v] = load(vector[1] + c + v * VL);
        if (residual == RESIDUAL_SCALED) /* two shifts are one */
            scale2[v] = load(vector[2] + c + v * VL), shift[v] += load(vector[3] + c + v * VL);
    }
    const ptrdiff_t ahead = ahead_of(t, residual ? 3 : 2);
    for (int i = 0; i < pixels; i++) {
        if (ahead) {
            ASK(x, 0);
            ASK(y, 1);
            if (residual)
                ASK(r, 0);
        }
        UNROLL for (int v = 0; v < N; v++)
        {
            Vec out = scale[v] * load(x + v * VL) + shift[v];
            if (residual == RESIDUAL_PLAIN)
                out += load(r + v * VL);
            if (residual == RESIDUAL_SCALED)
                out += scale2[v] * load(r + v * VL);
            store(y + v * VL, activated(out, activation));
        }
        x += pitch, y += pitch;
        if (residual)
            r += pitch;
    }
}

INLINE void norm_apply_body(const NhwcTask *t, float *const *p, int pixels, float *sums, ptrdiff_t stride, const int a,
                            const int b)
{
#define CALL(N) norm_apply_part(t, p, pixels, c, N, a, b)
    EACH_PART(CALL)
#undef CALL
}

static void norm_apply(const NhwcTask *t){
#define CALL(A, B) each_chunk(t, B ? 3 : 2, norm_apply_body, NULL, 0, A, B)
    BY_ACTIVATION(CALL, t -> residual)
#undef CALL
}

/* Sums of g and g (x - mean). The mask's argument is computed as norm_apply() did, so it is the same number. */
INLINE void backward_statistics_part(const NhwcTask *t, float *const *p, int pixels, int c, const int N,
                                     const int activation, const int mask, float *sums, ptrdiff_t stride)
{
    const float *const *vector = t->vector;
    const ptrdiff_t pitch = t->pitch;
    const float *dy = p[0] + c, *x = p[1] + c, *y = mask == MASK_RESULT ? p[2] + c : NULL;
    Vec mean[WIDE], scale[WIDE], shift[WIDE], sum[WIDE], product[WIDE];
    UNROLL for (int v = 0; v < N; v++)
    {
        mean[v] = load(vector[0] + c + v * VL), sum[v] = product[v] = (Vec){0};
        if (mask == MASK_ARGUMENT)
            scale[v] = load(vector[2] + c + v * VL), shift[v] = load(vector[3] + c + v * VL);
    }
    const ptrdiff_t ahead = ahead_of(t, mask == MASK_RESULT ? 3 : 2);
    for (int i = 0; i < pixels; i++) {
        if (ahead) {
            ASK(x, 0);
            ASK(dy, 0);
            if (mask == MASK_RESULT)
                ASK(y, 0);
        }
        UNROLL for (int v = 0; v < N; v++)
        {
            Vec z = load(x + v * VL), g = load(dy + v * VL);
            if (mask == MASK_RESULT)
                g = passed(g, load(y + v * VL), activation);
            if (mask == MASK_ARGUMENT)
                g = passed(g, scale[v] * z + shift[v], activation);
            sum[v] += g;
            product[v] += g * (z - mean[v]);
        }
        dy += pitch, x += pitch;
        if (mask == MASK_RESULT)
            y += pitch;
    }
    UNROLL for (int v = 0; v < N; v++)
    {
        store(sums + c + v * VL, load(sums + c + v * VL) + sum[v]);
        store(sums + stride + c + v * VL, load(sums + stride + c + v * VL) + product[v]);
    }
}

INLINE void backward_statistics_body(const NhwcTask *t, float *const *p, int pixels, float *sums, ptrdiff_t stride,
                                     const int a, const int b){
#define CALL(N) backward_statistics_part(t, p, pixels, c, N, a, b, sums, stride)
    EACH_PART(CALL)
#undef CALL
}

SHARED void add_backward_statistics(const NhwcTask *t, float *out, ptrdiff_t stride)
{
#define CALL(A, B) each_chunk(t, B == MASK_RESULT ? 3 : 2, backward_statistics_body, out, stride, A, B)
    BY_ACTIVATION(CALL, t->mask)
#undef CALL
}

static void norm_backward_statistics(const NhwcTask *t, float *out, ptrdiff_t stride)
{
    start_backward_statistics(t->channels, out, stride);
    add_backward_statistics(t, out, stride);
    finish_backward_statistics(t->channels, t->vector[1], out, stride);
}

INLINE void backward_apply_part(const NhwcTask *t, float *const *p, int pixels, int c, const int N,
                                const int activation, const int mask, const int branch)
{
    const float *const *vector = t->vector;
    const ptrdiff_t pitch = t->pitch;
    Vec a[WIDE], b[WIDE], shift[WIDE], mean[WIDE], scale[WIDE], offset[WIDE];
    UNROLL for (int v = 0; v < N; v++)
    {
        a[v] = load(vector[0] + c + v * VL), b[v] = load(vector[1] + c + v * VL);
        shift[v] = load(vector[2] + c + v * VL), mean[v] = load(vector[3] + c + v * VL);
        if (mask == MASK_ARGUMENT)
            scale[v] = load(vector[4] + c + v * VL), offset[v] = load(vector[5] + c + v * VL);
    }
    const ptrdiff_t ahead = ahead_of(t, 3 + (mask == MASK_RESULT) + (branch != BRANCH_NONE));
    for (int i = 0; i < pixels; i++) {
        const ptrdiff_t at = i * pitch + c;
        if (ahead) {
            ASK(p[0] + at, 0);
            ASK(p[1] + at, 0);
            if (!t->streamed)
                ASK(p[2] + at, 1);
            if (mask == MASK_RESULT)
                ASK(p[3] + at, 0);
            if (branch)
                ASK(p[4] + at, 1);
        }
        UNROLL for (int v = 0; v < N; v++)
        {
            Vec z = load(p[1] + at + v * VL), g = load(p[0] + at + v * VL);
            if (mask == MASK_RESULT)
                g = passed(g, load(p[3] + at + v * VL), activation);
            if (mask == MASK_ARGUMENT)
                g = passed(g, scale[v] * z + offset[v], activation);
            store(p[2] + at + v * VL, a[v] * g + (b[v] * (z - mean[v]) + shift[v]));
            if (branch)
                store_or_add(p[4] + at + v * VL, g, branch == BRANCH_ADD);
        }
    }
}

#define BACKWARD_APPLY(BRANCH)                                                                            \
    INLINE void backward_apply_body_##BRANCH(const NhwcTask *t, float *const *p, int pixels, float *sums, \
                                             ptrdiff_t stride, const int a, const int b)                  \
    {                                                                                                     \
        EACH_PART(BACKWARD_CALL_##BRANCH)                                                                 \
    }
#define BACKWARD_CALL_0(N) backward_apply_part(t, p, pixels, c, N, a, b, BRANCH_NONE)
#define BACKWARD_CALL_1(N) backward_apply_part(t, p, pixels, c, N, a, b, BRANCH_WRITE)
#define BACKWARD_CALL_2(N) backward_apply_part(t, p, pixels, c, N, a, b, BRANCH_ADD)
BACKWARD_APPLY(0)
BACKWARD_APPLY(1)
BACKWARD_APPLY(2)

SHARED void norm_backward_apply(const NhwcTask *t)
{
    /* Planes that a form does not use are NULL and take no part in the addresses. */
#define CALL_0(A, B) each_chunk(t, B == MASK_RESULT ? 4 : 3, backward_apply_body_0, NULL, 0, A, B)
#define CALL_1(A, B) each_chunk(t, 5, backward_apply_body_1, NULL, 0, A, B)
#define CALL_2(A, B) each_chunk(t, 5, backward_apply_body_2, NULL, 0, A, B)
    if (t->residual == BRANCH_NONE) {
        BY_ACTIVATION(CALL_0, t->mask)
    } else if (t->residual == BRANCH_WRITE) {
        BY_ACTIVATION(CALL_1, t->mask)
    } else {
        BY_ACTIVATION(CALL_2, t->mask)
    }
}

const NhwcNormLoops ISA_SYMBOL(forktask_nhwc_norm) = {
    .statistics = statistics,
    .merge_statistics = merge_statistics,
    .sum_partials = sum_partials,
    .apply = norm_apply,
    .backward_statistics = norm_backward_statistics,
    .backward_apply = norm_backward_apply,
};
