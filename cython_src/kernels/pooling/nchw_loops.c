/* Inner loops of pooling, see kernels/pooling/nchw_loops.h. Compiled once per instruction set. */
#include "nchw_loops.h"

#include <stddef.h>

#include "cython_src/kernels/simd/vectors.h"

/* Forms for N pixels or lanes at a time: N = VL, and fewer for the short rows of the layout "nchw". `first` and
 * `second` are the index values of a row's even and odd pixels. */
#define POOL_FORMS(N, EVENS, ODDS, LOWS, HIGHS)                                                                \
    typedef float Float##N __attribute__((vector_size(N * 4), aligned(4), may_alias));                         \
    typedef int32_t Int##N __attribute__((vector_size(N * 4)));                                                \
    typedef uint8_t Byte##N __attribute__((vector_size(N), aligned(1), may_alias));                            \
    INLINE Float##N select_##N(Int##N mask, Float##N a, Float##N b)                                            \
    {                                                                                                          \
        return (Float##N)((mask & (Int##N)a) | (~mask & (Int##N)b));                                           \
    }                                                                                                          \
    INLINE void pool_##N(Float##N a, Float##N b, Float##N c, Float##N d, int relu, float *out, uint8_t *index) \
    {                                                                                                          \
        Int##N i = {0}, mask = b > a;                                                                          \
        i = mask & 1, a = select_##N(mask, b, a);                                                              \
        mask = c > a;                                                                                          \
        i = (mask & 2) | (~mask & i), a = select_##N(mask, c, a);                                              \
        mask = d > a;                                                                                          \
        i = (mask & 3) | (~mask & i), a = select_##N(mask, d, a);                                              \
        if (relu) { /* written so that a NaN stays one */                                                      \
            mask = a <= 0;                                                                                     \
            i = (mask & 4) | (~mask & i), a = select_##N(mask, (Float##N){0}, a);                              \
        }                                                                                                      \
        *(Float##N *)out = a;                                                                                  \
        *(Byte##N *)index = __builtin_convertvector(i, Byte##N);                                               \
    }                                                                                                          \
    INLINE void pool_pixels_##N(const float *row0, const float *row1, int relu, float *out, uint8_t *index)    \
    {                                                                                                          \
        Float##N a = *(const Float##N *)row0, b = *(const Float##N *)(row0 + N);                               \
        Float##N c = *(const Float##N *)row1, d = *(const Float##N *)(row1 + N);                               \
        pool_##N(SHUFFLE(Int##N, a, b, EVENS), SHUFFLE(Int##N, a, b, ODDS), SHUFFLE(Int##N, c, d, EVENS),      \
                 SHUFFLE(Int##N, c, d, ODDS), relu, out, index);                                               \
    }                                                                                                          \
    INLINE void unpool_##N(Float##N in, Int##N i, int first, Float##N *even, Float##N *odd)                    \
    {                                                                                                          \
        *even = (Float##N)((i == first) & (Int##N)in);                                                         \
        *odd = (Float##N)((i == first + 1) & (Int##N)in);                                                      \
    }                                                                                                          \
    INLINE void unpool_pixels_##N(const float *in, const uint8_t *index, float *row0, float *row1)             \
    {                                                                                                          \
        Float##N v = *(const Float##N *)in, even, odd;                                                         \
        Int##N i = __builtin_convertvector(*(const Byte##N *)index, Int##N);                                   \
        unpool_##N(v, i, 0, &even, &odd);                                                                      \
        *(Float##N *)row0 = SHUFFLE(Int##N, even, odd, LOWS);                                                  \
        *(Float##N *)(row0 + N) = SHUFFLE(Int##N, even, odd, HIGHS);                                           \
        unpool_##N(v, i, 2, &even, &odd);                                                                      \
        *(Float##N *)row1 = SHUFFLE(Int##N, even, odd, LOWS);                                                  \
        *(Float##N *)(row1 + N) = SHUFFLE(Int##N, even, odd, HIGHS);                                           \
    }

#define LIST(...) __VA_ARGS__
POOL_FORMS(4, LIST(0, 2, 4, 6), LIST(1, 3, 5, 7), LIST(0, 4, 1, 5), LIST(2, 6, 3, 7))
#if VL >= 8
POOL_FORMS(8, LIST(0, 2, 4, 6, 8, 10, 12, 14), LIST(1, 3, 5, 7, 9, 11, 13, 15), LIST(0, 8, 1, 9, 2, 10, 3, 11),
           LIST(4, 12, 5, 13, 6, 14, 7, 15))
#endif
#if VL >= 16
POOL_FORMS(16, LIST(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30),
           LIST(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31),
           LIST(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23),
           LIST(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31))
#endif
#define PIXELS_4(FORM)         FORM(4)
#define PIXELS_8(FORM)         FORM(8) FORM(4)
#define PIXELS_16(FORM)        FORM(16) FORM(8) FORM(4)
#define EACH_WIDTH             BY_ISA(PIXELS_4, PIXELS_4, PIXELS_8, PIXELS_16)
#define OF_WIDTH_(name, width) name##width
#define OF_WIDTH(name, width)  OF_WIDTH_(name, width)
typedef OF_WIDTH(Float, VL) FloatV;
typedef OF_WIDTH(Int, VL) IntV;
typedef OF_WIDTH(Byte, VL) ByteV;

static void pool_row(const float *row0, const float *row1, int width, int lanes, int relu, float *out, uint8_t *index)
{
    int x = 0;
    if (lanes != 1) {
        for (; x < width * LANES; x += VL, out += VL, index += VL) {
            ptrdiff_t at = x / LANES * 2 * LANES + x % LANES;
            OF_WIDTH(pool_, VL)(*(const FloatV *)(row0 + at), *(const FloatV *)(row0 + at + LANES),
                                *(const FloatV *)(row1 + at), *(const FloatV *)(row1 + at + LANES), relu, out, index);
        }
        return;
    }
#define POOL_PIXELS(N)             \
    for (; x + N <= width; x += N) \
        pool_pixels_##N(row0 + 2 * x, row1 + 2 * x, relu, out + x, index + x);
    EACH_WIDTH(POOL_PIXELS)
    for (; x < width; x++) {
        const float window[4] = {row0[2 * x], row0[2 * x + 1], row1[2 * x], row1[2 * x + 1]};
        int best = 0;
        for (int i = 1; i < 4; i++)
            best = window[i] > window[best] ? i : best;
        int dead = relu && window[best] <= 0;
        out[x] = dead ? 0 : window[best];
        index[x] = dead ? 4 : best;
    }
}

static void unpool_row(const float *in, const uint8_t *index, int width, int lanes, float *row0, float *row1)
{
    int x = 0;
    if (lanes != 1) {
        for (; x < width * LANES; x += VL, in += VL, index += VL) {
            ptrdiff_t at = x / LANES * 2 * LANES + x % LANES;
            FloatV v = *(const FloatV *)in;
            IntV i = __builtin_convertvector(*(const ByteV *)index, IntV);
            OF_WIDTH(unpool_, VL)(v, i, 0, (FloatV *)(row0 + at), (FloatV *)(row0 + at + LANES));
            OF_WIDTH(unpool_, VL)(v, i, 2, (FloatV *)(row1 + at), (FloatV *)(row1 + at + LANES));
        }
        return;
    }
#define UNPOOL_PIXELS(N)           \
    for (; x + N <= width; x += N) \
        unpool_pixels_##N(in + x, index + x, row0 + 2 * x, row1 + 2 * x);
    EACH_WIDTH(UNPOOL_PIXELS)
    for (; x < width; x++) {
        float *window[4] = {row0 + 2 * x, row0 + 2 * x + 1, row1 + 2 * x, row1 + 2 * x + 1};
        for (int i = 0; i < 4; i++)
            *window[i] = index[x] == i ? in[x] : 0;
    }
}

const NchwPoolingLoops ISA_SYMBOL(forktask_nchw_pooling) = {
    .pool_row = pool_row,
    .unpool_row = unpool_row,
};
