/* Test kernel: hashes what it reads into what it writes, so that a missed, doubled or misplaced execution shows.
 * operand 0: cells (uint64); operand 1: trace (uint64), declared by no access: for each task a sum over its instances,
 * then for each task a chain over its instances, which shows those of one task that overlap or come out of order.
 * bounds: task number, then three ranges of cells: read, written, updated (start, stop each).
 * integers: work (hash steps), fail_iteration, fail_task. */
#include "block_kernel.h"

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
