#include "outside.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#include <taskflow/taskflow.hpp>

namespace
{

constexpr auto START_LIMIT = std::chrono::seconds(5);
constexpr auto LOOK_FOR_SIGNALS = std::chrono::milliseconds(20);

/* Pins Taskflow's threads and flushes denormals when they start. */
class Workers : public tf::WorkerInterface
{
  public:
    explicit Workers(OutsideRun *run) : run_(run)
    {
    }
    void scheduler_prologue(tf::Worker &worker) override
    {
        forktask_enter_worker(run_, static_cast<int>(worker.id()));
        here++;
    }
    void scheduler_epilogue(tf::Worker &, std::exception_ptr) override
    {
    }
    std::atomic<int> here{0};

  private:
    OutsideRun *run_;
};

struct Graph {
    explicit Graph(OutsideRun *r)
        : run(r), workers(tf::make_worker_interface<Workers>(r)), executor(r->num_threads, workers)
    {
        const auto limit = std::chrono::steady_clock::now() + START_LIMIT;
        while (workers->here < run->num_threads && std::chrono::steady_clock::now() < limit)
            std::this_thread::yield();
        run->team_size = workers->here;
        std::vector<tf::Task> nodes;
        for (int32_t v = 0; v < run->num_nodes; v++)
            nodes.push_back(v < run->num_tasks ? flow.emplace([this, v] { execute(v); }) : flow.emplace([] {}));
        for (int32_t v = 0; v < run->num_nodes; v++)
            for (int32_t e = run->successor_offsets[v]; e < run->successor_offsets[v + 1]; e++)
                nodes[v].precede(nodes[run->successors[e]]);
    }

    void execute(int32_t task)
    {
        forktask_run_task(run, task, replay, executor.this_worker_id(), 0);
    }

    /* Begin an iteration, unless none is left: Taskflow asks before each. */
    bool ends()
    {
        return ++replay == run->first_replay + run->num_replays || forktask_stopped(run);
    }

    OutsideRun *run;
    std::shared_ptr<Workers> workers;
    tf::Executor executor;
    tf::Taskflow flow;
    int64_t replay = 0;
};

void *prepare(OutsideRun *run, int *error)
{
    try {
        return new Graph(run);
    } catch (const std::bad_alloc &) {
        *error = ENOMEM;
        return nullptr;
    }
}

int run(void *graph)
{
    Graph *g = static_cast<Graph *>(graph);
    OutsideRun *r = g->run;
    const int error = forktask_pinning_error(r);
    if (error)
        return error;
    g->replay = r->first_replay - 1;
    auto done = g->executor.run_until(g->flow, [g] { return g->ends(); });
    while (done.wait_for(LOOK_FOR_SIGNALS) != std::future_status::ready)
        forktask_poll_waiting(r);
    return 0;
}

void close(void *graph)
{
    delete static_cast<Graph *>(graph);
}

} /* namespace */

FORKTASK_RUNTIME = {FORKTASK_OUTSIDE_VERSION, FORKTASK_GRAPH, prepare, run, close, 0, tf::version(), nullptr};
