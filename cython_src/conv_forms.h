/* Convolutions with 5 x 5 taps of sixteen images in the vector lanes, in the forms that the direct one (ConvTask in
 * micro_kernels.h) is compared with; compiled once per instruction set from conv_forms.c.
 *
 * Sums run in the direct form's order, bias first, then input channels, kernel rows, kernel columns; so forward pass
 * and data gradient have its bits. Strides are in floats, a pixel is UNIT floats. */
#ifndef FORKTASK_CONV_FORMS_H
#define FORKTASK_CONV_FORMS_H

#include <stddef.h>

/* `in` is the pixel under tap (0, 0) of the first output. Where bounds are tested, the pixels (y, x) counted from it
 * with top <= y < bottom and left <= x < right exist. Weights as in ConvTask. */
typedef struct FormTask {
    const float *in, *w, *bias; /* bias may be NULL: zero */
    float *out;
    ptrdiff_t in_channel, in_row, w_out, w_in, out_channel, out_row;
    int channels_in, channels_out, rows, columns, flip, top, bottom, left, right;
} FormTask;

/* out[o * out_channel + c * 25 + tap] (+)= sum over (y, x, lane) of dy[o][y][x] * x[c][y + ky][x + kx]. */
typedef struct FormGradientTask {
    const float *dy, *x;
    float *out;
    ptrdiff_t dy_channel, dy_row, x_channel, x_row, out_channel;
    int channels_in, channels_out, rows, columns, accumulate, top, bottom, left, right;
} FormGradientTask;

typedef struct ConvForms {
    /* One output pixel at a time; with `tests`, bounds are tested at every tap. */
    void (*plain)(const FormTask *task, int tests);
    /* A tile of outputs in registers; bounds are tested at every tap and pixel. */
    void (*tested)(const FormTask *task);
    /* out[(c * 25 + tap)][y][x] = pixel under the tap, `rows` x `columns` of each. */
    void (*copy_taps)(const float *in, ptrdiff_t in_channel, ptrdiff_t in_row, int channels, int rows, int columns,
                      float *out);
    /* Product of weights and what copy_taps made: `in` of the task, in_row = columns * UNIT. */
    void (*product)(const FormTask *task);
    void (*gradient_plain)(const FormGradientTask *task, int tests); /* one tap at a time */
    void (*gradient_tested)(const FormGradientTask *task);           /* a tile of taps in registers */
    void (*gradient_product)(const FormGradientTask *task);          /* `x` is what copy_taps made */
} ConvForms;

#endif
