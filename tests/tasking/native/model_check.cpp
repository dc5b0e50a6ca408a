// The deque, the sleep protocol, replay, compiled programs and eager tasks under Relacy, from the very headers of the runtime.
// test_model_check.py compiles it and runs `model_check NAME ITERATIONS [ORDER_X WEAKER]`: with an ordering weakened, the
// check must fail.
#include <cstdint>
#include <cstring>
#include <cstdlib>
#include <iostream>

#include "tasking/deque.h"
#include "tasking/idle.h"

// The model has a clock of its own: decisions that depend on it must repeat when Relacy replays an execution.
#include "cython_src/kernels/interface/block_kernel.h"
static int64_t model_clock, model_claim_ns;
#define forktask_now_ns() (++model_clock)
// Waits are short, and every look is an event of the model.
#define PROGRAM_LOOKS      0
#define PROGRAM_PATIENCE   0
#define PROGRAM_ROUNDS     2
#define PROGRAM_AHEAD      4
#define PROGRAM_LOOK       1
#define PROGRAM_CLAIM_NS   model_claim_ns
#define PROGRAM_NAPS       0
#define SCHEDULER_PATIENCE 1
#define SCHEDULER_ROUNDS   2
#include "tasking/programs/programs.h"
#include "tasking/eager.h"
#include "tasking/replay.h"

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

// Scheduler and blocks of the models of whole runtimes. A block finds out that its predecessors have run, and are not running.
template <int num_workers, int num_tasks>
struct Blocks {
    SchedulerWorker runners[num_workers];
    IdleWorker words[num_workers];
    WorkerState states[num_workers];
    atomic_i32 slots[num_workers][4];
    int32_t victims[num_workers * num_workers], ends[num_workers * DISTANCES];
    LoopRecord loop;
    rl::var<int> runs[num_tasks];

    void open(Scheduler *s, BlockKernel kernel)
    {
        std::memset(states, 0, sizeof(states));
        loop = LoopRecord();
        loop.kernel = kernel;
        loop.args = this;
        loop.num_blocks = num_tasks;
        loop.iteration_stride = 1;
        s->workers = runners;
        s->loops = &loop;
        s->num_workers = num_workers;
        s->victims = victims;
        s->ends = ends;
        scheduler_list_victims(s, NULL);
        s->spin_ns = 0;
        s->ending.store(RUN_GOES_ON, rl::mo_relaxed, $);
        s->idle.workers = words;
        s->idle.num_workers = num_workers;
        s->idle.has_membarrier = 0;
        s->idle.num_announced.store(0, rl::mo_relaxed, $);
        for (int w = 0; w < num_workers; w++) {
            states[w].failed_task = -1;
            states[w].context.worker = w;
            words[w].word.store(WORKER_AWAKE, rl::mo_relaxed, $);
            SchedulerWorker *runner = &runners[w];
            runner->state = &states[w];
            runner->random = 1;
            runner->num_executed_own = 0;
            runner->num_executed.store(0, rl::mo_relaxed, $);
            runner->current.store(-1, rl::mo_relaxed, $);
            runner->deque.slots = slots[w];
            runner->deque.mask = 3;
            for (int i = 0; i < 4; i++)
                slots[w][i].store(-1, rl::mo_relaxed, $);
            deque_reset(&runner->deque);
        }
        for (int t = 0; t < num_tasks; t++)
            runs[t]($) = 0;
        model_clock = 0;
    }
};

// Two programs of two tasks: 0, 2 and 1, 3. 1 and 3 come after 0; 2 after 1; 0 of the next iteration after 2 and 3.
// `mode`: 0 no iteration is open to claims, 1 all are, 2 the second is.
static const int program_iterations = 2;
typedef Blocks<2, 4> ProgramBlocks;

static int program_block(const void *args, ptrdiff_t task, const TaskContext *context)
{
    ProgramBlocks *b = (ProgramBlocks *)args;
    const int k = (int)context->iteration;
    RL_ASSERT(b->runs[task]($) == k);
    RL_ASSERT(task == 0 ? b->runs[2]($) == k && b->runs[3]($) == k : b->runs[task == 2 ? 1 : 0]($) == k + 1);
    b->runs[task]($) = k + 1;
    return 0;
}

template <int mode>
struct program_test : rl::test_suite<program_test<mode>, 2> {
    Programs p;
    ProgramWorker workers[2];
    ClaimWord claims[4];
    ProgramEntry entries[5];
    ProgramWait waits[3];
    int32_t first[3], predecessor_offsets[5], predecessors[5];
    int64_t seen[4], all_claimed[4];
    ProgramBlocks blocks;

    void before()
    {
        static const ProgramEntry the_entries[] = {
            {0, 0, 1, 0}, {2, 0, 1, 1}, {1, 0, 1, 2}, {3, 0, 1, 3}, {0, 0, 0, 3}};
        static const ProgramWait the_waits[] = {{1, 0}, {1, 1}, {0, 1}};
        static const int32_t the_first[] = {0, 2, 4}, offsets[] = {0, 2, 3, 4, 5}, before[] = {3, 7, 4, 0, 0};
        std::memcpy(entries, the_entries, sizeof(entries));
        std::memcpy(waits, the_waits, sizeof(waits));
        std::memcpy(first, the_first, sizeof(first));
        std::memcpy(predecessor_offsets, offsets, sizeof(offsets));
        std::memcpy(predecessors, before, sizeof(before));
        std::memset(seen, 0, sizeof(seen));
        std::memset(all_claimed, 0, sizeof(all_claimed));
        model_claim_ns = mode == 0 ? 1 << 30 : -(1 << 30);
        p.workers = workers;
        p.entries = entries;
        p.first = first;
        p.waits = waits;
        p.claims = claims;
        p.predecessor_offsets = predecessor_offsets;
        p.predecessors = predecessors;
        p.num_tasks = p.num_nodes = 4;
        p.first_replay = 0;
        p.num_iterations = program_iterations;
        blocks.open(&p.scheduler, program_block);
        for (int w = 0; w < 2; w++) {
            workers[w].progress.store(0, rl::mo_relaxed, $);
            workers[w].open_until.store(0, rl::mo_relaxed, $);
            workers[w].wait_value.store(0, rl::mo_relaxed, $);
            workers[w].wait_on.store(0, rl::mo_relaxed, $);
            workers[w].is_open = mode == 1;
            workers[w].wakes_helpers = 0;
            workers[w].seen = seen + 2 * w;
            workers[w].all_claimed = all_claimed + 2 * w;
        }
        for (int e = 0; e < 4; e++) {
            claims[e].claimed.store(0, rl::mo_relaxed, $);
            claims[e].done.store(0, rl::mo_relaxed, $);
        }
    }

    void thread(unsigned index)
    {
        programs_work(&p, (int32_t)index);
    }

    void after()
    {
        for (int t = 0; t < 4; t++)
            RL_ASSERT(blocks.runs[t]($) == program_iterations);
    }
};

// Eager tasks in a window of four, three iterations of: 0 and 1 write a cell each, 2 reads both. So a write waits for the reader
// of the iteration before.
static const int eager_iterations = 3;
typedef Blocks<2, 3> EagerBlocks;

static int eager_block(const void *args, ptrdiff_t task, const TaskContext *context)
{
    EagerBlocks *b = (EagerBlocks *)args;
    const int k = (int)context->iteration;
    RL_ASSERT(b->runs[task]($) == k);
    if (task == 2)
        RL_ASSERT(b->runs[0]($) == k + 1 && b->runs[1]($) == k + 1);
    else
        RL_ASSERT(b->runs[2]($) == k);
    b->runs[task]($) = k + 1;
    return 0;
}

struct eager_test : rl::test_suite<eager_test, 2> {
    Eager e;
    EagerTask tasks[4];
    EagerEdge edges[16];
    EagerCell cells[2];
    EagerReader readers[8];
    EagerBlocks blocks;

    void before()
    {
        static const int32_t task_offsets[] = {0, 1, 2, 4}, access_list[] = {0, 1, 0, 1}, list_offsets[] = {0, 1, 2};
        static const int32_t list_cells[] = {0, 1};
        static const uint8_t kinds[] = {1, 1, 0, 0}, wait_after[] = {0};
        e.table = {3, 2, task_offsets, kinds, access_list, list_offsets, list_cells};
        e.tasks = tasks;
        e.edges = edges;
        e.cells = cells;
        e.groups = NULL;
        e.readers = readers;
        e.wait_after = wait_after;
        e.window = 4;
        e.edge_capacity = 16;
        e.reader_capacity = 8;
        e.num_loops = 1;
        e.enough_ready = 2;
        e.first_replay = 0;
        e.num_iterations = eager_iterations;
        e.next_serial = e.oldest = e.edge_head = e.edge_tail = 0;
        e.out_of_memory = 0;
        e.creator_waits.store(0, rl::mo_relaxed, $);
        e.free_reader = 0;
        for (int i = 0; i < 8; i++)
            readers[i].next = i < 7 ? i + 1 : -1;
        for (int c = 0; c < 2; c++) {
            std::memset(&cells[c], 0, sizeof(cells[c]));
            cells[c].writer = -1;
            cells[c].readers.head = cells[c].readers.tail = -1;
            cells[c].is_written = 1;
        }
        for (int t = 0; t < 4; t++) {
            tasks[t].serial = -1;
            tasks[t].successors.store(EAGER_CLOSED, rl::mo_relaxed, $);
            tasks[t].pending.store(0, rl::mo_relaxed, $);
        }
        blocks.open(&e.scheduler, eager_block);
    }

    void thread(unsigned index)
    {
        eager_work(&e, (int32_t)index);
    }

    void after()
    {
        for (int t = 0; t < 3; t++)
            RL_ASSERT(blocks.runs[t]($) == eager_iterations);
    }
};

// Replay of: 0 and 1, then 2, then 0 and 1 of the next iteration.
static const int replay_iterations = 3;

struct replay_test : rl::test_suite<replay_test, 2> {
    Replay r;
    ReplayNode nodes[3];
    int32_t num_intra[3], successors[4], roots[2], root_workers[2];
    EagerBlocks blocks;

    void before()
    {
        static const int32_t edges[] = {2, 2, 0, 1}, before[] = {0, 0, 2}, all[] = {1, 1, 2}, begin[] = {0, 1, 2};
        static const int32_t split[] = {1, 2, 2}, end[] = {1, 2, 4}, the_roots[] = {0, 1}, where[] = {1, 0};
        std::memcpy(successors, edges, sizeof(edges));
        std::memcpy(num_intra, before, sizeof(before));
        std::memcpy(roots, the_roots, sizeof(roots));
        std::memcpy(root_workers, where, sizeof(where));
        for (int v = 0; v < 3; v++) {
            nodes[v].rearm = all[v];
            nodes[v].loop = 0;
            nodes[v].block = v;
            nodes[v].successor_begin = begin[v];
            nodes[v].successor_split = split[v];
            nodes[v].successor_end = end[v];
        }
        r.nodes = nodes;
        r.successors = successors;
        r.num_intra = num_intra;
        r.roots = roots;
        r.root_workers = root_workers;
        r.num_tasks = r.num_nodes = 3;
        r.num_roots = 2;
        r.num_ends = 1;
        blocks.open(&r.scheduler, eager_block);
        replay_reset(&r, 0, replay_iterations);
    }

    void thread(unsigned index)
    {
        replay_work(&r, (int32_t)index);
    }

    void after()
    {
        for (int t = 0; t < 3; t++)
            RL_ASSERT(blocks.runs[t]($) == replay_iterations);
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

// Give an ordering of the runtime another value; false for a name that is not one.
static bool weaken(const char *name, const char *weaker)
{
    static const std::pair<const char *, rl::memory_order> values[] = {{"relaxed", rl::mo_relaxed},
                                                                       {"acquire", rl::mo_acquire},
                                                                       {"release", rl::mo_release},
                                                                       {"acq_rel", rl::mo_acq_rel}};
    for (const auto &order : model_check_orders)
        for (const auto &value : values)
            if (!std::strcmp(order.first, name) && !std::strcmp(value.first, weaker)) {
                *order.second = value.second;
                return true;
            }
    return false;
}

int main(int argc, char **argv)
{
    if (argc != 3 && (argc != 5 || !weaken(argv[3], argv[4])))
        return 2;
    static const std::pair<const char *, int (*)(const char *, long)> models[] = {
        {"deque", simulate<deque_test>},       {"idle", simulate<idle_test>},
        {"wake", simulate<wake_test>},         {"programs", simulate<program_test<0>>},
        {"claims", simulate<program_test<1>>}, {"opening", simulate<program_test<2>>},
        {"eager", simulate<eager_test>},       {"replay", simulate<replay_test>}};
    for (const auto &model : models)
        if (!std::strcmp(model.first, argv[1]))
            return model.second(argv[1], std::atol(argv[2]));
    return 2;
}
