/* Filling and combining the private copies of reductions (elementwise.pyx). A region is a box of a 4-D array: bounds
 * hold start and stop of each dimension, n1, n2, n3 are the array's extents behind the first. */
#ifndef FORKTASK_REDUCTIONS_H
#define FORKTASK_REDUCTIONS_H

#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>

enum { FT_SUM, FT_PRODUCT, FT_MIN, FT_MAX };

#define FT_FOR_ROWS(b, n1, n2, n3)                     \
    for (ptrdiff_t i0 = (b)[0]; i0 < (b)[1]; i0++)     \
        for (ptrdiff_t i1 = (b)[2]; i1 < (b)[3]; i1++) \
            for (ptrdiff_t i2 = (b)[4], row = ((i0 * (n1) + i1) * (n2) + i2) * (n3); i2 < (b)[5]; i2++, row += (n3))

/* NaN wins a minimum and a maximum, as in NumPy: a comparison with it is false. */
#define FT_DEFINE_REDUCTION(name, T, LOWEST, HIGHEST)                                                               \
    static void fill_##name(void *array, const int32_t *b, int64_t n1, int64_t n2, int64_t n3, int64_t operation)   \
    {                                                                                                               \
        T *out = array;                                                                                             \
        const T neutral[] = {0, 1, HIGHEST, LOWEST};                                                                \
        FT_FOR_ROWS(b, n1, n2, n3)                                                                                  \
        for (ptrdiff_t i = b[6]; i < b[7]; i++)                                                                     \
            out[row + i] = neutral[operation];                                                                      \
    }                                                                                                               \
    static void combine_##name(void *array, const void *copy, const int32_t *b, int64_t n1, int64_t n2, int64_t n3, \
                               int64_t operation)                                                                   \
    {                                                                                                               \
        FT_FOR_ROWS(b, n1, n2, n3)                                                                                  \
        {                                                                                                           \
            T *x = (T *)array + row;                                                                                \
            const T *y = (const T *)copy + row;                                                                     \
            if (operation == FT_SUM)                                                                                \
                for (ptrdiff_t i = b[6]; i < b[7]; i++)                                                             \
                    x[i] += y[i];                                                                                   \
            else if (operation == FT_PRODUCT)                                                                       \
                for (ptrdiff_t i = b[6]; i < b[7]; i++)                                                             \
                    x[i] *= y[i];                                                                                   \
            else if (operation == FT_MIN)                                                                           \
                for (ptrdiff_t i = b[6]; i < b[7]; i++)                                                             \
                    x[i] = !(x[i] <= y[i]) && x[i] == x[i] ? y[i] : x[i];                                           \
            else                                                                                                    \
                for (ptrdiff_t i = b[6]; i < b[7]; i++)                                                             \
                    x[i] = !(x[i] >= y[i]) && x[i] == x[i] ? y[i] : x[i];                                           \
        }                                                                                                           \
    }

FT_DEFINE_REDUCTION(float32, float, -INFINITY, INFINITY)
FT_DEFINE_REDUCTION(float64, double, -INFINITY, INFINITY)
FT_DEFINE_REDUCTION(int32, int32_t, INT32_MIN, INT32_MAX)
FT_DEFINE_REDUCTION(int64, int64_t, INT64_MIN, INT64_MAX)
FT_DEFINE_REDUCTION(uint64, uint64_t, 0, UINT64_MAX)

/* By the attribute "dtype": reductions.py::REDUCTION_DTYPES. */
static void (*const fill_region[])(void *out, const int32_t *b, int64_t n1, int64_t n2, int64_t n3,
                                   int64_t operation) = {fill_float32, fill_float64, fill_int32, fill_int64,
                                                         fill_uint64};
static void (*const combine_regions[])(void *out, const void *copy, const int32_t *b, int64_t n1, int64_t n2,
                                       int64_t n3, int64_t operation) = {combine_float32, combine_float64,
                                                                         combine_int32, combine_int64, combine_uint64};

#endif
