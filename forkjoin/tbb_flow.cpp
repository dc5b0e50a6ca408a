#include "outside.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#include <tbb/flow_graph.h>
#include <tbb/global_control.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>
#include <tbb/task_scheduler_observer.h>
#include <tbb/version.h>

namespace
{

constexpr auto START_LIMIT = std::chrono::seconds(5);

using Message = tbb::flow::continue_msg;
using Node = tbb::flow::continue_node<Message>;
/* Runs on the thread that brings the last message: a join has nothing to do that would be worth a task. */
using Join = tbb::flow::continue_node<Message, tbb::flow::lightweight>;

/* Pins oneTBB's own threads and flushes denormals while they are in the arena; each keeps its slot meanwhile. The
 * calling thread is pinned for the time of a run only: a thread that it starts inherits its affinity, and would wait
 * on the caller's CPU for the chance to move away. */
class Observer : public tbb::task_scheduler_observer
{
  public:
    Observer(tbb::task_arena &arena, OutsideRun *run) : tbb::task_scheduler_observer(arena), run_(run)
    {
        observe(true);
    }
    ~Observer() override
    {
        observe(false);
    }
    void on_scheduler_entry(bool is_worker) override
    {
        if (is_worker)
            enter(tbb::this_task_arena::current_thread_index());
    }
    void on_scheduler_exit(bool is_worker) override
    {
        if (is_worker)
            leave(tbb::this_task_arena::current_thread_index());
    }
    void enter(int slot)
    {
        forktask_enter_worker(run_, slot);
        if (run_->threads[slot].error)
            error.store(run_->threads[slot].error, std::memory_order_relaxed);
    }
    void leave(int slot)
    {
        forktask_leave_thread(&run_->threads[slot]);
    }
    std::atomic<int> error{0};

  private:
    OutsideRun *run_;
};

/* Whether threads stay in a run: during a phase oneTBB lets a second thread into an arena of one. */
bool in_phase(const OutsideRun *run)
{
    return std::strcmp(forktask_option(run, "construct"), "phase") == 0 && run->num_threads > 1;
}

/* A node on cache lines of its own: neighbours run on other threads. */
struct alignas(128) OwnLines : Node {
    using Node::Node;
};

struct Graph {
    explicit Graph(OutsideRun *r)
        : run(r), limit(tbb::global_control::max_allowed_parallelism, r->num_threads), arena(r->num_threads, 1),
          observer(arena, r)
    {
        arena.execute([this] {
            gather();
            build();
        });
    }

    /* Have all threads started: each waits here for the others, for START_LIMIT at most. */
    void gather()
    {
        std::atomic<int> here{0};
        const auto limit = std::chrono::steady_clock::now() + START_LIMIT;
        tbb::parallel_for(
            0, run->num_threads,
            [&](int) {
                here++;
                while (here < run->num_threads && std::chrono::steady_clock::now() < limit)
                    std::this_thread::yield();
            },
            tbb::simple_partitioner());
        /* Past the limit one thread may have run several of these bodies: too few threads came. */
        run->team_size = std::chrono::steady_clock::now() < limit ? run->num_threads : 0;
    }

    void build()
    {
        graph = std::make_unique<tbb::flow::graph>();
        for (int32_t v = 0; v < run->num_nodes; v++) {
            if (v < run->num_tasks)
                nodes.emplace_back(*graph, [this, v](Message) { execute(v); });
            else
                joins.emplace_back(*graph, [](Message) {});
        }
        for (int32_t v = 0; v < run->num_nodes; v++) {
            for (int32_t e = run->successor_offsets[v]; e < run->successor_offsets[v + 1]; e++)
                tbb::flow::make_edge(sender(v), receiver(run->successors[e]));
            if (run->num_predecessors[v] == 0)
                roots.push_back(&receiver(v));
        }
    }

    tbb::flow::sender<Message> &sender(int32_t v)
    {
        if (v < run->num_tasks)
            return nodes[v];
        return joins[v - run->num_tasks];
    }

    tbb::flow::receiver<Message> &receiver(int32_t v)
    {
        if (v < run->num_tasks)
            return nodes[v];
        return joins[v - run->num_tasks];
    }

    void execute(int32_t task)
    {
        const int slot = tbb::this_task_arena::current_thread_index();
        forktask_run_task(run, task, replay, slot, slot == caller_slot);
    }

    void run_all()
    {
        caller_slot = tbb::this_task_arena::current_thread_index();
        observer.enter(caller_slot);
        replay_all();
        observer.leave(caller_slot);
    }

    void replay_all()
    {
        for (replay = run->first_replay; replay < run->first_replay + run->num_replays; replay++) {
            if (observer.error.load(std::memory_order_relaxed))
                return;
            for (auto *root : roots)
                root->try_put(Message());
            graph->wait_for_all();
            if (forktask_must_stop(&run->poll))
                forktask_stop(run);
            if (forktask_stopped(run))
                return;
        }
    }

    OutsideRun *run;
    tbb::global_control limit;
    tbb::task_arena arena;
    Observer observer;
    std::unique_ptr<tbb::flow::graph> graph;
    std::deque<OwnLines> nodes; /* keeps addresses */
    std::deque<Join> joins;
    std::vector<tbb::flow::receiver<Message> *> roots;
    int64_t replay = 0;
    int caller_slot = 0;
};

/* The arena captures the floating-point mode of the thread that makes it and sets it for each task, whatever mode the
 * task's thread had: make it in the mode that blocks run in. */
void *prepare(OutsideRun *run, int *error)
{
#ifndef TBB_HAS_PARALLEL_PHASE
    if (in_phase(run)) {
        *error = ENOTSUP;
        return nullptr;
    }
#endif
    const unsigned former_control = forktask_flush_denormals();
    Graph *graph = nullptr;
    try {
        graph = new Graph(run);
    } catch (const std::bad_alloc &) {
        *error = ENOMEM;
    }
    forktask_restore_denormals(former_control);
    return graph;
}

int run(void *graph)
{
    Graph *g = static_cast<Graph *>(graph);
    /* of a thread that has stayed in the arena since */
    g->observer.error.store(forktask_pinning_error(g->run), std::memory_order_relaxed);
#ifdef TBB_HAS_PARALLEL_PHASE
    if (in_phase(g->run))
        g->arena.start_parallel_phase();
#endif
    g->arena.execute([g] { g->run_all(); });
#ifdef TBB_HAS_PARALLEL_PHASE
    if (in_phase(g->run))
        g->arena.end_parallel_phase();
#endif
    return g->observer.error.load(std::memory_order_relaxed);
}

void close(void *graph)
{
    Graph *g = static_cast<Graph *>(graph);
    g->arena.execute([g] {
        g->graph->wait_for_all();
        g->nodes.clear();
        g->joins.clear();
        g->graph.reset();
    });
    delete g;
}

} /* namespace */

FORKTASK_RUNTIME = {FORKTASK_OUTSIDE_VERSION, FORKTASK_GRAPH, prepare, run, close, 1, TBB_runtime_version(), nullptr};
