/* Linear layers of tokens: products of matrices with their epilogues, compiled once per instruction set from
 * kernels/linear/linear_loops.c. Matrices are row-major; strides are in floats.
 *
 * K, the length of the sums, is cut into pieces of at most LINEAR_TERMS, equal but for rounding, whose sums are added in
 * order; columns are taken LINEAR_COLUMNS at a time. Of the second factor a piece of those columns lies in scratch
 * memory, packed for the inner tile. The pieces depend on K alone: an element has the same bits however rows and columns
 * are cut into blocks. */
#ifndef FORKTASK_LINEAR_LOOPS_H
#define FORKTASK_LINEAR_LOOPS_H

#include <stddef.h>

#define LINEAR_TERMS   512
#define LINEAR_COLUMNS 128
/* The weight gradient's sums run over rows of tokens; its first factor is turned into scratch memory too. */
#define LINEAR_GRADIENT_ROWS 256
#define LINEAR_OUTPUTS       256

/* Floats of scratch memory, for any instruction set: widths are rounded up to a panel of 32. */
#define LINEAR_MIN(A, B)              ((A) < (B) ? (A) : (B))
#define LINEAR_ROUND_UP(N)            (((N) + 31) / 32 * 32)
#define LINEAR_WIDTH(N)               LINEAR_MIN(LINEAR_ROUND_UP(N), LINEAR_COLUMNS)
#define LINEAR_PIECE_ROWS(ROWS)       LINEAR_MIN(LINEAR_ROUND_UP(ROWS), LINEAR_GRADIENT_ROWS)
#define LINEAR_FLOATS(TERMS, COLUMNS) (LINEAR_MIN(TERMS, LINEAR_TERMS) * LINEAR_WIDTH(COLUMNS))
#define LINEAR_GRADIENT_FLOATS(ROWS, OUTPUTS, INPUTS) \
    (LINEAR_PIECE_ROWS(ROWS) * (LINEAR_WIDTH(INPUTS) + LINEAR_MIN(OUTPUTS, LINEAR_OUTPUTS)))

/* Six products of bfloat16: cuts of both factors, three words for two floats, and all sums of SIX_ROWS x SIX_COLUMNS. */
#define SIX_TERMS         128
#define SIX_ROWS          256
#define SIX_COLUMNS       384
#define SIX_FLOATS(LINES) (LINEAR_ROUND_UP(LINES) * SIX_TERMS * 3 / 2)
#define LINEAR_SIX_FLOATS(ROWS, COLUMNS)                                                     \
    (SIX_FLOATS(LINEAR_MIN(ROWS, SIX_ROWS)) + SIX_FLOATS(LINEAR_MIN(COLUMNS, SIX_COLUMNS)) + \
     LINEAR_ROUND_UP(LINEAR_MIN(ROWS, SIX_ROWS)) * LINEAR_ROUND_UP(LINEAR_MIN(COLUMNS, SIX_COLUMNS)))

/* c = epilogue(a b), for a (rows, terms) and b (terms, columns). */
typedef struct LinearTask {
    const float *a, *b;
    float *c;
    ptrdiff_t a_row, b_row, c_row;
    int rows, columns, terms;
    int accumulate;         /* a b is added to what c holds */
    const float *bias;      /* (columns,) or NULL */
    const float *residual;  /* or NULL: added at the end */
    float *before;          /* or NULL: gets the value before the activation */
    const float *gelu_of;   /* or NULL: the result is multiplied by GELU's derivative there */
    const float *relu_of;   /* or NULL: the result is zero where this is not positive */
    ptrdiff_t residual_row; /* stride of `residual`, `before`, `gelu_of` and `relu_of` */
    int activation;
    int bf16x6;     /* by six products of bfloat16 */
    int narrow;     /* no wide panels, no AMX; set by the loops themselves */
    float *scratch; /* LINEAR_FLOATS(terms, columns), or LINEAR_SIX_FLOATS(rows, columns) */
} LinearTask;

/* c[o][i] (+)= sum over rows of gradient[row][o] input[row][i], bias[o] (+)= sum of gradient[row][o]. */
typedef struct LinearGradientTask {
    const float *gradient, *input;
    float *c, *bias; /* bias may be NULL */
    ptrdiff_t gradient_row, input_row, c_row;
    int rows, outputs, inputs, accumulate, bf16x6, narrow;
    float *scratch; /* LINEAR_GRADIENT_FLOATS(rows, outputs, inputs), or LINEAR_SIX_FLOATS(outputs, inputs) */
} LinearGradientTask;

typedef struct LinearLoops {
    void (*forward)(const LinearTask *task);       /* b is stored by columns: b[k][n] at b[n * b_row + k] */
    void (*backward_data)(const LinearTask *task); /* b is stored by rows */
    void (*backward_weights)(const LinearGradientTask *task);
} LinearLoops;

#endif
