/* Attention of one head of one sample, in tiles; compiled once per instruction set from
 * kernels/attention/attention_loops.c.
 *
 *     s[i][j] = scale q[i] . k[j],  p[i] = softmax(s[i]),  o[i] = sum over j of p[i][j] v[j]
 *
 * p is never stored: forward keeps each row's logarithm of the sum of e^s, and backward computes a tile of p again. Tiles
 * over the summed tokens lie at fixed multiples of ATTENTION_TILE of the sample, and a masked element adds an exact zero:
 * an element has the same bits however tokens are cut into blocks.
 *
 * Dao, Fu, Ermon, Rudra, Re: FlashAttention (NeurIPS 2022), sections 3.1 and B; backward is two passes, by queries and by
 * keys, so that no two blocks add to one place. */
#ifndef FORKTASK_ATTENTION_LOOPS_H
#define FORKTASK_ATTENTION_LOOPS_H

#include <stddef.h>

#define ATTENTION_TILE 64
#define ATTENTION_CHUNK \
    256 /* tokens of a block whose results are summed side by side: each packed tile serves them all */

/* Floats of scratch memory for heads of `size` features, for any instruction set: up to four packed tiles, two results of
 * a chunk, two tiles of scores, and numbers by token. */
#define ATTENTION_WIDTH(SIZE) (((SIZE) + 31) / 32 * 32)
#define ATTENTION_FLOATS(SIZE)                                                                                  \
    (ATTENTION_WIDTH(SIZE) * (4 * ATTENTION_TILE + 2 * ATTENTION_CHUNK) + 2 * ATTENTION_TILE * ATTENTION_TILE + \
     17 * ATTENTION_CHUNK + 4 * ATTENTION_TILE)

/* Pointers are to the sample's first token, of one head; `row` and `qkv_row` are strides of tokens. */
typedef struct AttentionTask {
    const float *q, *k, *v;
    const float *gradient;    /* of o */
    float *o;                 /* written forward, read by the pass by queries */
    float *logsumexp, *delta; /* by token; delta = gradient . o is written by the pass by queries */
    float *dq, *dk, *dv;
    ptrdiff_t row, qkv_row;
    int size, sequence, causal; /* features of a head, tokens of the sample; causal: i sees j <= i */
    int start, stop;            /* tokens of the block: queries, or keys in the pass by keys */
    float *scratch;             /* ATTENTION_FLOATS(size) */
} AttentionTask;

typedef struct AttentionLoops {
    void (*forward)(const AttentionTask *task);
    void (*backward_queries)(const AttentionTask *task);
    void (*backward_keys)(const AttentionTask *task);
} AttentionLoops;

#endif
