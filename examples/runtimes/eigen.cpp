/* The graph of an iteration on Eigen's ThreadPool: the last predecessor of a task schedules it. */
#include "forkjoin/outside.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include <unsupported/Eigen/CXX11/ThreadPool>

namespace
{

constexpr auto LOOK_FOR_SIGNALS = std::chrono::milliseconds(20);

struct Session {
    explicit Session(OutsideRun *r)
        : run(r), missing(new std::atomic<int32_t>[r->num_nodes + 1]), pool(r->num_threads, false)
    {
        std::atomic<int> here{0}; /* each thread gets one of these, and keeps it until all are there */
        for (int i = 0; i < run->num_threads; i++)
            pool.Schedule([this, &here] {
                forktask_enter_worker(run, pool.CurrentThreadId());
                for (here++; here < run->num_threads;)
                    std::this_thread::yield();
                entered++;
            });
        while (entered < run->num_threads)
            std::this_thread::yield();
        run->team_size = run->num_threads;
    }

    void execute(int32_t node)
    {
        if (node < run->num_tasks)
            forktask_run_task(run, node, replay, pool.CurrentThreadId(), 0);
        for (int32_t i = run->successor_offsets[node]; i < run->successor_split[node]; i++) {
            const int32_t next = run->successors[i];
            if (--missing[next] == 0)
                pool.Schedule([this, next] { execute(next); });
        }
        if (--left == 0) {
            std::lock_guard<std::mutex> guard(mutex);
            done.notify_one();
        }
    }

    void run_one()
    {
        left = run->num_nodes;
        for (int32_t v = 0; v < run->num_nodes; v++)
            missing[v] = run->num_predecessors[v];
        for (int32_t v = 0; v < run->num_nodes; v++)
            if (run->num_predecessors[v] == 0)
                pool.Schedule([this, v] { execute(v); });
        std::unique_lock<std::mutex> lock(mutex);
        while (!done.wait_for(lock, LOOK_FOR_SIGNALS, [this] { return left == 0; }))
            forktask_poll_waiting(run);
    }

    OutsideRun *run;
    std::unique_ptr<std::atomic<int32_t>[]> missing; /* predecessors that have not ended */
    std::atomic<int32_t> left{0};
    std::atomic<int> entered{0};
    int64_t replay = 0;
    std::mutex mutex;
    std::condition_variable done;
    Eigen::ThreadPool pool; /* ends first */
};

void *prepare(OutsideRun *run, int *error)
{
    try {
        return new Session(run);
    } catch (const std::bad_alloc &) {
        *error = ENOMEM;
        return nullptr;
    }
}

int run(void *session)
{
    Session *s = static_cast<Session *>(session);
    const int64_t stop = s->run->first_replay + s->run->num_replays;
    for (s->replay = s->run->first_replay; s->replay < stop && !forktask_poll_waiting(s->run); s->replay++)
        s->run_one();
    return 0;
}

void finish(void *session)
{
    delete static_cast<Session *>(session);
}

} /* namespace */

FORKTASK_RUNTIME = {FORKTASK_OUTSIDE_VERSION, FORKTASK_GRAPH, prepare, run, finish, 0, nullptr, nullptr};
