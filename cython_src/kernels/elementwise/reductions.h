/* Filling and combining the private copies of reductions (elementwise.pyx). A region is a box of a 4-D array: bounds
 * hold start and stop of each dimension, n1, n2, n3 are the array's extents behind the first. */
#ifndef FORKTASK_REDUCTIONS_H
#define FORKTASK_REDUCTIONS_H

#include <stddef.h>
#include <stdint.h>

#define FT_FOR_ROWS(b, n1, n2, n3)                     \
    for (ptrdiff_t i0 = (b)[0]; i0 < (b)[1]; i0++)     \
        for (ptrdiff_t i1 = (b)[2]; i1 < (b)[3]; i1++) \
            for (ptrdiff_t i2 = (b)[4], row = ((i0 * (n1) + i1) * (n2) + i2) * (n3); i2 < (b)[5]; i2++, row += (n3))

#define FT_DEFINE_REDUCTION(name, T)                                                                                \
    static void fill_##name(void *array, const int32_t *b, int64_t n1, int64_t n2, int64_t n3)                      \
    {                                                                                                               \
        T *out = array;                                                                                             \
        FT_FOR_ROWS(b, n1, n2, n3)                                                                                  \
        for (ptrdiff_t i = b[6]; i < b[7]; i++)                                                                     \
            out[row + i] = 0;                                                                                       \
    }                                                                                                               \
    static void combine_##name(void *array, const void *copy, const int32_t *b, int64_t n1, int64_t n2, int64_t n3) \
    {                                                                                                               \
        FT_FOR_ROWS(b, n1, n2, n3)                                                                                  \
        {                                                                                                           \
            T *x = (T *)array + row;                                                                                \
            const T *y = (const T *)copy + row;                                                                     \
            for (ptrdiff_t i = b[6]; i < b[7]; i++)                                                                 \
                x[i] += y[i];                                                                                       \
        }                                                                                                           \
    }

FT_DEFINE_REDUCTION(float32, float)
FT_DEFINE_REDUCTION(float64, double)
FT_DEFINE_REDUCTION(int32, int32_t)
FT_DEFINE_REDUCTION(int64, int64_t)
FT_DEFINE_REDUCTION(uint64, uint64_t)

/* By the attribute "dtype": reductions.py::REDUCTION_DTYPES. */
static void (*const fill_region[])(void *out, const int32_t *b, int64_t n1, int64_t n2,
                                   int64_t n3) = {fill_float32, fill_float64, fill_int32, fill_int64, fill_uint64};
static void (*const combine_regions[])(void *out, const void *copy, const int32_t *b, int64_t n1, int64_t n2,
                                       int64_t n3) = {combine_float32, combine_float64, combine_int32, combine_int64,
                                                      combine_uint64};

#endif
