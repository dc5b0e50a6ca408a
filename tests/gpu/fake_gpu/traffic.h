/* Counts the memory that emulated CUDA blocks touch. The compiler, told to look for data races, calls a function at each
 * access to memory; those here take the place of its library's. */
#ifndef FORKTASK_TRAFFIC_H
#define FORKTASK_TRAFFIC_H

#include "emulation.h"

#define UNWATCHED __attribute__((no_sanitize("thread")))

enum { SECTOR_BYTES = 32, READS = 0, WRITES = 1 };

static uintptr_t memory_start, memory_bytes; /* of the device */
static uint32_t *last_block[2];              /* by sector: the last CUDA block that read or wrote there */
static uint32_t block_number;
static unsigned long long sectors[2];         /* that CUDA blocks read and wrote, each block each sector once */
static uintptr_t last_read[EMULATED_THREADS]; /* by thread: a sector */
static unsigned long long thread_reads[EMULATED_THREADS]; /* of another sector than the thread's last */

UNWATCHED static inline void touch(int way, const void *at, size_t bytes)
{
    const uintptr_t place = (uintptr_t)at - memory_start;
    if (place >= memory_bytes)
        return;
    if (way == READS) {
        thread_reads[threadIdx.x] += last_read[threadIdx.x] != place / SECTOR_BYTES;
        last_read[threadIdx.x] = place / SECTOR_BYTES;
    }
    for (uintptr_t sector = place / SECTOR_BYTES; sector <= (place + bytes - 1) / SECTOR_BYTES; sector++) {
        sectors[way] += last_block[way][sector] != block_number;
        last_block[way][sector] = block_number;
    }
}

#define WATCH(name, way, bytes)              \
    extern "C" UNWATCHED void name(void *at) \
    {                                        \
        touch(way, at, bytes);               \
    }
#define WATCH_SIZE(bytes)                             \
    WATCH(__tsan_read##bytes, READS, bytes)           \
    WATCH(__tsan_write##bytes, WRITES, bytes)         \
    WATCH(__tsan_unaligned_read##bytes, READS, bytes) \
    WATCH(__tsan_unaligned_write##bytes, WRITES, bytes)
WATCH_SIZE(1)
WATCH_SIZE(2)
WATCH_SIZE(4)
WATCH_SIZE(8)
WATCH_SIZE(16)

extern "C" UNWATCHED void __tsan_read_range(void *at, size_t bytes)
{
    touch(READS, at, bytes);
}

extern "C" UNWATCHED void __tsan_write_range(void *at, size_t bytes)
{
    touch(WRITES, at, bytes);
}

extern "C" void __tsan_init()
{
}

extern "C" UNWATCHED void watch(uintptr_t start, uintptr_t bytes, uint32_t *readers, uint32_t *writers)
{
    memory_start = start;
    memory_bytes = bytes;
    last_block[READS] = readers;
    last_block[WRITES] = writers;
}

/* Run up to `most` groups of `parts` CUDA blocks of a launch, evenly among all: `counts` gets the sectors that these read and
 * wrote, the numbers that they copied to shared memory ahead of time, how many groups they are, and the most reads of a
 * thread. */
extern "C" int count(void (*kernel)(const void *), const void *args, unsigned tiles, unsigned rows,
                     unsigned shared_bytes, unsigned parts, unsigned most, unsigned long long *counts)
{
    int status = begin_launch(kernel, args, tiles, rows, shared_bytes, 0);
    const unsigned groups = tiles * rows / parts, taken = min(groups, most);
    sectors[READS] = sectors[WRITES] = copied_numbers = counts[4] = 0;
    for (unsigned i = 0; i < taken * parts && status == EMULATION_OK; i++) {
        const unsigned group = (unsigned)((unsigned long long)(i / parts) * groups / taken);
        block_number++;
        std::fill_n(thread_reads, EMULATED_THREADS, 0);
        std::fill_n(last_read, EMULATED_THREADS, UINTPTR_MAX);
        status = run_block_number(group * parts + i % parts, shared_bytes);
        counts[4] = max(counts[4], *std::max_element(thread_reads, thread_reads + EMULATED_THREADS));
    }
    counts[0] = sectors[READS];
    counts[1] = sectors[WRITES];
    counts[2] = copied_numbers;
    counts[3] = taken;
    return status;
}

#endif
