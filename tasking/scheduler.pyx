"""The task runtime behind the executors: a team of threads, replay of recorded graphs, eager tasks.

The C headers beside this file hold the algorithms; here they meet plans, Python errors and signals.
"""

from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memset
from posix.unistd cimport getpid

from ..cython_src.binding.block_kernel cimport LoopRecord, WorkerState, forktask_now_ns
from ..cython_src.binding.bind cimport BoundPlan, Workers

import os

import numpy as np

from ..cython_src.errors import UsageError


cdef extern from "tasking/eager.h" nogil:
    ctypedef struct atomic_i32:
        pass
    ctypedef struct atomic_i64:
        pass
    ctypedef struct atomic_u32:
        pass
    ctypedef void (*TeamJob)(void *argument, int32_t worker) noexcept
    ctypedef struct SchedulerDeque "Deque":
        int64_t mask
    ctypedef struct SchedulerWorker:
        SchedulerDeque deque
        WorkerState *state
        atomic_i64 num_executed
        atomic_i32 current, inbox
    ctypedef struct IdleWorker:
        atomic_u32 word
    ctypedef struct Idle:
        atomic_i32 num_announced
        IdleWorker *workers
    ctypedef struct Places:
        int64_t num_swaps
    void places_restore(Places *p)
    ctypedef struct Scheduler:
        Idle idle
        SchedulerWorker *workers
        int32_t num_workers
        atomic_i32 ending
        Places *places
    ctypedef struct EagerTable:
        int32_t num_tasks, num_cells
        const int32_t *task_offsets
        const uint8_t *access_kind
        const int32_t *access_list
        const int32_t *list_offsets
        const int32_t *list_cells
    ctypedef struct Eager:
        Scheduler scheduler
        int64_t next_serial, oldest, window
        int32_t out_of_memory
    const int RUN_DONE
    const int RUN_STOPPED
    void scheduler_end(Scheduler *s, int32_t reason)
    int64_t deque_size_hint(SchedulerDeque *d)
    int eager_open(Eager *e, int32_t num_workers, const LoopRecord *loops, int32_t num_loops, WorkerState *states,
                   int64_t spin_ns, const EagerTable *table, const uint8_t *wait_after, int64_t window)
    void eager_reset(Eager *e, int64_t first_replay, int32_t num_iterations)
    void eager_close(Eager *e)
    void eager_work(void *argument, int32_t worker) noexcept

cdef extern from "tasking/replay.h" nogil:
    ctypedef struct ReplayNode:
        atomic_i32 pending
        int32_t rearm
        int32_t iteration
        int32_t loop
    ctypedef struct Replay:
        Scheduler scheduler
        ReplayNode *nodes
        int32_t num_tasks, num_nodes, num_edges
        int32_t *roots
        int32_t *root_homes
        int32_t *homes
        int32_t num_roots
    int replay_open(Replay *r, int32_t num_workers, const LoopRecord *loops, WorkerState *states, int64_t spin_ns,
                    int32_t num_tasks, int32_t num_nodes, const int32_t *successor_offsets,
                    const int32_t *successor_split, const int32_t *successors, const int32_t *num_intra,
                    const int32_t *num_cross, const int32_t *task_loop)
    int replay_set_homes(Replay *r, const int32_t *homes)
    void replay_reset(Replay *r, int64_t first_replay, int32_t num_iterations)
    void replay_close(Replay *r)
    void replay_work(void *argument, int32_t worker) noexcept

cdef extern from "tasking/idle.h" nogil:
    int ft_register_membarrier()


cdef extern from "tasking/partition.h" nogil:
    ctypedef struct ProgramEntry:
        int32_t task, loop, is_awaited, wait_begin
    ctypedef struct ClaimWord:
        pass
    ctypedef struct PartitionWorker:
        atomic_i64 progress
        atomic_i32 open_until
        atomic_i64 wait_value
        atomic_i32 wait_on
    ctypedef struct Partition:
        Scheduler scheduler
        PartitionWorker *workers
        ProgramEntry *entries
        int32_t *first
        int32_t *predecessor_offsets
        int32_t num_tasks, num_nodes
    int partition_open(Partition *p, int32_t num_workers, const LoopRecord *loops, int32_t num_loops,
                       WorkerState *states, int64_t spin_ns, int32_t num_tasks, int32_t num_nodes,
                       const int32_t *successor_offsets, const int32_t *successor_split, const int32_t *successors,
                       const int32_t *num_intra, const int32_t *task_loop, const double *cost,
                       const double *priority, const int32_t *affinity)
    void partition_reset(Partition *p, int64_t first_replay, int32_t num_iterations)
    void partition_close(Partition *p)
    void partition_work(void *argument, int32_t worker) noexcept

cdef extern from "tasking/team.h" nogil:
    """
    static inline int64_t load_i64(atomic_i64 *p) { return ft_load(p, relaxed); }
    static inline int32_t load_i32(atomic_i32 *p) { return ft_load(p, acquire); }
    static inline uint32_t load_u32(atomic_u32 *p) { return ft_load(p, relaxed); }
    /* First touch of its scratch memory by the worker that uses it. */
    typedef struct { WorkerState *states; size_t scratch_bytes; } TouchJob;
    static void touch_work(void *argument, int32_t worker)
    {
        TouchJob *job = argument;
        memset(job->states[worker].context.scratch, 0, job->scratch_bytes);
    }
    """
    ctypedef struct CTeam "Team":
        int32_t num_threads
        Places places
    ctypedef struct TouchJob:
        WorkerState *states
        size_t scratch_bytes
    int team_open(CTeam *team, int32_t num_threads, const int32_t *cpus, int64_t spin_ns)
    void team_start(CTeam *team, TeamJob job, void *argument)
    int team_wait(CTeam *team, int64_t timeout_ns)
    void team_close(CTeam *team)
    int64_t load_i64(atomic_i64 *p)
    int32_t load_i32(atomic_i32 *p)
    uint32_t load_u32(atomic_u32 *p)
    void touch_work(void *argument, int32_t worker) noexcept


# How often the waiting caller looks for signals and for progress. A tenth of a second is what a user notices.
cdef int64_t POLL_NS = 20_000_000


class StuckGraph(RuntimeError):
    """The watchdog found no progress: no block ran or finished for the given time. The message holds the state."""


cdef class Team:
    """Plain threads that run blocks; the thread that starts a run waits and polls for signals.

    Parameters
    ----------
    num_threads : int
    cpus : sequence of int, optional
        Logical CPU of each thread; default: not pinned.
    spin_ns : int
        How long an idle thread looks for work before it sleeps.

    Raises
    ------
    UsageError
        Impossible number of threads or CPUs.
    """

    cdef CTeam team
    cdef readonly int num_threads
    cdef readonly int64_t spin_ns
    cdef int owner_pid
    cdef bint busy

    def __cinit__(self, int num_threads, cpus=None, int64_t spin_ns=50_000):
        cdef int32_t[::1] list_of_cpus
        cdef const int32_t *pinned = NULL
        cdef int error
        memset(&self.team, 0, sizeof(self.team))
        self.owner_pid = getpid()
        if not 1 <= num_threads <= 4096:
            raise UsageError(f"num_threads must be in [1, 4096], got {num_threads}; give the number of cores or fewer")
        if cpus is not None:
            cpus = [int(c) for c in cpus]
            allowed = os.sched_getaffinity(0)
            if len(cpus) != num_threads or not set(cpus) <= allowed:
                raise UsageError(
                    f"cpus must name one CPU out of {sorted(allowed)} for each of {num_threads} threads, got {cpus}; "
                    f"leave it out to let the system place them")
            list_of_cpus = np.array(cpus, dtype=np.int32)
            pinned = &list_of_cpus[0]
        self.num_threads = num_threads
        self.spin_ns = spin_ns
        error = team_open(&self.team, num_threads, pinned, spin_ns)
        if error:
            raise UsageError(
                f"{num_threads} threads must be available, but starting them failed: {os.strerror(error)}; use fewer")

    def __dealloc__(self):
        # After a fork the threads are the parent's; there is nothing here to end.
        if self.owner_pid == getpid():
            with nogil:
                team_close(&self.team)

    cdef int check(self) except -1:
        if self.owner_pid != getpid():
            raise UsageError(
                f"an executor runs only in the process that made it (pid {self.owner_pid}, this is {getpid()}): threads "
                f"do not survive a fork; make a new executor here, or start processes with 'spawn'")
        if self.team.num_threads == 0:
            raise UsageError("a closed executor runs no plan; make a new one")
        if self.busy:
            raise UsageError("an executor runs one plan at a time, but a run is under way; use a second executor")
        return 0

    def close(self):
        """End the threads."""
        if self.owner_pid == getpid() and not self.busy:
            with nogil:
                team_close(&self.team)

    cdef int touch(self, Workers workers, Py_ssize_t scratch_bytes) except -1:
        cdef TouchJob job
        self.check()
        job.states = workers.states
        job.scratch_bytes = scratch_bytes
        with nogil:
            team_start(&self.team, touch_work, &job)
            while not team_wait(&self.team, -1):
                pass
        return 0

    cdef object drive(self, TeamJob job, void *argument, Scheduler *scheduler, object dump, double watchdog_s):
        """Run a job to its end; poll for signals and progress. Returns the exception that stopped it, or None."""
        cdef bint done
        cdef int64_t executed, last_executed = -1, last_progress_ns = 0, now
        cdef int w
        cdef bint in_kernel
        error = None
        self.busy = True
        with nogil:
            team_start(&self.team, job, argument)
            done = team_wait(&self.team, POLL_NS)
        while not done:
            try:
                PyErr_CheckSignals()
            except BaseException as raised:  # KeyboardInterrupt, or whatever a handler raises
                if error is None:
                    error = raised
                scheduler_end(scheduler, RUN_STOPPED)
            if watchdog_s > 0 and error is None:
                executed = 0
                in_kernel = False
                for w in range(scheduler.num_workers):
                    executed += load_i64(&scheduler.workers[w].num_executed)
                    in_kernel |= load_i32(&scheduler.workers[w].current) >= 0
                now = forktask_now_ns()
                if executed != last_executed or in_kernel:
                    last_executed = executed
                    last_progress_ns = now
                elif now - last_progress_ns > watchdog_s * 1e9:
                    error = StuckGraph(
                        f"no block ran or finished for {watchdog_s:g} s; this is an error of the runtime or of the graph, "
                        f"please report it with the state that follows\n{dump()}")
                    scheduler_end(scheduler, RUN_STOPPED)
            with nogil:
                done = team_wait(&self.team, POLL_NS)
        places_restore(&self.team.places)
        self.busy = False
        return error

    cdef Places *places(self, BoundPlan bound):
        """For workers that may swap CPUs: threads that wait for Python's lock use no CPU time, and have not lost their CPU."""
        return NULL if bound.needs_gil else &self.team.places

    @property
    def num_swaps(self):
        """How often a worker gave its CPU to one that had lost its own."""
        return self.team.places.num_swaps


cdef _dump_workers(Scheduler *s):
    cdef int w
    cdef int32_t newest
    lines = [f"ending {load_i32(&s.ending)}, {load_i32(&s.idle.num_announced)} workers announced as idle"]
    for w in range(s.num_workers):
        newest = load_i32(&s.workers[w].inbox)
        lines.append(
            f"worker {w}: {load_i64(&s.workers[w].num_executed)} blocks finished, runs "
            f"{load_i32(&s.workers[w].current)}, {deque_size_hint(&s.workers[w].deque)} in its deque, "
            f"{'nothing' if newest < 0 else f'task {newest} first'} in its inbox, "
            f"{'asleep' if load_u32(&s.idle.workers[w].word) else 'awake'}")
    return lines


cdef class _Runtime:
    """What both forms share: the bound plan, its workers, and how a run is checked and ended."""

    cdef readonly Team team
    cdef readonly BoundPlan bound
    cdef readonly Workers workers
    cdef readonly double watchdog_s

    cdef _set_up(self, Team team, BoundPlan bound, int64_t event_capacity, double watchdog_s, Workers workers=None):
        team.check()
        self.team = team
        self.bound = bound
        self.watchdog_s = watchdog_s
        if workers is not None:  # another runtime's, for the same plan
            self.workers = workers
            return
        self.workers = Workers(team.num_threads, bound.scratch_bytes, event_capacity)
        team.touch(self.workers, bound.scratch_bytes)

    cdef _replays(self, num_iterations, first_iteration):
        """(number of replays, first replay) of a run."""
        cdef int stride = self.bound.iteration_stride
        if num_iterations < 0 or num_iterations % stride or first_iteration % stride:
            raise UsageError(
                f"num_iterations and first_iteration must be multiples of {stride}, the steps one pass of plan "
                f"{self.bound.plan.name!r} takes; got {num_iterations} and {first_iteration}")
        if num_iterations // stride >= 2**31:
            raise UsageError(f"num_iterations must be less than {stride * 2**31}, got {num_iterations}; split the run")
        return num_iterations // stride, first_iteration // stride

    cdef _finish(self, error, Scheduler *s):
        cdef bint stopped = load_i32(&s.ending) == RUN_STOPPED
        if error is not None:
            self.bound.discard_failure(self.workers)
            raise error
        if stopped:
            self.bound.raise_failure(self.workers)


cdef class _GraphRuntime(_Runtime):
    """A recorded graph, checked and closed. It is copied into a form of its own: the graph is let go when that is done."""

    cdef object graph
    # never empty, so that each has an address
    cdef const int32_t[::1] offsets, split, successors, intra, cross

    cdef _set_graph(self, graph):
        if graph.num_tasks != self.bound.num_tasks:
            raise UsageError(
                f"the graph must be the plan's own, but it has {graph.num_tasks} tasks and plan "
                f"{self.bound.plan.name!r} has {self.bound.num_tasks}; record it again")
        if not graph.closed:
            raise UsageError("a graph must be closed for replay, got an open one; record it with the executor's record()")
        self.graph = graph
        self.offsets = self.graph.successor_offsets
        self.split, self.successors, self.intra, self.cross = (
            array if len(array) else np.zeros(1, np.int32)
            for array in (self.graph.successor_split, self.graph.successors, self.graph.num_intra, self.graph.num_cross))

    cdef _drop_graph(self):
        self.graph = self.offsets = self.split = self.successors = self.intra = self.cross = None


cdef class ReplayRuntime(_GraphRuntime):
    """Replay of a recorded graph with work-stealing deques.

    Parameters
    ----------
    team : Team
    bound : BoundPlan
    graph : TaskGraph
        Of the same plan, closed.
    event_capacity : int
    watchdog_s : float
        Seconds without any progress after which the run is stopped; 0: never.
    workers : Workers, optional
        Of a runtime for the same plan, to share.
    priority : float64, shape (num_nodes,), optional
        By which the graph's successors are ordered (`by_priority`): the highest goes first.
    """

    cdef Replay replay

    def __cinit__(self, Team team, BoundPlan bound, graph, int64_t event_capacity=0, double watchdog_s=60.0,
                  Workers workers=None, priority=None):
        cdef int error
        memset(&self.replay, 0, sizeof(self.replay))
        self._set_up(team, bound, event_capacity, watchdog_s, workers)
        self._set_graph(graph)
        error = replay_open(
            &self.replay, team.num_threads, bound.loops, self.workers.states, team.spin_ns, bound.num_tasks,
            self.graph.num_nodes, &self.offsets[0], &self.split[0], &self.successors[0], &self.intra[0], &self.cross[0],
            bound.task_loop)
        self._drop_graph()
        if error:
            raise MemoryError
        self.replay.scheduler.places = team.places(bound)
        if bound.plan.affinity is not None:
            self._set_homes(bound.plan.affinity)
        if priority is not None:
            self._sort_roots(np.asarray(priority))

    def memory_bytes(self):
        """Bytes of the nodes, edges, deques and, where tasks ask for workers, homes and inboxes."""
        cdef int64_t n = self.replay.num_nodes, deques = 0
        cdef int w
        for w in range(self.team.num_threads):
            deques += 4 * (self.replay.scheduler.workers[w].deque.mask + 1)
        return (n * (sizeof(ReplayNode) + (4 if self.replay.homes == NULL else 12)) + 8 * self.replay.num_tasks
                + 4 * self.replay.num_edges + deques)

    def root_homes(self):
        """Where tasks that are ready at the start are put: {task: worker}."""
        cdef int i
        return {self.replay.roots[i]: self.replay.root_homes[i] for i in range(self.replay.num_roots)}

    cdef _set_homes(self, affinity):
        """Ready tasks to the workers they ask for."""
        cdef const int32_t[::1] homes = np.where(affinity >= 0, affinity % self.team.num_threads, -1).astype(np.int32)
        if replay_set_homes(&self.replay, &homes[0]):
            raise MemoryError

    cdef _sort_roots(self, priority):
        """The owner takes the one with the highest priority first."""
        cdef int i
        roots = np.array([self.replay.roots[i] for i in range(self.replay.num_roots)], dtype=np.int64)
        homes = np.array([self.replay.root_homes[i] for i in range(self.replay.num_roots)], dtype=np.int64)
        order = np.argsort(priority[roots], kind="stable")
        for i in range(self.replay.num_roots):
            self.replay.roots[i] = roots[order[i]]
            self.replay.root_homes[i] = homes[order[i]]

    def __dealloc__(self):
        replay_close(&self.replay)

    def run(self, num_iterations, first_iteration=0):
        """Run whole passes of the plan; see the executors."""
        cdef int64_t first
        cdef int32_t count
        self.team.check()
        count, first = self._replays(num_iterations, first_iteration)
        if count == 0 or self.bound.num_tasks == 0:
            return
        with nogil:
            replay_reset(&self.replay, first, count)
        error = self.team.drive(
            replay_work, &self.replay, &self.replay.scheduler, self.dump, self.watchdog_s)
        self._finish(error, &self.replay.scheduler)

    def dump(self):
        """State of the workers and of the nodes that lag behind, as text."""
        cdef int32_t v, shown = 0, least = 2**31 - 1
        lines = _dump_workers(&self.replay.scheduler)
        for v in range(self.replay.num_nodes):
            least = min(least, self.replay.nodes[v].iteration)
        for v in range(self.replay.num_nodes):
            if self.replay.nodes[v].iteration == least and shown < 20:
                shown += 1
                name = self.bound.plan.task_name(v) if v < self.replay.num_tasks else f"join {v}"
                lines.append(
                    f"{name}: finished {self.replay.nodes[v].iteration} iterations, waits for "
                    f"{load_i32(&self.replay.nodes[v].pending)} of {self.replay.nodes[v].rearm}")
        return "\n".join(lines)


cdef class PartitionRuntime(_GraphRuntime):
    """Replay of a recorded graph compiled into one program per worker.

    Parameters
    ----------
    team : Team
    bound : BoundPlan
    graph : TaskGraph
        As for ReplayRuntime.
    cost : float64, shape (num_tasks,)
        Expected duration of each task, in any unit.
    event_capacity : int
    watchdog_s : float
    """

    cdef Partition partition

    def __cinit__(self, Team team, BoundPlan bound, graph, cost, int64_t event_capacity=0, double watchdog_s=60.0,
                  Workers workers=None, priority=None):
        cdef int error
        cdef int32_t num_nodes
        cdef double[::1] costs
        cdef const double[::1] priorities
        cdef const int32_t[::1] affinities
        cdef const double *priority_of = NULL
        cdef const int32_t *affinity_of = NULL
        memset(&self.partition, 0, sizeof(self.partition))
        self._set_up(team, bound, event_capacity, watchdog_s, workers)
        self._set_graph(graph)
        num_nodes = self.graph.num_nodes
        costs = np.append(np.asarray(cost, dtype=np.float64), 1.0)
        if len(costs) != bound.num_tasks + 1 or not (np.asarray(costs) > 0).all():
            raise UsageError(
                f"cost must hold a positive number for each of {bound.num_tasks} tasks, got {len(costs) - 1}; "
                f"leave it out for the plan's own")
        if priority is not None and len(priority):
            priorities = np.ascontiguousarray(priority, dtype=np.float64)
            priority_of = &priorities[0]
        if bound.plan.affinity is not None:
            affinities = bound.plan.affinity
            affinity_of = &affinities[0]
        with nogil:
            error = partition_open(
                &self.partition, team.num_threads, bound.loops, bound.num_loops, self.workers.states, team.spin_ns,
                bound.num_tasks, num_nodes, &self.offsets[0], &self.split[0], &self.successors[0], &self.intra[0],
                bound.task_loop, &costs[0], priority_of, affinity_of)
        self._drop_graph()
        if error == -2:
            raise AssertionError("a graph with a cycle in one iteration")
        if error:
            raise MemoryError
        self.partition.scheduler.places = team.places(bound)

    def __dealloc__(self):
        partition_close(&self.partition)

    def programs(self):
        """The tasks of each worker in the order of its program: list of int32 arrays."""
        cdef int32_t i
        tasks = np.array([self.partition.entries[i].task for i in range(self.partition.num_tasks)], dtype=np.int32)
        first = [self.partition.first[i] for i in range(self.team.num_threads + 1)]
        return [tasks[start:stop] for start, stop in zip(first[:-1], first[1:])]

    def num_waits(self):
        """Waits between programs that are left after all implied ones were dropped."""
        return self.partition.entries[self.partition.num_tasks].wait_begin

    def memory_bytes(self):
        """Bytes of the programs, claims, waits and edges."""
        cdef int64_t n = self.partition.num_tasks
        return (n * (sizeof(ProgramEntry) + sizeof(ClaimWord)) + 8 * self.num_waits()
                + 4 * (self.partition.num_nodes + self.partition.predecessor_offsets[self.partition.num_nodes]))

    def run(self, num_iterations, first_iteration=0):
        """Run whole passes of the plan; see the executors."""
        cdef int64_t first
        cdef int32_t count
        self.team.check()
        count, first = self._replays(num_iterations, first_iteration)
        if count == 0 or self.bound.num_tasks == 0:
            return
        with nogil:
            partition_reset(&self.partition, first, count)
        error = self.team.drive(
            partition_work, &self.partition, &self.partition.scheduler, self.dump, self.watchdog_s)
        self._finish(error, &self.partition.scheduler)

    def dump(self):
        """State of the workers and of their programs, as text."""
        cdef int w
        cdef int64_t progress, length
        cdef PartitionWorker *worker
        lines = _dump_workers(&self.partition.scheduler)
        for w in range(self.partition.scheduler.num_workers):
            worker = &self.partition.workers[w]
            length = self.partition.first[w + 1] - self.partition.first[w]
            progress = load_i64(&worker.progress)
            where = "an empty program"
            if length:
                task = self.partition.entries[self.partition.first[w] + progress % length].task
                where = f"iteration {progress // length}, at {self.bound.plan.task_name(task)}"
            lines.append(
                f"program {w}: {where}; last slept for {load_i64(&worker.wait_value)} of {load_i32(&worker.wait_on)}, "
                f"open until iteration {load_i32(&worker.open_until)}")
        return "\n".join(lines)


cdef class EagerRuntime(_Runtime):
    """Tasks created anew each iteration, dependences found at run time.

    Parameters
    ----------
    team : Team
    bound : BoundPlan
    wait_after : sequence of bool
        For each loop: does the creator wait for all tasks after it?
    window : int
        Tasks alive at once, rounded up to a power of two.
    event_capacity : int
    watchdog_s : float
    """

    cdef Eager eager
    cdef object arrays

    def __cinit__(self, Team team, BoundPlan bound, wait_after, int64_t window, int64_t event_capacity=0,
                  double watchdog_s=60.0):
        cdef EagerTable table
        cdef const int32_t[::1] task_offsets, access_list, list_offsets, list_cells
        cdef const uint8_t[::1] access_kind, waits
        cdef int error
        memset(&self.eager, 0, sizeof(self.eager))
        if not 1 <= window <= 1 << 24:
            raise UsageError(f"window must be in [1, {1 << 24}] tasks, got {window}; leave it out for the default")
        self._set_up(team, bound, event_capacity, watchdog_s)
        t = bound.plan.accesses
        arrays = [np.ascontiguousarray(a, dtype=np.int32) if len(a) else np.zeros(1, np.int32) for a in (
            t.task_offsets, t.access_list, t.list_offsets, t.list_cells)]
        task_offsets, access_list, list_offsets, list_cells = arrays
        kinds = np.append(np.asarray(t.access_kind, dtype=np.uint8), np.uint8(0))
        access_kind = kinds
        flags = np.append(np.asarray(wait_after, dtype=np.uint8), np.uint8(0))
        waits = flags
        self.arrays = (*arrays, kinds, flags)
        table.num_tasks = t.num_tasks
        table.num_cells = t.num_cells
        table.task_offsets = &task_offsets[0]
        table.access_kind = &access_kind[0]
        table.access_list = &access_list[0]
        table.list_offsets = &list_offsets[0]
        table.list_cells = &list_cells[0]
        error = eager_open(
            &self.eager, team.num_threads, bound.loops, bound.num_loops, self.workers.states, team.spin_ns, &table,
            &waits[0], window)
        if error:
            raise MemoryError
        self.eager.scheduler.places = team.places(bound)

    def __dealloc__(self):
        eager_close(&self.eager)

    def run(self, num_iterations, first_iteration=0):
        """Run whole passes of the plan; see the executors."""
        cdef int64_t first
        cdef int32_t count
        self.team.check()
        count, first = self._replays(num_iterations, first_iteration)
        if count == 0 or self.bound.num_tasks == 0:
            return
        with nogil:
            eager_reset(&self.eager, first, count)
        error = self.team.drive(eager_work, &self.eager, &self.eager.scheduler, self.dump, self.watchdog_s)
        if error is None and self.eager.out_of_memory:
            error = MemoryError("no memory for the readers of a cell")
        self._finish(error, &self.eager.scheduler)

    def dump(self):
        """State of the workers and of the window, as text."""
        lines = _dump_workers(&self.eager.scheduler)
        lines.append(f"tasks {self.eager.oldest} to {self.eager.next_serial} are alive, window {self.eager.window}")
        return "\n".join(lines)


# Registered here, while the process most likely has one thread: with several the kernel waits 15 ms for the others, and
# the first executor would pay for it.
ft_register_membarrier()
