/* A team of plain threads that run one job at a time, each thread once.
 *
 * Between jobs the threads look for a new one for a bounded time, then sleep on a futex. The thread that starts a job
 * does not take part: it waits, and is free to poll for signals.
 *
 * Who writes: `epoch`, `job`, `argument`, `closing`: the caller, between jobs. `running`: set by the caller, counted
 * down by the threads; the one that brings it to zero wakes the caller.
 */
#ifndef FORKTASK_TEAM_H
#define FORKTASK_TEAM_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "atomics.h"
#include "cython_src/kernels/interface/block_kernel.h"
#include "idle.h"

typedef void (*TeamJob)(void *argument, int32_t worker);

typedef struct Team {
    atomic_u32 epoch; /* number of jobs started; also the futex the threads sleep on */
    char padding1[FT_PAIR_OF_LINES - sizeof(atomic_u32)];
    atomic_u32 running; /* threads still busy with the job; also the futex the caller sleeps on */
    char padding2[FT_PAIR_OF_LINES - sizeof(atomic_u32)];
    TeamJob job;
    void *argument;
    int32_t closing;
    int32_t num_threads;
    int64_t spin_ns;
    int real_time; /* threads under a real-time policy: the caller, of the same priority, gets a CPU only if one yields */
    pthread_t *threads;
    struct TeamThread *arguments;
} Team;

typedef struct TeamThread {
    Team *team;
    int32_t worker;
    int32_t cpu; /* -1: not pinned */
} TeamThread;

static void *team_main(void *argument)
{
    TeamThread *self = argument;
    Team *team = self->team;
    uint32_t seen = 0;
    forktask_flush_denormals();
    for (;;) {
        int64_t start = 0;
        for (int i = 1;; i++) {
            /* acquire: pairs with the release in team_start(); job and argument are visible */
            if (ft_load(&team->epoch, acquire) != seen)
                break;
            ft_pause();
            if (i % 64 == 0) {
                int64_t now = forktask_now_ns();
                if (start == 0)
                    start = now;
                else if (now - start > team->spin_ns)
                    ft_futex_wait(&team->epoch, seen, -1);
                else if (team->real_time)
                    sched_yield();
            }
        }
        seen++;
        if (team->closing)
            return NULL;
        team->job(team->argument, self->worker);
        /* release: pairs with the acquire in team_wait(); acquire keeps the chain of all threads' releases */
        if (ft_sub(&team->running, 1, acq_rel) == 1)
            ft_futex_wake(&team->running, 1);
    }
}

/* Caller only: start a job on all threads. */
static void team_start(Team *team, TeamJob job, void *argument)
{
    team->job = job;
    team->argument = argument;
    ft_store(&team->running, (uint32_t)team->num_threads, relaxed);
    ft_add(&team->epoch, 1, release); /* pairs with the acquire in team_main() */
    ft_futex_wake(&team->epoch, team->num_threads);
}

/* Caller only: wait at most timeout_ns for the end of the job. Returns 1 when it has ended. */
static int team_wait(Team *team, int64_t timeout_ns)
{
    uint32_t running = ft_load(&team->running, acquire); /* pairs with the release in team_main() */
    if (running == 0)
        return 1;
    ft_futex_wait(&team->running, running, timeout_ns);
    return ft_load(&team->running, acquire) == 0;
}

/* Any thread, for reports: what a worker has noted. */
static inline int64_t load_i64(atomic_i64 *p)
{
    return ft_load(p, relaxed);
}

static inline int32_t load_i32(atomic_i32 *p)
{
    return ft_load(p, acquire);
}

static inline uint32_t load_u32(atomic_u32 *p)
{
    return ft_load(p, relaxed);
}

/* Caller only, between jobs: end the threads. */
static void team_close(Team *team)
{
    if (team->num_threads > 0) {
        team->closing = 1;
        ft_add(&team->epoch, 1, release);
        ft_futex_wake(&team->epoch, team->num_threads);
        for (int32_t w = 0; w < team->num_threads; w++)
            pthread_join(team->threads[w], NULL);
        team->num_threads = 0;
    }
    free(team->threads);
    free(team->arguments);
    team->threads = NULL;
    team->arguments = NULL;
}

/* Start the threads; cpus: one logical CPU for each, or NULL. Returns 0, or an errno (then no thread is left). */
static int team_open(Team *team, int32_t num_threads, const int32_t *cpus, int64_t spin_ns)
{
    int error = 0;
    memset(team, 0, sizeof(*team));
    team->spin_ns = spin_ns;
    int policy = sched_getscheduler(0); /* the threads inherit it */
    team->real_time = policy == SCHED_FIFO || policy == SCHED_RR;
    team->threads = calloc((size_t)num_threads, sizeof(pthread_t));
    team->arguments = calloc((size_t)num_threads, sizeof(TeamThread));
    if (team->threads == NULL || team->arguments == NULL)
        error = ENOMEM;
    /* The caller handles signals: it polls for them. Faults stay with the thread that caused them. */
    sigset_t mask, former;
    sigfillset(&mask);
    sigdelset(&mask, SIGSEGV);
    sigdelset(&mask, SIGBUS);
    sigdelset(&mask, SIGFPE);
    sigdelset(&mask, SIGILL);
    sigdelset(&mask, SIGABRT);
    pthread_sigmask(SIG_SETMASK, &mask, &former);
    for (int32_t w = 0; w < num_threads && error == 0; w++) {
        pthread_attr_t attributes;
        team->arguments[w].team = team;
        team->arguments[w].worker = w;
        team->arguments[w].cpu = cpus != NULL ? cpus[w] : -1;
        error = pthread_attr_init(&attributes);
        if (error)
            break;
        /* Python callables run on these threads too: leave them the interpreter's usual stack. */
        pthread_attr_setstacksize(&attributes, (size_t)8 << 20);
        if (cpus != NULL) {
            size_t size = CPU_ALLOC_SIZE(cpus[w] + 1);
            cpu_set_t *set = CPU_ALLOC(cpus[w] + 1);
            if (set == NULL) {
                error = ENOMEM;
            } else {
                CPU_ZERO_S(size, set);
                CPU_SET_S(cpus[w], size, set);
                error = pthread_attr_setaffinity_np(&attributes, size, set);
                CPU_FREE(set);
            }
        }
        if (error == 0)
            error = pthread_create(&team->threads[w], &attributes, team_main, &team->arguments[w]);
        pthread_attr_destroy(&attributes);
        if (error == 0)
            team->num_threads++;
    }
    pthread_sigmask(SIG_SETMASK, &former, NULL);
    if (error)
        team_close(team);
    return error;
}

#endif
