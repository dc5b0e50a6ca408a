/* Test kernel: hashes what it reads into what it writes, so that a missed, doubled or misplaced execution shows.
 * operand 0: cells (uint64); operand 1: trace (uint64), declared by no access: for each task a sum over its instances,
 * then for each task a chain over its instances, which shows those of one task that overlap or come out of order.
 * bounds: task number, then three ranges of cells: read, written, updated (start, stop each).
 * integers: work (hash steps), fail_iteration, fail_task. */
#include "cython_src/kernels/interface/block_kernel.h"

static inline uint64_t mix(uint64_t h, uint64_t v)
{
    h = (h ^ v) * 0x9E3779B97F4A7C15ull;
    return h ^ (h >> 29);
}

int hash_block(const void *record, ptrdiff_t block, const TaskContext *context)
{
    const KernelArgs *a = record;
    uint64_t *cells = a->operand[0], *trace = a->operand[1];
    const int32_t *b = a->bounds + block * a->bounds_width;
    uint64_t h = mix((uint64_t)b[0], (uint64_t)context->iteration);
    if (context->iteration == a->integers[1] && b[0] == a->integers[2])
        return 7;
    for (int32_t i = b[1]; i < b[2]; i++)
        h = mix(h, cells[i]);
    for (int32_t i = b[5]; i < b[6]; i++)
        h = mix(h, cells[i]);
    for (int64_t k = 0; k < a->integers[0]; k++)
        h = mix(h, 1);
    for (int32_t i = b[3]; i < b[4]; i++)
        cells[i] = mix(h, (uint64_t)i);
    for (int32_t i = b[5]; i < b[6]; i++)
        cells[i] = mix(h, (uint64_t)i);
    __atomic_fetch_add(&trace[2 * b[0]], h, __ATOMIC_RELAXED);
    trace[2 * b[0] + 1] = mix(trace[2 * b[0] + 1], h);
    return 0;
}

/* All access kinds. operands: cells, folds, trace. bounds: task number, then ranges of cells: read, written, updated,
 * concurrent (added to atomically), commutative (added to, with time between load and store); then ranges of folds: read,
 * updated, reduced (added to). What is added depends on nothing that is added to at the same time. */
int kinds_block(const void *record, ptrdiff_t block, const TaskContext *context)
{
    const KernelArgs *a = record;
    uint64_t *cells = a->operand[0], *folds = a->operand[1], *trace = a->operand[2];
    const int32_t *b = a->bounds + block * a->bounds_width;
    uint64_t h = mix((uint64_t)b[0], (uint64_t)context->iteration);
    for (int32_t i = b[1]; i < b[2]; i++)
        h = mix(h, cells[i]);
    for (int32_t i = b[5]; i < b[6]; i++)
        h = mix(h, cells[i]);
    for (int32_t i = b[11]; i < b[12]; i++)
        h = mix(h, folds[i]);
    for (int32_t i = b[13]; i < b[14]; i++)
        h = mix(h, folds[i]);
    for (int32_t i = b[3]; i < b[4]; i++)
        cells[i] = mix(h, (uint64_t)i);
    for (int32_t i = b[5]; i < b[6]; i++)
        cells[i] = mix(h, (uint64_t)i);
    for (int32_t i = b[7]; i < b[8]; i++)
        __atomic_fetch_add(&cells[i], mix(h, (uint64_t)i), __ATOMIC_RELAXED);
    for (int32_t i = b[9]; i < b[10]; i++) {
        uint64_t value = *(volatile uint64_t *)&cells[i];
        for (int64_t k = 0; k < a->integers[0]; k++)
            h = *(volatile uint64_t *)&h;
        cells[i] = value + mix(h, (uint64_t)i);
    }
    for (int32_t i = b[13]; i < b[14]; i++)
        folds[i] = mix(h, (uint64_t)i);
    for (int32_t i = b[15]; i < b[16]; i++)
        folds[i] += mix(h, (uint64_t)i);
    __atomic_fetch_add(&trace[b[0]], h, __ATOMIC_RELAXED);
    return 0;
}

/* out[b0:b1] from in[b2:b3] and the iteration; operands out, in. */
int copy_block(const void *record, ptrdiff_t block, const TaskContext *context)
{
    const KernelArgs *a = record;
    uint64_t *out = a->operand[0];
    const uint64_t *in = a->operand[1];
    const int32_t *b = a->bounds + block * a->bounds_width;
    uint64_t h = mix(17, (uint64_t)context->iteration);
    for (int32_t i = b[2]; i < b[3]; i++)
        h = mix(h, in[i]);
    for (int32_t i = b[0]; i < b[1]; i++)
        out[i] = mix(h, (uint64_t)i);
    return 0;
}
