/* Softmax over a vocabulary, a row of logits at a time; compiled once per instruction set from
 * kernels/loss/vocabulary_loops.c. */
#ifndef FORKTASK_LOSS_VOCABULARY_LOOPS_H
#define FORKTASK_LOSS_VOCABULARY_LOOPS_H

#include <stddef.h>

typedef struct VocabularyLoops {
    float (*largest)(const float *z, ptrdiff_t length);
    /* Sum of e^(z - shift); with `powers`, which may be z, the terms are kept there. */
    float (*sum_powers)(const float *z, ptrdiff_t length, float shift, float *powers);
    void (*scale)(float *z, ptrdiff_t length, float factor);
    /* z = e^(z - shift) * factor */
    void (*scaled_powers)(float *z, ptrdiff_t length, float shift, float factor);
} VocabularyLoops;

#endif
