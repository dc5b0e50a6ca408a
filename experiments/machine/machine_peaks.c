#define _GNU_SOURCE
#include "machine_peaks.h"

#include "cython_src/kernels/interface/block_kernel.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#define NUM_CHAINS  12   /* two pipes x latency 4 need 8; 12 + 2 constants still fit 16 registers */
#define FMA_STEPS   4096 /* a few microseconds between two readings of the clock */
#define CHAIN_STEPS 16384
#define SLICE_BYTES 65536 /* of each array between two readings of the clock */

typedef float vec4 __attribute__((vector_size(16), aligned(4), may_alias));
typedef float vec8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef float vec16 __attribute__((vector_size(64), aligned(4), may_alias));

/* The empty asm statements make the chains' values unknown to the compiler in each step: it can neither fold
 * steps together nor drop them, and must keep all twelve chains in registers. Without -ffast-math it may not
 * reorder them. */
#if defined(__x86_64__)
#define KEEP_XMM(x) __asm__ volatile("" : "+x"(x));
#define KEEP_ZMM(x) __asm__ volatile("" : "+v"(x));
#elif defined(__aarch64__)
#define KEEP_XMM(x) __asm__ volatile("" : "+w"(x));
#else
#define KEEP_XMM(x) __asm__ volatile("" : "+m"(x));
#endif

#define EACH_CHAIN(DO) DO(x0) DO(x1) DO(x2) DO(x3) DO(x4) DO(x5) DO(x6) DO(x7) DO(x8) DO(x9) DO(x10) DO(x11)
#define ADVANCE(x)     x = x * a + b;

#define DEFINE_LOOPS(NAME, ATTRIBUTE, VEC, KEEP)                                                         \
    ATTRIBUTE static double fma_##NAME(void)                                                             \
    {                                                                                                    \
        const int lanes = sizeof(VEC) / sizeof(float);                                                   \
        VEC zero = {0};                                                                                  \
        VEC a = zero + 0.999f, b = zero + 0.001f; /* x -> 0.999 x + 0.001 stays near 1 */                \
        VEC x0 = zero, x1 = zero, x2 = zero, x3 = zero, x4 = zero, x5 = zero;                            \
        VEC x6 = zero, x7 = zero, x8 = zero, x9 = zero, x10 = zero, x11 = zero;                          \
        KEEP(a)                                                                                          \
        KEEP(b)                                                                                          \
        for (int i = 0; i < FMA_STEPS; i++) {                                                            \
            EACH_CHAIN(ADVANCE)                                                                          \
            EACH_CHAIN(KEEP)                                                                             \
        }                                                                                                \
        return 2.0 * lanes * NUM_CHAINS * FMA_STEPS;                                                     \
    }                                                                                                    \
    ATTRIBUTE static void triad_##NAME(float *arrays, size_t count, size_t size)                         \
    {                                                                                                    \
        const size_t lanes = sizeof(VEC) / sizeof(float);                                                \
        float *a = arrays;                                                                               \
        const float *b = arrays + size, *c = arrays + 2 * size;                                          \
        VEC s = {0};                                                                                     \
        s += 3.0f;                                                                                       \
        for (size_t i = 0; i < count; i += 2 * lanes) {                                                  \
            *(VEC *)(a + i) = *(const VEC *)(b + i) + s * *(const VEC *)(c + i);                         \
            *(VEC *)(a + i + lanes) = *(const VEC *)(b + i + lanes) + s * *(const VEC *)(c + i + lanes); \
        }                                                                                                \
        __asm__ volatile("" : : "r"(a) : "memory");                                                      \
    }                                                                                                    \
    ATTRIBUTE static void update_##NAME(float *a, size_t count, size_t size)                             \
    {                                                                                                    \
        const size_t lanes = sizeof(VEC) / sizeof(float);                                                \
        VEC s = {0};                                                                                     \
        s += 1.0f;                                                                                       \
        KEEP(s)                                                                                          \
        for (size_t i = 0; i < count; i += 2 * lanes) {                                                  \
            *(VEC *)(a + i) *= s;                                                                        \
            *(VEC *)(a + i + lanes) *= s;                                                                \
        }                                                                                                \
        __asm__ volatile("" : : "r"(a) : "memory");                                                      \
    }

DEFINE_LOOPS(generic, , vec4, KEEP_XMM)
#if defined(__x86_64__)
DEFINE_LOOPS(avx2, __attribute__((target("avx2,fma"))), vec8, KEEP_XMM)
DEFINE_LOOPS(avx512, __attribute__((target("avx512f"))), vec16, KEEP_ZMM)
#endif

typedef double (*FmaLoop)(void);
typedef void (*StreamLoop)(float *arrays, size_t count, size_t size); /* each array has `size` floats */

#define NUM_STREAMS   2 /* PEAKS_TRIAD and PEAKS_UPDATE */
#define STREAMS(NAME) {triad_##NAME, update_##NAME}
static const int arrays_of_stream[NUM_STREAMS] = {3, 1};
static const int moves_of_stream[NUM_STREAMS] = {3, 2}; /* of each element */

#if defined(__x86_64__)
static const FmaLoop fma_loops[PEAKS_NUM_ISAS] = {fma_generic, fma_avx2, fma_avx512};
static const StreamLoop stream_loops[PEAKS_NUM_ISAS][NUM_STREAMS] = {STREAMS(generic), STREAMS(avx2), STREAMS(avx512)};
#else
static const FmaLoop fma_loops[PEAKS_NUM_ISAS] = {fma_generic, NULL, NULL};
static const StreamLoop stream_loops[PEAKS_NUM_ISAS][NUM_STREAMS] = {STREAMS(generic)};
#endif

/* Register plus register: an addition of a constant may be removed at renaming on some CPUs. */
static double integer_chain(void)
{
    uint64_t x = 1, y = 3;
    for (int i = 0; i < CHAIN_STEPS / 16; i++) {
#define ADD4 ADD ADD ADD ADD
#if defined(__x86_64__)
#define ADD "add %1, %0\n\t"
        __asm__ volatile(ADD4 ADD4 ADD4 ADD4 : "+r"(x) : "r"(y) : "cc");
#elif defined(__aarch64__)
#define ADD "add %0, %0, %1\n\t"
        __asm__ volatile(ADD4 ADD4 ADD4 ADD4 : "+r"(x) : "r"(y));
#else
        for (int j = 0; j < 16; j++) {
            x += y;
            __asm__ volatile("" : "+r"(x));
        }
#endif
    }
    return CHAIN_STEPS;
}

/* Eight chains: as many in a cycle as the core issues. */
static double integer_additions(void)
{
    uint64_t x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, y = 3;
    for (int i = 0; i < CHAIN_STEPS / 64; i++) {
#if defined(__x86_64__)
#define ADD8                                                                                             \
    "add %8, %0\n\tadd %8, %1\n\tadd %8, %2\n\tadd %8, %3\n\tadd %8, %4\n\tadd %8, %5\n\tadd %8, %6\n\t" \
    "add %8, %7\n\t"
#elif defined(__aarch64__)
#define ADD8                                                                                     \
    "add %0, %0, %8\n\tadd %1, %1, %8\n\tadd %2, %2, %8\n\tadd %3, %3, %8\n\tadd %4, %4, %8\n\t" \
    "add %5, %5, %8\n\tadd %6, %6, %8\n\tadd %7, %7, %8\n\t"
#endif
#ifdef ADD8
        __asm__ volatile(ADD8 ADD8 ADD8 ADD8 ADD8 ADD8 ADD8 ADD8
                         : "+r"(x[0]), "+r"(x[1]), "+r"(x[2]), "+r"(x[3]), "+r"(x[4]), "+r"(x[5]), "+r"(x[6]),
                           "+r"(x[7])
                         : "r"(y));
#else
        for (int j = 0; j < 64; j++) {
            x[j % 8] += y;
            __asm__ volatile("" : "+r"(x[j % 8]));
        }
#endif
    }
    return CHAIN_STEPS;
}

typedef struct Team {
    int kind, isa, num_threads, num_windows;
    size_t bytes_per_thread;
    double window_s;
    _Alignas(128) atomic_int arrived; /* counts up: threads x barriers passed; on a line of its own */
    atomic_int error;                 /* first errno; every thread leaves at the next barrier */
} Team;

typedef struct Window {
    double units;
    int64_t start_ns, stop_ns;
} Window;

typedef struct Member {
    Team *team;
    int cpu; /* -1: not pinned */
    int started;
    pthread_t thread;
    Window *windows; /* shape (num_windows,) */
} Member;

/* Any thread of the team. barrier_number counts from 1. */
static int team_barrier(Team *team, int barrier_number)
{
    /* acq_rel: pairs with the acquire below in the other threads; what was set up before is seen after */
    atomic_fetch_add_explicit(&team->arrived, 1, memory_order_acq_rel);
    int spins = 0;
    while (atomic_load_explicit(&team->arrived, memory_order_acquire) < barrier_number * team->num_threads) {
        if (atomic_load_explicit(&team->error, memory_order_relaxed)) /* stale is safe: looked at again */
            return 1;
        if (++spins > 1000)
            sched_yield(); /* more threads than CPUs */
    }
    return atomic_load_explicit(&team->error, memory_order_relaxed) != 0;
}

static Window run_window(const Team *team, float *arrays, size_t count, size_t *position)
{
    const int64_t duration = (int64_t)(team->window_s * 1e9);
    double units = 0;
    int64_t start = forktask_now_ns(), now;
    do {
        if (team->kind == PEAKS_FMA) {
            units += fma_loops[team->isa]();
        } else if (team->kind == PEAKS_CHAIN) {
            units += integer_chain();
        } else if (team->kind == PEAKS_ADDS) {
            units += integer_additions();
        } else {
            /* One slice of a large set, or several passes over a small one. */
            const int stream = team->kind - PEAKS_TRIAD;
            size_t done = 0;
            while (done < SLICE_BYTES) {
                size_t n = SLICE_BYTES / sizeof(float);
                if (n > count - *position)
                    n = count - *position;
                stream_loops[team->isa][stream](arrays + *position, n, count);
                *position = *position + n == count ? 0 : *position + n;
                done += n * sizeof(float);
            }
            units += (double)moves_of_stream[stream] * done;
        }
        now = forktask_now_ns();
    } while (now - start < duration);
    return (Window){units, start, now};
}

static void *member_main(void *argument)
{
    Member *member = argument;
    Team *team = member->team;
    float *arrays = NULL;
    size_t count = 0, position = 0;
    int error = 0;
    if (member->cpu >= 0) {
        size_t size = CPU_ALLOC_SIZE(member->cpu + 1);
        cpu_set_t *set = CPU_ALLOC(member->cpu + 1);
        if (set == NULL) {
            error = ENOMEM;
        } else {
            CPU_ZERO_S(size, set);
            CPU_SET_S(member->cpu, size, set);
            error = pthread_setaffinity_np(pthread_self(), size, set);
            CPU_FREE(set);
        }
    }
    forktask_flush_denormals();
    if (!error && team->kind >= PEAKS_TRIAD && team->kind <= PEAKS_UPDATE) {
        /* A whole number of steps of the widest loop, 2 x 16 floats. The extra step keeps the arrays off one another's
         * cache sets. First touch by the thread that will use them. */
        const size_t num_arrays = arrays_of_stream[team->kind - PEAKS_TRIAD], step = 32;
        count = team->bytes_per_thread / num_arrays / (4 * step) * step + step;
        if (posix_memalign((void **)&arrays, 4096, num_arrays * count * sizeof(float)))
            error = ENOMEM;
        else
            for (size_t i = 0; i < num_arrays * count; i++)
                arrays[i] = 1.0f;
    }
    if (error)
        atomic_store_explicit(&team->error, error, memory_order_relaxed);
    for (int w = 0; w < team->num_windows; w++) {
        if (team_barrier(team, w + 1))
            break;
        member->windows[w] = run_window(team, arrays, count, &position);
    }
    free(arrays);
    return NULL;
}

int peaks_run_team(int kind, int isa, int num_threads, const int *cpus, size_t bytes_per_thread, int num_windows,
                   double window_s, double *rates)
{
    Team team = {.kind = kind,
                 .isa = isa,
                 .num_threads = num_threads,
                 .num_windows = num_windows,
                 .bytes_per_thread = bytes_per_thread,
                 .window_s = window_s};
    Member *members = calloc((size_t)num_threads, sizeof(Member));
    Window *windows = calloc((size_t)num_threads * num_windows, sizeof(Window));
    int error = members && windows ? 0 : ENOMEM;
    for (int t = 0; t < num_threads && !error; t++) {
        members[t] = (Member){.team = &team, .cpu = cpus[t], .windows = windows + t * num_windows};
        error = pthread_create(&members[t].thread, NULL, member_main, &members[t]);
        members[t].started = !error;
        if (error)
            atomic_store_explicit(&team.error, error, memory_order_relaxed); /* others leave their barrier */
    }
    for (int t = 0; members && t < num_threads; t++)
        if (members[t].started)
            pthread_join(members[t].thread, NULL);
    if (!error)
        error = atomic_load_explicit(&team.error, memory_order_relaxed);
    for (int w = 0; w < num_windows && !error; w++) {
        /* From the first start to the last stop: threads that share a core run one after the other, and their
         * own rates would each look like a whole core's. */
        Window all = windows[w];
        for (int t = 1; t < num_threads; t++) {
            const Window *one = &windows[t * num_windows + w];
            all.units += one->units;
            all.start_ns = one->start_ns < all.start_ns ? one->start_ns : all.start_ns;
            all.stop_ns = one->stop_ns > all.stop_ns ? one->stop_ns : all.stop_ns;
        }
        rates[w] = all.units * 1e9 / (double)(all.stop_ns - all.start_ns);
    }
    free(members);
    free(windows);
    return error;
}

void peaks_clock(double *cost_ns, double *step_ns)
{
    enum { READINGS = 1000, ROUNDS = 5 };
    double cost = 1e30, step = 1e30;
    for (int r = 0; r < ROUNDS; r++) {
        int64_t first = forktask_now_ns(), last = first;
        for (int i = 0; i < READINGS; i++) {
            int64_t now = forktask_now_ns();
            if (now > last && (double)(now - last) < step)
                step = (double)(now - last);
            last = now;
        }
        if ((double)(last - first) / READINGS < cost)
            cost = (double)(last - first) / READINGS;
    }
    /* A clock so coarse that it never moved in 5000 readings: wait for its next step. */
    if (step == 1e30) {
        int64_t first = forktask_now_ns(), now;
        while ((now = forktask_now_ns()) == first)
            ;
        step = (double)(now - first);
    }
    *cost_ns = cost;
    *step_ns = step;
}
