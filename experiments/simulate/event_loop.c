/* The simulated executors: forkjoin's loops, and tasks created eagerly, replayed from deques or from programs.
 *
 * Each policy does what the executor of its name does (forkjoin/, tasking/README.md): who takes which task next is
 * copied, what a step costs comes in as a number. A worker is busy, or waits for a timer, or is idle. Handing a ready
 * task to an idle worker takes two transfers of a cache line, or a wake-up once it has fallen asleep.
 */
#include "simulation.h"

#define PROGRAM_WINDOW 256   /* programs.h: entries of a program in which a helper looks for a ready one */
#define PROGRAM_AHEAD  16384 /* programs.h: entries beyond the begun iteration that are open to claims */
#define ENOUGH_READY   4     /* eager.h: ready tasks per worker above which the creator executes one */

/* --- replay from deques --- */

static void look_for_work(Simulation *s, int32_t w)
{
    int32_t task = take_newest(s, w);
    if (task < 0)
        task = steal(s, w);
    if (task >= 0)
        start_task(s, w, task, 0);
    else
        begin_idle(s, w);
}

static void begin_stealing(Simulation *s)
{
    const SimulatedPolicy *p = s->policy;
    count_predecessors(s);
    for (int32_t i = 0; i < p->num_roots; i++) {
        int32_t root = p->roots[i];
        s->pending[root] = s->g->num_intra[root] + s->g->num_cross[root];
        s->released[root] = 1;
        push(s, p->root_workers[i], root);
    }
    for (int32_t w = 0; w < s->num_workers; w++)
        look_for_work(s, w);
}

static void go_on_stealing(Simulation *s, int32_t w, int32_t next)
{
    if (next < 0)
        next = take_newest(s, w);
    if (next >= 0)
        start_task(s, w, next, 0);
    else if (s->num_queued > 0 && s->costs->line > 0)
        set_timer(s, w, 2 * s->costs->line);
    else
        look_for_work(s, w);
}

/* --- eager creation by worker 0 --- */

static void create_on(Simulation *s);

static inline int64_t num_instances(const Simulation *s)
{
    return (int64_t)s->num_iterations * s->g->num_tasks;
}

/* Retire finished tasks in the order of their creation. */
static void retire(Simulation *s)
{
    while (s->retired < s->created && s->done[s->retired % s->g->num_tasks] > s->retired / s->g->num_tasks)
        s->retired++;
}

/* The creator executes a task, or waits until one has finished. */
static void creator_helps(Simulation *s)
{
    int32_t task = take_oldest(s, 0);
    if (task < 0)
        task = steal(s, 0);
    if (task >= 0)
        start_task(s, 0, task, 0);
    else
        begin_idle(s, 0);
}

/* A task has been created: it is ready unless it waits for others, and the creator executes if there is enough. */
static void end_creation(Simulation *s)
{
    int32_t task = worker_of(s, 0)->task, instance = s->claimed[task]++;
    s->created++;
    if (s->released[task] > instance) {
        push(s, 0, task);
        notify_one(s);
    }
    while (s->creation_loop < s->g->num_loops && s->g->loop_end[s->creation_loop] <= task) /* empty loops */
        s->creation_loop++;
    if (task + 1 == s->g->loop_end[s->creation_loop])
        s->creator_waits = s->g->wait_after[s->creation_loop];
    if (worker_of(s, 0)->queued > ENOUGH_READY * s->num_workers)
        start_task(s, 0, take_oldest(s, 0), 0);
    else
        create_on(s);
}

static void create_on(Simulation *s)
{
    retire(s);
    if (s->creator_waits && s->retired == s->created)
        s->creator_waits = 0;
    if (s->creator_waits || s->created == num_instances(s) || s->created - s->retired >= s->policy->window) {
        if (s->retired < num_instances(s))
            creator_helps(s);
        return;
    }
    int32_t task = (int32_t)(s->created % s->g->num_tasks);
    if (task == 0)
        s->creation_loop = 0;
    worker_of(s, 0)->task = task;
    s->run->runtime_s += s->g->creation[task];
    set_timer(s, 0, s->g->creation[task]);
    worker_of(s, 0)->state = CREATING;
}

static void begin_eager(Simulation *s)
{
    count_predecessors(s);
    for (int32_t v = 0; v < s->g->num_tasks; v++)
        if (s->pending[v] == 0) {
            s->pending[v] = s->g->num_intra[v] + s->g->num_cross[v];
            s->released[v] = 1;
        }
    for (int32_t w = 1; w < s->num_workers; w++)
        begin_idle(s, w);
    create_on(s);
}

static void go_on_eager(Simulation *s, int32_t w, int32_t next)
{
    if (w > 0)
        go_on_stealing(s, w, next);
    else if (next >= 0)
        start_task(s, 0, next, 0);
    else
        create_on(s);
    if (s->workers[0].state == IDLE && w > 0) {
        int64_t before = s->retired;
        retire(s);
        if (s->retired > before)
            wake(s, 0, 2 * s->costs->line);
    }
}

/* --- programs --- */

static inline int64_t length_of(const Simulation *s, int32_t w)
{
    return s->policy->program_first[w + 1] - s->policy->program_first[w];
}

static void add_ready(Simulation *s, Worker *home, int64_t position)
{
    if (home->num_ready == home->ready_capacity) {
        int64_t capacity = 2 * home->ready_capacity + 16;
        int64_t *grown = realloc(home->ready, (size_t)capacity * sizeof(int64_t));
        if (grown == NULL) {
            s->clock.out_of_memory = 1;
            return;
        }
        home->ready = grown;
        home->ready_capacity = capacity;
    }
    int64_t at = home->num_ready++;
    for (int64_t above; at > 0 && home->ready[above = (at - 1) / 2] > position; at = above)
        home->ready[at] = home->ready[above];
    home->ready[at] = position;
}

static void drop_first_ready(Worker *home)
{
    int64_t last = home->ready[--home->num_ready], at = 0, below;
    while ((below = 2 * at + 1) < home->num_ready) {
        below += below + 1 < home->num_ready && home->ready[below + 1] < home->ready[below];
        if (home->ready[below] >= last)
            break;
        home->ready[at] = home->ready[below];
        at = below;
    }
    home->ready[at] = last;
}

/* Claim the first ready entry of a program that is open and whose locks are free. Returns -1 if there is none. */
static int32_t claim_unlocked(Simulation *s, Worker *victim, int64_t first, int64_t length)
{
    const int64_t open = victim->position / length + 1 + PROGRAM_AHEAD / length;
    int64_t least = victim->position + PROGRAM_WINDOW;
    int32_t found = -1;
    for (int64_t i = 0; i < victim->num_ready; i++) {
        int64_t position = victim->ready[i];
        int32_t task = s->policy->program[first + position % length];
        if (position < least && position / length < open && s->claimed[task] <= position / length &&
            !locks_are_held(s, task)) {
            least = position;
            found = task;
        }
    }
    if (found >= 0) { /* it leaves the heap when it comes to its top */
        s->num_queued--;
        s->claimed[found]++;
    }
    return found;
}

/* Claim the first ready entry of any program that is open and whose locks are free, the worker's own first. Returns -1
 * if there is none. */
static int32_t claim(Simulation *s, int32_t w)
{
    for (int32_t i = 0; i < s->num_workers && s->num_queued > 0; i++) {
        int32_t v = w + i < s->num_workers ? w + i : w + i - s->num_workers;
        Worker *victim = worker_of(s, v);
        int64_t length = length_of(s, v), first = s->policy->program_first[v];
        while (victim->num_ready > 0) {
            int64_t position = victim->ready[0], iteration = position / length;
            int32_t task = s->policy->program[first + position % length];
            if (s->claimed[task] <= iteration) {
                int64_t open = victim->position / length + 1 + PROGRAM_AHEAD / length;
                if (iteration >= open || position >= victim->position + PROGRAM_WINDOW)
                    break;
                if (locks_are_held(s, task)) {
                    if ((task = claim_unlocked(s, victim, first, length)) >= 0)
                        return task;
                    break;
                }
                drop_first_ready(victim);
                s->num_queued--;
                s->claimed[task]++;
                return task;
            }
            drop_first_ready(victim);
        }
    }
    return -1;
}

/* Wait for the entry at which the program stands, and help others meanwhile. */
static void wait_in_program(Simulation *s, int32_t w)
{
    Worker *me = worker_of(s, w);
    if (!s->policy->claims) {
        begin_idle(s, w);
        return;
    }
    if (!me->has_helped && s->costs->patience > 0) {
        begin_idle(s, w); /* so that what it waits for finds it */
        me->is_patient = 1;
        clock_set_timer(&s->clock, s->costs->patience, w, me->stamp);
        return;
    }
    int32_t task = claim(s, w);
    if (task < 0) {
        begin_idle(s, w);
        return;
    }
    me->has_helped = 1;
    start_task(s, w, task, 0);
}

static void go_on_program(Simulation *s, int32_t w)
{
    Worker *me = worker_of(s, w);
    int64_t length = length_of(s, w), end = length * s->num_iterations;
    for (; me->position < end; me->position++) {
        int64_t iteration = me->position / length;
        int32_t task = s->policy->program[s->policy->program_first[w] + me->position % length];
        if (s->done[task] > iteration)
            continue; /* a helper has run it */
        if (s->claimed[task] > iteration || s->released[task] <= iteration)
            break;
        int32_t other = s->policy->claims && locks_are_held(s, task) ? claim(s, w) : -1;
        if (other >= 0) {
            start_task(s, w, other, 0);
            return;
        }
        s->claimed[task]++;
        s->num_queued--;
        me->has_helped = 0;
        me->position++;
        start_task(s, w, task, 0);
        return;
    }
    wait_in_program(s, w);
}

/* An idle worker whose patience has ended looks for tasks to claim; one whose entry can run goes on. */
static void program_patience_ends(Simulation *s, int32_t w)
{
    Worker *me = worker_of(s, w);
    end_idle(s, w);
    me->has_helped = 1;
    go_on_program(s, w);
}

/* Return 1 if an idle worker stands at this entry. */
static inline int waits_at(const Simulation *s, int32_t w, int64_t position)
{
    return s->workers[w].state == IDLE && s->workers[w].position == position;
}

static void entry_is_ready(Simulation *s, int32_t task, int32_t w)
{
    int32_t home = s->home[task];
    int64_t position = (int64_t)(s->released[task] - 1) * length_of(s, home) + s->entry[task];
    s->num_queued++;
    add_ready(s, worker_of(s, home), position);
    if (waits_at(s, home, position))
        wake(s, home, home == w ? 0 : s->costs->line);
    else if (s->policy->claims && (home != w || s->workers[w].position != position)) /* w goes there itself */
        notify_one(s);
}

static void begin_programs(Simulation *s)
{
    count_predecessors(s);
    for (int32_t w = 0; w < s->num_workers; w++)
        for (int64_t i = 0; i < length_of(s, w); i++) {
            int32_t task = s->policy->program[s->policy->program_first[w] + i];
            s->home[task] = w;
            s->entry[task] = (int32_t)i;
        }
    for (int32_t v = 0; v < s->g->num_tasks; v++)
        if (s->pending[v] == 0) {
            s->pending[v] = s->g->num_intra[v] + s->g->num_cross[v];
            s->released[v] = 1;
            s->num_queued++;
            add_ready(s, worker_of(s, s->home[v]), s->entry[v]);
        }
    for (int32_t w = 0; w < s->num_workers; w++)
        go_on_program(s, w);
}

/* A helper has finished an entry: its home may wait for that. */
static void tell_home(Simulation *s, int32_t task, int32_t w)
{
    int32_t home = s->home[task];
    int64_t position = (int64_t)(s->done[task] - 1) * length_of(s, home) + s->entry[task];
    if (home != w && waits_at(s, home, position))
        wake(s, home, s->costs->line);
}

/* --- loops --- */

/* Give a worker its next blocks of the loop. Returns 0 if there are none. */
static int take_chunk(Simulation *s, int32_t w)
{
    const SimulatedPolicy *p = s->policy;
    Worker *me = worker_of(s, w);
    int32_t n = s->g->loop_end[s->loop] - s->first_task, P = s->num_workers, left = n - s->next_block, size;
    if (p->schedule == SCHEDULE_STATIC && p->chunk_size == 0) {
        int32_t quotient = n / P, rest = n % P;
        if (me->chunk++ > 0)
            return 0;
        me->next = w * quotient + (w < rest ? w : rest);
        me->stop = me->next + quotient + (w < rest);
        return me->next < me->stop;
    }
    if (p->schedule == SCHEDULE_STATIC) {
        int64_t first = ((int64_t)me->chunk++ * P + w) * p->chunk_size;
        me->next = first < n ? (int32_t)first : n;
        me->stop = first + p->chunk_size < n ? (int32_t)first + p->chunk_size : n;
        return me->next < me->stop;
    }
    size = p->chunk_size > 1 ? p->chunk_size : 1;
    if (p->schedule == SCHEDULE_GUIDED && (left + P - 1) / P > size)
        size = (left + P - 1) / P;
    me->next = s->next_block;
    me->stop = me->next + (size < left ? size : left);
    s->next_block = me->stop;
    return me->next < me->stop;
}

/* Run a worker's next block, or let it arrive at the barrier. */
static void go_on_loop(Simulation *s, int32_t w)
{
    Worker *me = worker_of(s, w);
    double extra = 0;
    if (me->next == me->stop) {
        if (!take_chunk(s, w)) {
            me->state = IDLE;
            if (++s->arrived == s->num_workers)
                clock_set_timer(&s->clock, s->costs->barrier, s->num_workers, 0);
            return;
        }
        extra = s->policy->schedule == SCHEDULE_STATIC ? 0 : s->costs->chunk;
    }
    start_task(s, w, s->first_task + me->next++, extra);
}

/* The barrier of a loop is over: the next one begins. */
static void next_loop(Simulation *s)
{
    const SimulatedGraph *g = s->g;
    if (s->loop >= 0)
        s->run->iteration_end[s->iteration] = s->clock.now;
    if (++s->loop == g->num_loops) {
        s->loop = 0;
        if (++s->iteration == s->num_iterations)
            return;
    }
    s->first_task = s->loop > 0 ? g->loop_end[s->loop - 1] : 0;
    s->arrived = s->next_block = 0;
    for (int32_t w = 0; w < s->num_workers; w++) {
        Worker *me = worker_of(s, w);
        me->next = me->stop = me->chunk = 0;
        go_on_loop(s, w);
    }
}

/* --- all policies --- */

static void task_is_ready(Simulation *s, int32_t task, int32_t w, int32_t *next)
{
    if (s->policy->kind == SIMULATE_PROGRAMS) {
        entry_is_ready(s, task, w);
        return;
    }
    if (s->policy->kind == SIMULATE_EAGER && s->claimed[task] < s->released[task])
        return; /* it comes when it has been created */
    if (*next >= 0) {
        push(s, w, *next);
        notify_one(s);
    }
    *next = task;
}

static void task_ends(Simulation *s, int32_t w)
{
    Worker *me = worker_of(s, w);
    int32_t task = me->task, next = -1;
    end_task(s, me);
    switch (s->policy->kind) {
    case SIMULATE_LOOPS:
        go_on_loop(s, w);
        break;
    case SIMULATE_STEALING:
        release(s, task, w, &next);
        go_on_stealing(s, w, next);
        break;
    case SIMULATE_EAGER:
        release(s, task, w, &next);
        go_on_eager(s, w, next);
        break;
    default:
        release(s, task, w, &next);
        tell_home(s, task, w);
        go_on_program(s, w);
    }
}

static void timer_ends(Simulation *s, int32_t w)
{
    Worker *me = worker_of(s, w);
    if (me->state == CREATING) {
        end_creation(s);
    } else if (s->policy->kind == SIMULATE_PROGRAMS) {
        if (me->state == IDLE)
            program_patience_ends(s, w);
        else
            go_on_program(s, w);
    } else if (s->policy->kind == SIMULATE_EAGER && w == 0) {
        create_on(s);
    } else {
        look_for_work(s, w);
    }
}

static int64_t num_finished(const Simulation *s)
{
    int64_t sum = 0;
    for (int32_t v = 0; v < s->g->num_tasks; v++)
        sum += s->done[v];
    return sum;
}

static int simulation_run(Simulation *s)
{
    ClockEvent event;
    switch (s->policy->kind) {
    case SIMULATE_LOOPS:
        s->loop = -1;
        next_loop(s);
        break;
    case SIMULATE_STEALING:
        begin_stealing(s);
        break;
    case SIMULATE_EAGER:
        begin_eager(s);
        break;
    default:
        begin_programs(s);
    }
    while (!s->clock.out_of_memory && clock_next(&s->clock, &event)) {
        if (event.worker == s->num_workers)
            next_loop(s);
        else if (event.stamp != s->workers[event.worker].stamp)
            continue;
        else if (s->workers[event.worker].state == BUSY)
            task_ends(s, event.worker);
        else
            timer_ends(s, event.worker);
    }
    if (s->clock.out_of_memory)
        return SIMULATE_NO_MEMORY;
    return num_finished(s) == num_instances(s) ? SIMULATE_DONE : SIMULATE_STUCK;
}

int simulate_run(const SimulatedGraph *graph, const SimulatedData *data, const SimulatedNodes *nodes,
                 const SimulatedPolicy *policy, const SimulatedCosts *costs, const double *bandwidth,
                 const double *slowdown, int32_t num_workers, int32_t num_iterations, uint64_t seed, SimulatedRun *run)
{
    const size_t count = (size_t)graph->num_nodes + 1;
    Simulation s;
    int status = SIMULATE_NO_MEMORY;
    memset(&s, 0, sizeof(s));
    s.g = graph;
    s.data = data;
    s.nodes = nodes;
    s.policy = policy;
    s.costs = costs;
    s.run = run;
    s.num_workers = num_workers;
    s.num_iterations = num_iterations;
    s.random = 0x9E3779B97F4A7C15ull * (seed + 1);
    clock_open(&s.clock, bandwidth, slowdown, nodes->num_nodes);
    s.workers = calloc((size_t)num_workers, sizeof(Worker));
    s.pending = calloc(8 * count, sizeof(int32_t));
    s.idle = malloc((size_t)num_workers * sizeof(int32_t));
    s.taken = calloc((size_t)graph->num_locks + 1, 1);
    s.holders = calloc((size_t)data->num_cells + 1, sizeof(uint64_t));
    s.touched_at = calloc((size_t)data->num_cells + 1, sizeof(double));
    if (s.workers != NULL && s.pending != NULL && s.idle != NULL && s.taken != NULL && s.holders != NULL &&
        s.touched_at != NULL) {
        s.released = s.pending + count;
        s.done = s.released + count;
        s.claimed = s.done + count;
        s.older = s.claimed + count;
        s.newer = s.older + count;
        s.home = s.newer + count;
        s.entry = s.home + count;
        for (int32_t w = 0; w < num_workers; w++) {
            s.workers[w].newest = s.workers[w].oldest = -1;
            s.workers[w].idle_slot = -1;
        }
        status = simulation_run(&s);
    }
    for (int32_t w = 0; w < num_workers && s.workers != NULL; w++)
        free(s.workers[w].ready);
    free(s.workers);
    free(s.pending);
    free(s.idle);
    free(s.taken);
    free(s.holders);
    free(s.touched_at);
    clock_close(&s.clock);
    return status;
}
