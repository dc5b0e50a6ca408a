/* Element-wise loops over tokens; see kernels/elementwise/rows_loops.h. */
#include "rows_loops.h"

#include "functions.h"

static void rows_activate(const float *in, float *out, ptrdiff_t length, int activation)
{
#define CASE(A)                                                                                    \
    case A:                                                                                        \
        FOR_VECTORS(i, n, length, store_some(out + i, activation_of(load_some(in + i, n), A), n)); \
        break;
    switch (activation) {
        EACH_ACTIVATION(CASE)
    }
#undef CASE
}

static void rows_activate_backward(const float *gradient, const float *values, float *out, ptrdiff_t length,
                                   int activation)
{
#define CASE(A)                                                                                                    \
    case A:                                                                                                        \
        FOR_VECTORS(                                                                                               \
            i, n, length,                                                                                          \
            store_some(out + i, activation_gradient(load_some(gradient + i, n), load_some(values + i, n), A), n)); \
        break;
    switch (activation) {
        EACH_ACTIVATION(CASE)
    }
#undef CASE
}

static void add(const float *first, const float *second, float *out, ptrdiff_t length)
{
    FOR_VECTORS(i, n, length, store_some(out + i, load_some(first + i, n) + load_some(second + i, n), n));
}

const TokenElementLoops ISA_SYMBOL(forktask_token_elements) = {
    .activate = rows_activate,
    .activate_backward = rows_activate_backward,
    .add = add,
};
