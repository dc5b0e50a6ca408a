/* Runs CUDA sources on the CPU, one CUDA block after the other, its threads as coroutines.
 *
 * Blocks and threads start in an order drawn from a seed, and after each barrier threads go on in another one: a missing
 * barrier or a sum whose order is left to chance gives results that depend on the seed. Shared memory holds NaN at the
 * start of each CUDA block. Found and reported: a barrier that some threads miss or that differs between threads,
 * writes past the shared memory that the launch asked for, and copies of 16 bytes from or to other than their multiples.
 * Tensor cores take what the 32 threads of a warp have; warps do not wait for one another there.
 */
#ifndef FORKTASK_EMULATION_H
#define FORKTASK_EMULATION_H

#include <csetjmp>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <algorithm>
#include <deque>
#include <ucontext.h>
#include <vector>

#define FORKTASK_EMULATED
#define __device__
#define __global__
#define __forceinline__ inline
#define __shared__      static
#define ENTRY(name, spec, body)                \
    extern "C" void name(const spec##_args &a) \
    {                                          \
        body;                                  \
    }

using std::isfinite;
using std::max;
using std::min;

struct float2 {
    float x, y;
};

struct alignas(16) float4 {
    float x, y, z, w;
};

struct Index {
    unsigned x, y, z;
};
static Index threadIdx, blockIdx, gridDim;

enum {
    EMULATED_THREADS = 128,
    WARP = 32,
    WARPS = EMULATED_THREADS / WARP,
    STACK_BYTES = 64 << 10,
    SHARED_FLOATS = 16 << 10
};
enum { EMULATION_OK, MISSED_BARRIER, DIFFERENT_BARRIERS, SHARED_OVERFLOW, MISALIGNED };

alignas(16) static float shared[SHARED_FLOATS];

static inline unsigned long long atomicMin(unsigned long long *at, unsigned long long value)
{
    const unsigned long long former = *at;
    *at = min(former, value);
    return former;
}

static inline int atomicAdd(int *at, int value)
{
    *at += value;
    return *at - value;
}

static inline void __threadfence()
{
}

static inline float __ldcg(const float *at)
{
    return *at;
}

static inline long long now_ns()
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static inline int __ffs(int bits)
{
    return __builtin_ffs(bits);
}

/* A stack that runs threads of a CUDA block until one of them waits at a barrier. */
struct Fiber {
    jmp_buf state;
    ucontext_t first;
    int waits_at_line; /* of the source; 0: not at a barrier; below 0: for its warp */
    unsigned thread;
    bool started;
    char stack[STACK_BYTES];
};

static Fiber *fibers;
static Fiber *current;
static jmp_buf scheduler;
static unsigned order[EMULATED_THREADS], next_thread, finished;
static void (*run_thread)(const void *);
static const void *run_args;
static unsigned long long random_state;

static inline unsigned draw(unsigned below)
{
    random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
    return (unsigned)((random_state >> 33) % below);
}

static void shuffle(unsigned *numbers, unsigned count)
{
    for (unsigned i = count; i > 1; i--)
        std::swap(numbers[i - 1], numbers[draw(i)]);
}

/* Copies to shared memory that a thread has started; until it waits for their group NaN lies there. */
struct Copy {
    float *to;
    const float *from; /* NULL: zeros */
    int count;
};
static std::vector<Copy> started[EMULATED_THREADS]; /* by fiber */
static std::deque<std::vector<Copy>> groups[EMULATED_THREADS];
static bool misaligned;

static void fiber_main()
{
    for (;;) {
        while (next_thread < EMULATED_THREADS) {
            current->thread = threadIdx.x = order[next_thread++];
            started[current - fibers].clear();
            groups[current - fibers].clear();
            run_thread(run_args);
            finished++;
        }
        if (!_setjmp(current->state))
            _longjmp(scheduler, 1);
    }
}

static void barrier(int line)
{
    Fiber *const self = current;
    self->waits_at_line = line;
    if (!_setjmp(self->state))
        _longjmp(scheduler, 1);
    self->waits_at_line = 0;
    threadIdx.x = self->thread;
}
#define __syncthreads() barrier(__LINE__)

extern "C" unsigned long long copied_numbers; /* to shared memory, ahead of time */
unsigned long long copied_numbers;

template <int COUNT>
static inline void start_copy(float *to, const float *from, long long at)
{
    copied_numbers += COUNT;
    const uintptr_t address = (uintptr_t)from + sizeof(float) * (uintptr_t)at; /* of what is not read too */
    misaligned |= ((uintptr_t)to | address) % (COUNT * sizeof(float)) != 0;
    memset((void *)to, 0xff, COUNT * sizeof(float));
    started[current - fibers].push_back({to, at < 0 ? nullptr : from + at, COUNT});
}

static inline void commit_copies()
{
    groups[current - fibers].emplace_back();
    groups[current - fibers].back().swap(started[current - fibers]);
}

template <int COUNT>
static inline void await_copies()
{
    for (auto &mine = groups[current - fibers]; mine.size() > COUNT; mine.pop_front())
        for (const Copy &copy : mine.front())
            for (int i = 0; i < copy.count; i++)
                copy.to[i] = copy.from ? copy.from[i] : 0;
}

/* What the lanes of a warp give, once all have come. Two buffers take turns: the next exchange leaves alone what others
 * still read. */
static unsigned exchanges[EMULATED_THREADS];

template <typename T>
static const T *exchange(const T &mine)
{
    static T given[2][WARPS][WARP];
    const unsigned warp = threadIdx.x / WARP, turn = exchanges[threadIdx.x]++ % 2;
    given[turn][warp][threadIdx.x % WARP] = mine;
    barrier(-__LINE__);
    return given[turn][warp];
}

/* ldmatrix.x4: lanes give the addresses of 8 rows of 16 bytes for each of four matrices. A matrix is read at once where
 * its rows lie in different banks. */
extern "C" unsigned long long bank_conflicts;
unsigned long long bank_conflicts;

static void load_matrices(const float *row, float (&v)[4])
{
    const unsigned lane = threadIdx.x % WARP;
    const float *const *rows = exchange(row);
    misaligned |= (uintptr_t)row % 16 != 0;
    for (unsigned n = 0; n < 4; n++)
        v[n] = rows[8 * n + lane / 4][lane % 4];
    for (unsigned a = 0; a < lane % 8; a++)
        bank_conflicts += (rows[lane] - rows[lane / 8 * 8 + a]) % 32 == 0;
}

static inline float __uint_as_float(unsigned bits)
{
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

/* cvt.rna.tf32.f32: 10 bits of mantissa, ties away from zero. */
static inline unsigned to_tf32(float x)
{
    unsigned bits;
    memcpy(&bits, &x, sizeof(bits));
    return isfinite(x) ? (bits + 0x1000) & ~0x1fffu : bits & ~0x1fffu;
}

/* mma.sync.m16n8k8 for TF32: reads the upper 19 bits of its factors; of the sum of exact products what float32 can hold
 * is kept, rounded towards zero as tensor cores do (Fasi, Higham, Mikaitis, Pranesh, PeerJ CS 2021, section 4). */
struct Factors {
    unsigned left[4], right[2];
};

static void multiply_piece(const unsigned (&l)[4], unsigned r0, unsigned r1, float *sum)
{
    const unsigned lane = threadIdx.x % WARP;
    const Factors *const warp = exchange(Factors{{l[0], l[1], l[2], l[3]}, {r0, r1}});
    for (unsigned c = 0; c < 4; c++) {
        double exact = sum[c];
        for (unsigned k = 0; k < 8; k++)
            exact += (double)__uint_as_float(warp[lane / 4 * 4 + k % 4].left[c / 2 + k / 4 * 2] & ~0x1fffu) *
                     __uint_as_float(warp[(lane % 4 * 2 + c % 2) * 4 + k % 4].right[k / 4] & ~0x1fffu);
        const float nearest = (float)exact;
        sum[c] = std::fabs((double)nearest) > std::fabs(exact) ? nextafterf(nearest, 0) : nearest;
    }
}

static void resume(Fiber *fiber)
{
    current = fiber;
    if (_setjmp(scheduler))
        return;
    if (fiber->started)
        _longjmp(fiber->state, 1);
    fiber->started = true;
    setcontext(&fiber->first);
}

static int run_cuda_block()
{
    for (unsigned i = 0; i < EMULATED_THREADS; i++)
        order[i] = i;
    shuffle(order, EMULATED_THREADS);
    memset(exchanges, 0, sizeof(exchanges));
    next_thread = finished = 0;
    while (next_thread < EMULATED_THREADS) {
        Fiber *idle = fibers;
        while (idle->waits_at_line)
            idle++;
        resume(idle);
    }
    while (finished < EMULATED_THREADS) {
        unsigned waiting[EMULATED_THREADS], count = 0, in_warp[WARPS] = {}, ready = draw(WARPS);
        for (unsigned i = 0; i < EMULATED_THREADS; i++)
            in_warp[fibers[i].thread / WARP] += fibers[i].waits_at_line < 0;
        for (unsigned i = 0; i < WARPS && in_warp[ready] < WARP; i++)
            ready = (ready + 1) % WARPS;
        const bool one_warp = in_warp[ready] == WARP;
        for (unsigned i = 0; i < EMULATED_THREADS; i++)
            if (fibers[i].waits_at_line && (!one_warp || fibers[i].thread / WARP == ready))
                waiting[count++] = i;
        if (!one_warp && count < EMULATED_THREADS)
            return MISSED_BARRIER;
        for (unsigned i = 1; i < count; i++)
            if (fibers[waiting[i]].waits_at_line != fibers[waiting[0]].waits_at_line)
                return DIFFERENT_BARRIERS;
        shuffle(waiting, count);
        for (unsigned i = 0; i < count; i++)
            resume(&fibers[waiting[i]]);
    }
    return EMULATION_OK;
}

/* Fibers serve launch after launch: each goes on where it returned to the scheduler. */
static void make_fibers()
{
    fibers = (Fiber *)calloc(EMULATED_THREADS, sizeof(Fiber));
    for (unsigned i = 0; i < EMULATED_THREADS; i++) {
        getcontext(&fibers[i].first);
        fibers[i].first.uc_stack.ss_sp = fibers[i].stack;
        fibers[i].first.uc_stack.ss_size = STACK_BYTES;
        fibers[i].first.uc_link = nullptr;
        makecontext(&fibers[i].first, fiber_main, 0);
    }
}

static int begin_launch(void (*kernel)(const void *), const void *args, unsigned tiles, unsigned rows,
                        unsigned shared_bytes, unsigned long long seed)
{
    random_state = seed * 2862933555777941757ull + 3037000493ull;
    run_thread = kernel;
    run_args = args;
    gridDim = {tiles, rows, 1};
    if (!fibers)
        make_fibers();
    return shared_bytes > sizeof(shared) ? SHARED_OVERFLOW : EMULATION_OK;
}

static int run_block_number(unsigned block, unsigned shared_bytes)
{
    blockIdx = {block % gridDim.x, block / gridDim.x, 0};
    memset(shared, 0xff, shared_bytes);
    memset((char *)shared + shared_bytes, 0x55, sizeof(shared) - shared_bytes);
    const int status = run_cuda_block();
    const char *rest = (const char *)shared + shared_bytes, *end = (const char *)shared + sizeof(shared);
    if (misaligned)
        return MISALIGNED;
    return rest < end && (*rest != 0x55 || memcmp(rest, rest + 1, end - rest - 1)) ? SHARED_OVERFLOW : status;
}

/* Launch a kernel: tiles x rows CUDA blocks of 128 threads. */
extern "C" int emulate(void (*kernel)(const void *), const void *args, unsigned tiles, unsigned rows,
                       unsigned shared_bytes, unsigned long long seed)
{
    int status = begin_launch(kernel, args, tiles, rows, shared_bytes, seed);
    const unsigned total = tiles * rows, start = draw(total);
    for (unsigned i = 0; i < total && status == EMULATION_OK; i++) {
        const unsigned number = (start + i) % total; /* another first block, and half of the time backwards */
        status = run_block_number(seed % 2 ? total - 1 - number : number, shared_bytes);
    }
    misaligned = false;
    if (status != EMULATION_OK) { /* some wait at a barrier for ever */
        free(fibers);
        fibers = nullptr;
    }
    return status;
}

#endif
