// The deque, the sleep protocol and the counters of replay under Relacy, from the very headers of the runtime.
//     c++ -DFORKTASK_RELACY -I tasking -I tests/tasking/native model_check.cpp && ./a.out NAME ITERATIONS
// -DORDER_X=relaxed (and the like) weakens one ordering: then the check must fail.
#include <cstdint>
#include <cstring>
#include <cstdlib>
#include <iostream>

#include "deque.h"
#include "idle.h"

// Owner and two thieves over three items in a deque of four slots: each item once, with what was written before its push.
struct deque_test : rl::test_suite<deque_test, 3> {
    Deque deque;
    atomic_i32 slots[4];
    rl::var<int> data[4];
    atomic_i32 taken[4];

    void before()
    {
        deque.slots = slots;
        deque.mask = 3;
        for (int i = 0; i < 4; i++) {
            slots[i].store(-1, rl::mo_relaxed, $);
            data[i]($) = 0;
            taken[i].store(0, rl::mo_relaxed, $);
        }
        deque_reset(&deque);
    }

    void got(int32_t item)
    {
        if (item < 0)
            return;
        RL_ASSERT(data[item]($) == item + 10);
        RL_ASSERT(taken[item].fetch_add(1, rl::mo_relaxed, $) == 0);
    }

    void push(int32_t item)
    {
        data[item]($) = item + 10;
        deque_push(&deque, item);
    }

    void thread(unsigned index)
    {
        if (index == 0) {
            push(0);
            push(1);
            got(deque_take(&deque));
            push(2);
            got(deque_take(&deque));
            got(deque_take(&deque));
            push(3);
            got(deque_take(&deque));
        } else {
            got(deque_steal(&deque));
            got(deque_steal(&deque));
        }
    }

    void after()
    {
        for (int32_t item; (item = deque_take(&deque)) >= 0;)
            got(item);
        for (int i = 0; i < 4; i++)
            RL_ASSERT(taken[i].load(rl::mo_relaxed, $) == 1);
    }
};

// Two workers that sleep until their work is there, two wakers that publish it (each for one worker) and wake all that sleep.
struct idle_test : rl::test_suite<idle_test, 4> {
    Idle idle;
    IdleWorker words[2];
    atomic_i32 work[2];

    void before()
    {
        idle.workers = words;
        idle.num_workers = 2;
        idle.has_membarrier = 0;
        idle.num_announced.store(0, rl::mo_relaxed, $);
        for (int w = 0; w < 2; w++) {
            words[w].word.store(WORKER_AWAKE, rl::mo_relaxed, $);
            work[w].store(0, rl::mo_relaxed, $);
        }
    }

    void thread(unsigned index)
    {
        if (index < 2) {
            for (;;) {
                if (work[index].load(rl::mo_acquire, $))
                    return;
                idle_announce(&idle, (int32_t)index);
                if (work[index].load(rl::mo_acquire, $)) {
                    idle_cancel(&idle, (int32_t)index);
                    return;
                }
                idle_sleep(&idle, (int32_t)index, -1);
            }
        } else {
            work[index - 2].store(1, rl::mo_release, $);
            idle_notify_all(&idle);
        }
    }

    void after()
    {
        RL_ASSERT(idle.num_announced.load(rl::mo_relaxed, $) == 0);
    }
};

// One waker hands over data that only the wake-up itself orders: publishing is relaxed.
struct wake_test : rl::test_suite<wake_test, 2> {
    Idle idle;
    IdleWorker words[1];
    rl::var<int> data;

    void before()
    {
        idle.workers = words;
        idle.num_workers = 1;
        idle.has_membarrier = 0;
        idle.num_announced.store(0, rl::mo_relaxed, $);
        words[0].word.store(WORKER_AWAKE, rl::mo_relaxed, $);
        data($) = 0;
    }

    void thread(unsigned index)
    {
        if (index == 0) {
            idle_announce(&idle, 0);
            idle_sleep(&idle, 0, -1);
            RL_ASSERT(data($) == 1);
        } else {
            data($) = 1;
            while (!(idle_anyone(&idle) && idle_notify_worker(&idle, 0)))
                rl::yield(1, $);
        }
    }
};

template <class Test>
static int simulate(const char *name, long iterations)
{
    rl::test_params params;
    std::ostream nowhere(nullptr); // a stream that allocates would do so on the checker's own stacks
    params.iteration_count = (rl::iteration_t)iterations;
    params.output_stream = &nowhere;
    params.progress_stream = &nowhere;
    params.search_type = rl::sched_random;
    params.execution_depth_limit = 4000;
    bool good = rl::simulate<Test>(params);
    std::cout << name << ": " << (good ? "ok" : rl::test_result_str(params.test_result)) << " after "
              << params.stop_iteration << " executions" << std::endl;
    return good ? 0 : 3;
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    long iterations = std::atol(argv[2]);
    if (!std::strcmp(argv[1], "deque"))
        return simulate<deque_test>("deque", iterations);
    if (!std::strcmp(argv[1], "idle"))
        return simulate<idle_test>("idle", iterations);
    if (!std::strcmp(argv[1], "wake"))
        return simulate<wake_test>("wake", iterations);
    return 2;
}
