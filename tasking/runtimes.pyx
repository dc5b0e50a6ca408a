"""The runtimes behind the executors: replay of recorded graphs, by deques or by programs, and eager tasks.

The C headers beside this file hold the algorithms; here they meet plans and Python errors.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memset

from ..cython_src.binding.bind cimport BoundPlan, Workers
from .headers cimport (
    COMPILE_CYCLE, RUN_STOPPED, ClaimWord, Eager, EagerTable, ProgramEntry, ProgramWorker, Programs, RecordedGraph,
    Replay, ReplayNode, Scheduler, TaskHints, TeamJob, deque_size_hint, eager_close, eager_open, eager_reset,
    eager_work, load_i32, load_i64, load_u32, programs_close, programs_open, programs_reset, programs_work,
    replay_close, replay_open, replay_reset, replay_work,
)
from .team cimport Team

import numpy as np

from ..cython_src.binding.executor_contract import check_run
from ..cython_src.errors import UsageError


cdef _dump_workers(Scheduler *s):
    cdef int w
    lines = [f"ending {load_i32(&s.ending)}, {load_i32(&s.idle.num_announced)} workers announced as idle"]
    for w in range(s.num_workers):
        lines.append(
            f"worker {w}: {load_i64(&s.workers[w].num_executed)} blocks finished, runs "
            f"{load_i32(&s.workers[w].current)}, {deque_size_hint(&s.workers[w].deque)} in its deque, "
            f"{'asleep' if load_u32(&s.idle.workers[w].word) else 'awake'}")
    return lines


cdef class _Runtime:
    """Base of all runtimes: the bound plan, its workers, and a run from its check to its end."""

    cdef readonly Team team
    cdef readonly BoundPlan bound
    cdef readonly Workers workers
    cdef readonly double watchdog_s
    cdef TeamJob job  # what each worker does in a run, with `state`
    cdef void *state
    cdef Scheduler *scheduler

    cdef _set_up(self, Team team, BoundPlan bound, int64_t event_capacity, double watchdog_s, Workers workers=None):
        self.team = team
        self.bound = bound
        self.watchdog_s = watchdog_s
        if workers is not None:  # another runtime's, for the same plan
            self.workers = workers
            return
        self.workers = Workers(team.num_threads, bound.scratch_bytes, event_capacity)
        team.touch(self.workers, bound.scratch_bytes)

    cdef _set_job(self, TeamJob job, void *state, Scheduler *scheduler):
        """Say what workers do, and let them exchange CPUs if the team may."""
        self.job = job
        self.state = state
        self.scheduler = scheduler
        scheduler.cpu_swap = self.team.cpu_swap(self.bound)

    cdef void _reset(self, int64_t first, int32_t count) noexcept nogil:
        """Prepare `state` for `count` replays, the first of which is `first`."""

    cdef _find_error(self):
        """Return the exception for an error that workers have noted in `state`, or None."""

    def dump(self):
        """State of the workers and of what they work on, as text."""
        return "\n".join(_dump_workers(self.scheduler))

    def run(self, num_iterations, first_iteration=0):
        """Run whole passes of the plan; see the executors."""
        cdef int64_t first
        cdef int32_t count
        count, first = check_run(num_iterations, first_iteration, self.bound.iteration_stride)
        if count == 0 or self.bound.num_tasks == 0:
            return
        with nogil:
            self._reset(first, count)
        error = self.team.drive(self.job, self.state, self.scheduler, self.dump, self.watchdog_s)
        if error is None:
            error = self._find_error()
        stopped = load_i32(&self.scheduler.ending) == RUN_STOPPED
        if error is not None:
            self.bound.discard_failure(self.workers)
            raise error
        if stopped:
            self.bound.raise_failure(self.workers)


cdef class _GraphRuntime(_Runtime):
    """Base of the replaying runtimes: checks a recorded graph and keeps it until its form for replay has been made."""

    cdef object graph
    cdef RecordedGraph record
    # Never empty, so that each has an address.
    cdef const int32_t[::1] offsets, split, successors, intra, cross

    cdef _set_graph(self, graph):
        if graph.num_tasks != self.bound.num_tasks:
            raise UsageError(
                f"the graph must be the plan's own, but it has {graph.num_tasks} tasks and plan "
                f"{self.bound.plan.name!r} has {self.bound.num_tasks}; record it again")
        if not graph.closed:
            raise UsageError("a graph must be closed for replay, got an open one; use the executor's record()")
        self.graph = graph
        self.offsets = graph.successor_offsets
        self.split, self.successors, self.intra, self.cross = (
            array if len(array) else np.zeros(1, np.int32)
            for array in (graph.successor_split, graph.successors, graph.num_intra, graph.num_cross))
        self.record.num_tasks = self.bound.num_tasks
        self.record.num_nodes = graph.num_nodes
        self.record.num_loops = self.bound.num_loops
        self.record.loops = self.bound.loops
        self.record.task_loop = self.bound.task_loop
        self.record.successor_offsets = &self.offsets[0]
        self.record.successor_split = &self.split[0]
        self.record.successors = &self.successors[0]
        self.record.num_intra = &self.intra[0]
        self.record.num_cross = &self.cross[0]

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
        error = replay_open(&self.replay, &self.record, team.num_threads, self.workers.states, team.spin_ns)
        self._drop_graph()
        if error:
            raise MemoryError
        self._set_job(replay_work, &self.replay, &self.replay.scheduler)
        if priority is not None:
            self._sort_roots(np.asarray(priority))

    def memory_bytes(self):
        """Bytes of the nodes, edges and deques."""
        cdef int64_t n = self.replay.num_nodes, deques = 0
        cdef int w
        for w in range(self.team.num_threads):
            deques += 4 * (self.replay.scheduler.workers[w].deque.mask + 1)
        return n * (sizeof(ReplayNode) + 4) + 8 * self.replay.num_tasks + 4 * self.replay.num_edges + deques

    cdef _sort_roots(self, priority):
        """Sort the roots so that a worker takes the one with the highest priority first."""
        cdef int i
        roots = np.array([self.replay.roots[i] for i in range(self.replay.num_roots)], dtype=np.int64)
        workers = np.array([self.replay.root_workers[i] for i in range(self.replay.num_roots)], dtype=np.int64)
        order = np.argsort(priority[roots], kind="stable")
        for i in range(self.replay.num_roots):
            self.replay.roots[i] = roots[order[i]]
            self.replay.root_workers[i] = workers[order[i]]

    def __dealloc__(self):
        replay_close(&self.replay)

    cdef void _reset(self, int64_t first, int32_t count) noexcept nogil:
        replay_reset(&self.replay, first, count)

    def dump(self):
        """State of the workers and of the nodes that lag behind, as text."""
        cdef int32_t v, shown = 0, least = 2**31 - 1
        lines = _dump_workers(self.scheduler)
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


cdef class ProgramRuntime(_GraphRuntime):
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
    workers, priority
        As for ReplayRuntime.
    """

    cdef Programs compiled

    def __cinit__(self, Team team, BoundPlan bound, graph, cost, int64_t event_capacity=0, double watchdog_s=60.0,
                  Workers workers=None, priority=None):
        cdef int error
        cdef double[::1] costs
        cdef const double[::1] priorities
        cdef const int32_t[::1] affinities
        cdef TaskHints hints
        memset(&hints, 0, sizeof(hints))
        memset(&self.compiled, 0, sizeof(self.compiled))
        self._set_up(team, bound, event_capacity, watchdog_s, workers)
        self._set_graph(graph)
        costs = np.append(np.asarray(cost, dtype=np.float64), 1.0)
        if len(costs) != bound.num_tasks + 1 or not (np.asarray(costs) > 0).all():
            raise UsageError(
                f"cost must hold a positive number for each of {bound.num_tasks} tasks, got {len(costs) - 1}; "
                f"leave it out for the plan's own")
        if priority is not None and len(priority):
            priorities = np.ascontiguousarray(priority, dtype=np.float64)
            hints.priority = &priorities[0]
        if bound.plan.affinity is not None:
            affinities = bound.plan.affinity
            hints.affinity = &affinities[0]
        hints.cost = &costs[0]
        with nogil:
            error = programs_open(
                &self.compiled, &self.record, &hints, team.num_threads, self.workers.states, team.spin_ns)
        self._drop_graph()
        if error == COMPILE_CYCLE:
            raise AssertionError("a graph with a cycle in one iteration")
        if error:
            raise MemoryError
        self._set_job(programs_work, &self.compiled, &self.compiled.scheduler)

    def __dealloc__(self):
        programs_close(&self.compiled)

    def programs(self):
        """The tasks of each worker in the order of its program: list of int32 arrays."""
        cdef int32_t i
        tasks = np.array([self.compiled.entries[i].task for i in range(self.compiled.num_tasks)], dtype=np.int32)
        first = [self.compiled.first[i] for i in range(self.team.num_threads + 1)]
        return [tasks[start:stop] for start, stop in zip(first[:-1], first[1:])]

    def num_waits(self):
        """Waits between programs that are left after all implied ones were dropped."""
        return self.compiled.entries[self.compiled.num_tasks].wait_begin

    def memory_bytes(self):
        """Bytes of the programs, claims, waits and edges."""
        cdef int64_t n = self.compiled.num_tasks
        return (n * (sizeof(ProgramEntry) + sizeof(ClaimWord)) + 8 * self.num_waits()
                + 4 * (self.compiled.num_nodes + self.compiled.predecessor_offsets[self.compiled.num_nodes]))

    cdef void _reset(self, int64_t first, int32_t count) noexcept nogil:
        programs_reset(&self.compiled, first, count)

    def dump(self):
        """State of the workers and of their programs, as text."""
        cdef int w
        cdef int64_t progress, length
        cdef ProgramWorker *worker
        lines = _dump_workers(self.scheduler)
        for w in range(self.compiled.scheduler.num_workers):
            worker = &self.compiled.workers[w]
            length = self.compiled.first[w + 1] - self.compiled.first[w]
            progress = load_i64(&worker.progress)
            where = "an empty program"
            if length:
                task = self.compiled.entries[self.compiled.first[w] + progress % length].task
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
        self._set_job(eager_work, &self.eager, &self.eager.scheduler)

    def __dealloc__(self):
        eager_close(&self.eager)

    cdef void _reset(self, int64_t first, int32_t count) noexcept nogil:
        eager_reset(&self.eager, first, count)

    cdef _find_error(self):
        return MemoryError("no memory for the readers of a cell") if self.eager.out_of_memory else None

    def dump(self):
        """State of the workers and of the window, as text."""
        lines = _dump_workers(self.scheduler)
        lines.append(f"tasks {self.eager.oldest} to {self.eager.next_serial} are alive, window {self.eager.window}")
        return "\n".join(lines)
