/* Attention of one head of one sample, in tiles; compiled once per instruction set from
 * kernels/attention/attention_loops.c.
 *
 *     s[i][j] = scale q[i] . k[j],  p[i] = softmax(s[i]),  o[i] = sum over j of p[i][j] v[j]
 *
 * p is never stored: forward keeps each row's logarithm of the sum of e^s, and backward computes a tile of p again,
 * once. Forward sums over keys, and gradients of keys and values are sums over queries, in tiles that lie at fixed
 * multiples of ATTENTION_TILE of the sample; a masked element adds an exact zero: these have the same bits however tokens
 * are cut into blocks. Gradients of queries are sums over the keys of a block, in tiles from its first key on.
 *
 * Dao, Fu, Ermon, Rudra, Re: FlashAttention (NeurIPS 2022), sections 3.1 and B. Many blocks do not add to the gradient
 * of one query: each slice of keys has a partial sum, and these are added in the order of keys. */
#ifndef FORKTASK_ATTENTION_LOOPS_H
#define FORKTASK_ATTENTION_LOOPS_H

#include <stddef.h>

#define ATTENTION_TILE 64
#define ATTENTION_CHUNK \
    256 /* tokens of a block whose results are summed side by side: each packed tile serves them all */

/* Floats of scratch memory for heads of `size` features, for any instruction set: three packed chunks and two results of
 * a chunk, two packed tiles and a result of a tile, two tiles of scores, and numbers by token. */
#define ATTENTION_WIDTH(SIZE) (((SIZE) + 31) / 32 * 32)
#define ATTENTION_FLOATS(SIZE)                                                                                  \
    (ATTENTION_WIDTH(SIZE) * (3 * ATTENTION_TILE + 5 * ATTENTION_CHUNK) + 2 * ATTENTION_TILE * ATTENTION_TILE + \
     17 * ATTENTION_CHUNK)

/* Pointers are to the sample's first token, of one head; `row` and `qkv_row` are strides of tokens. */
typedef struct AttentionTask {
    const float *q, *k, *v;
    const float *gradient; /* of o */
    float *o;              /* written forward, read backward */
    float *logsumexp;      /* by token */
    float *dq, *dk, *dv;   /* dq: of the block's keys alone, for all queries that see one */
    ptrdiff_t row, qkv_row, dq_row;
    int size, sequence, causal; /* features of a head, tokens of the sample; causal: i sees j <= i */
    int start, stop;            /* tokens of the block: queries forward, keys backward */
    float *scratch;             /* ATTENTION_FLOATS(size) */
} AttentionTask;

typedef struct AttentionLoops {
    void (*forward)(const AttentionTask *task);
    void (*backward)(const AttentionTask *task);
    /* out += in, for rows with strides */
    void (*add_part)(const float *in, ptrdiff_t in_row, int rows, int columns, float *out, ptrdiff_t out_row);
} AttentionLoops;

#endif
