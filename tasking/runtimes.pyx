"""The runtimes behind the executors: a team of plain threads and how it is driven through a run (signals, progress, the
end); replay of recorded graphs, by deques or by programs; eager tasks.

The C headers beside this file hold the algorithms; here they meet plans and Python errors.
"""

from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memset
from posix.unistd cimport getpid

from ..cython_src.binding.bind cimport BoundPlan, Workers, kept
from runtimes_c cimport *

import os

import numpy as np

from ..cython_src.errors import UsageError


# How often the waiting caller looks for signals and for progress. A tenth of a second is what a user notices.
CALLER_WAKES_NS = 20_000_000
cdef int64_t POLL_NS = CALLER_WAKES_NS
# Registered at import, while the process most likely has one thread: with several the kernel waits 15 ms for the
# others, and the first executor would pay for it.
HAS_MEMBARRIER = bool(ft_register_membarrier())
# Shortest task that is worth a claim, and pauses before a waiting worker looks for one: programs.h.
CLAIM_NS, PATIENCE = PROGRAM_CLAIM_NS, PROGRAM_PATIENCE


cdef struct TouchJob:
    WorkerState *states
    size_t scratch_bytes


cdef void touch_work(void *argument, int32_t worker) noexcept nogil:
    """First touch of its scratch memory by the worker that uses it."""
    cdef TouchJob *job = <TouchJob *> argument
    memset(job.states[worker].context.scratch, 0, job.scratch_bytes)


class StuckGraph(RuntimeError):
    """The watchdog found no progress: no block ran or finished for the given time. The message holds the state."""


cdef class Threads:
    """Plain threads that run blocks; the thread that starts a run waits and polls for signals.

    An idle thread looks for work for `spin_ns` before it sleeps. `places`: see `BaseExecutor`. Raises `UsageError`:
    threads that cannot be started.
    """

    cdef Team team
    cdef readonly int num_threads
    cdef readonly int64_t spin_ns
    cdef int owner_pid
    cdef int32_t[:, ::1] table_of_places
    cdef const int32_t *places   # of the table, or NULL

    def __cinit__(self, int num_threads, cpus=None, int64_t spin_ns=50_000, places=None):
        cdef int32_t[::1] list_of_cpus
        cdef const int32_t *pinned = NULL
        cdef int error
        memset(&self.team, 0, sizeof(self.team))
        self.owner_pid = getpid()
        if cpus is not None:
            list_of_cpus = np.array(cpus, dtype=np.int32)
            pinned = &list_of_cpus[0]
        if places is not None:
            self.table_of_places = np.array(places, dtype=np.int32).reshape(num_threads, PLACE_LEVELS)
            self.places = &self.table_of_places[0, 0]
        self.num_threads = num_threads
        self.spin_ns = spin_ns
        error = team_open(&self.team, num_threads, pinned, spin_ns)
        if error:
            raise UsageError(
                f"{num_threads} threads must be available, but starting them failed: {os.strerror(error)}; use fewer")

    def __dealloc__(self):
        self._end()

    def close(self):
        """End the threads."""
        self._end()

    cdef void _end(self):
        # After a fork the threads are the parent's; there is nothing here to end.
        if self.owner_pid == getpid():
            with nogil:
                team_close(&self.team)

    cdef int touch(self, Workers workers, Py_ssize_t scratch_bytes) except -1:
        cdef TouchJob job = TouchJob(workers.states, scratch_bytes)
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
                        f"no block ran or finished for {watchdog_s:g} s; this is an error of the runtime or of the "
                        f"graph, please report it with the state that follows\n{dump()}")
                    scheduler_end(scheduler, RUN_STOPPED)
            with nogil:
                done = team_wait(&self.team, POLL_NS)
        return error


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

    cdef readonly Threads team
    cdef readonly BoundPlan bound
    cdef readonly Workers workers
    cdef readonly double watchdog_s
    cdef TeamJob job  # what each worker does in a run, with `state`
    cdef void *state
    cdef Scheduler *scheduler

    cdef _set_up(self, Threads team, BoundPlan bound, int64_t event_capacity, double watchdog_s, Workers workers):
        self.team = team
        self.bound = bound
        self.watchdog_s = watchdog_s
        if workers is not None:  # another runtime's, for the same plan
            self.workers = workers
            return
        self.workers = Workers(team.num_threads, bound.scratch_bytes, event_capacity)
        team.touch(self.workers, bound.scratch_bytes)

    cdef _set_job(self, TeamJob job, void *state, Scheduler *scheduler):
        self.job = job
        self.state = state
        self.scheduler = scheduler

    cdef void _reset(self, int64_t first, int32_t count) noexcept nogil:
        """Prepare `state` for `count` replays, the first of which is `first`."""

    cdef _find_error(self):
        """Return the exception for an error that workers have noted in `state`, or None."""

    def dump(self):
        """State of the workers and of what they work on, as text."""
        return "\n".join(_dump_workers(self.scheduler))

    def run(self, int32_t count, int64_t first):
        """Run `count` passes of the plan, number `first` and those after it."""
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


cdef class _Recorded:
    """A plan's recorded graph as the C headers take it, but for its loops; keeps the arrays."""

    cdef RecordedGraph graph
    cdef list keep

    def __cinit__(self, plan, graph):
        if graph.num_tasks != plan.num_tasks:
            raise UsageError(
                f"the graph must be the plan's own, but it has {graph.num_tasks} tasks and plan {plan.name!r} has "
                f"{plan.num_tasks}; record it again")
        if not graph.closed:
            raise UsageError("a graph must be closed for replay, got an open one; use the executor's record()")
        self.keep = []
        self.graph.num_tasks, self.graph.num_nodes, self.graph.num_loops = (
            plan.num_tasks, graph.num_nodes, len(plan.loops))
        self.graph.task_loop = <const int32_t *> kept(self.keep, plan.task_loop, np.int32)
        self.graph.successor_offsets = <const int32_t *> kept(self.keep, graph.successor_offsets, np.int32)
        self.graph.successor_split = <const int32_t *> kept(self.keep, graph.successor_split, np.int32)
        self.graph.successors = <const int32_t *> kept(self.keep, graph.successors, np.int32)
        self.graph.num_intra = <const int32_t *> kept(self.keep, graph.num_intra, np.int32)
        self.graph.num_cross = <const int32_t *> kept(self.keep, graph.num_cross, np.int32)


cdef _check_compiled(int status):
    if status == COMPILE_CYCLE:
        raise AssertionError("a graph with a cycle in one iteration")
    if status:
        raise MemoryError


def program_order(plan, graph, cost, int num_workers, bint newest=False):
    """Return the tasks of each worker in the order of its program: list of int32 arrays, one for each worker.

    The same as `ProgramRuntime.programs`, for any number of workers and by the same arguments: no threads are started.
    """
    cdef _Recorded recorded = _Recorded(plan, graph)
    cdef TaskHints hints
    cdef int status
    cdef Py_ssize_t i
    home, order = np.zeros((2, plan.num_tasks + 1), np.int32)
    cdef int32_t[::1] home_view = home, order_view = order
    cdef LoopRecord *loops = <LoopRecord *> kept(
        recorded.keep, np.zeros(len(plan.loops) * sizeof(LoopRecord), np.uint8), np.uint8)
    for i, loop in enumerate(plan.loops):
        loops[i].first_task, loops[i].num_blocks = loop.first_task, loop.num_blocks
    recorded.graph.loops = loops
    hints.cost, hints.newest_first = <const double *> kept(recorded.keep, cost, np.float64), newest
    with nogil:
        status = programs_order(&recorded.graph, &hints, num_workers, &home_view[0], &order_view[0])
    _check_compiled(status)
    home, order = home[:-1], order[:-1]
    ends = np.cumsum(np.bincount(home, minlength=num_workers))
    return np.split(order[np.argsort(home[order], kind="stable")], ends[:-1])


cdef class ReplayRuntime(_Runtime):
    """Replay of a recorded graph, closed, with work-stealing deques.

    A run is stopped after `watchdog_s` without any progress, 0: never. `workers`, if any, are those of a runtime for
    the same plan, to share.
    """

    cdef Replay replay

    def __cinit__(self, Threads team, BoundPlan bound, graph, int64_t event_capacity, double watchdog_s,
                  Workers workers):
        cdef _Recorded recorded = _Recorded(bound.plan, graph)
        memset(&self.replay, 0, sizeof(self.replay))
        self._set_up(team, bound, event_capacity, watchdog_s, workers)
        recorded.graph.loops = bound.loops
        if replay_open(
                &self.replay, &recorded.graph, team.num_threads, team.places, self.workers.states, team.spin_ns):
            raise MemoryError
        self._set_job(replay_work, &self.replay, &self.replay.scheduler)

    def memory_bytes(self):
        """Bytes of the nodes, edges and deques."""
        cdef int64_t n = self.replay.num_nodes, deques = 0
        cdef int w
        for w in range(self.team.num_threads):
            deques += 4 * (self.replay.scheduler.workers[w].deque.mask + 1)
        return n * (sizeof(ReplayNode) + 4) + 8 * self.replay.num_tasks + 4 * self.replay.num_edges + deques

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


cdef class ProgramRuntime(_Runtime):
    """Replay of a recorded graph compiled into one program per worker. `cost`, float64, shape (num_tasks,): expected
    duration of each task, positive, ns; `newest`: a worker takes its newest ready task, no other order is tried; others
    as for `ReplayRuntime`."""

    cdef Programs compiled

    def __cinit__(self, Threads team, BoundPlan bound, graph, cost, int64_t event_capacity, double watchdog_s,
                  Workers workers, bint newest=False):
        cdef _Recorded recorded = _Recorded(bound.plan, graph)
        cdef TaskHints hints
        cdef int error
        memset(&self.compiled, 0, sizeof(self.compiled))
        self._set_up(team, bound, event_capacity, watchdog_s, workers)
        recorded.graph.loops = bound.loops
        hints.cost, hints.newest_first = <const double *> kept(recorded.keep, cost, np.float64), newest
        with nogil:
            error = programs_open(
                &self.compiled, &recorded.graph, &hints, team.num_threads, self.workers.states, team.spin_ns)
        _check_compiled(error)
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
    """Tasks created anew each iteration, at most `window` alive at once, rounded up to a power of two, dependences
    found at run time. `wait_after`: of each loop, whether the creator waits for all tasks after it."""

    cdef Eager eager
    cdef list keep

    def __cinit__(self, Threads team, BoundPlan bound, wait_after, int64_t window, int64_t event_capacity,
                  double watchdog_s):
        cdef EagerTable table
        memset(&self.eager, 0, sizeof(self.eager))
        self._set_up(team, bound, event_capacity, watchdog_s, None)
        self.keep = []
        t = bound.plan.accesses
        table.num_tasks = t.num_tasks
        table.num_cells = t.num_cells
        table.task_offsets = <const int32_t *> kept(self.keep, t.task_offsets, np.int32)
        table.access_kind = <const uint8_t *> kept(self.keep, t.access_kind, np.uint8)
        table.access_list = <const int32_t *> kept(self.keep, t.access_list, np.int32)
        table.list_offsets = <const int32_t *> kept(self.keep, t.list_offsets, np.int32)
        table.list_cells = <const int32_t *> kept(self.keep, t.list_cells, np.int32)
        if eager_open(&self.eager, team.num_threads, team.places, bound.loops, bound.num_loops, self.workers.states,
                      team.spin_ns, &table, <const uint8_t *> kept(self.keep, wait_after, np.uint8), window):
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
