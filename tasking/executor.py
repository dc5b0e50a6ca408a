"""The task executors: eager tasks, recorded and replayed graphs, cyclic graphs without barrier."""

from __future__ import annotations

import math
import os

import numpy as np

from ..cython_src.affinity import usable_cpus
from ..cython_src.binding.execution_model import Conduct
from ..cython_src.binding.executor import BaseExecutor, check_whole
from ..cython_src.errors import UsageError
from ..cython_src.plan.barriers import barrier_after, record_with_barriers
from ..cython_src.plan.unroll import unroll
from .models import TASKGRAPH, TASKITER, TASKS
from .runtimes import CALLER_WAKES_NS, HAS_MEMBARRIER, EagerRuntime, ProgramRuntime, ReplayRuntime, Threads

# Rough rates of one core, for plans that were not measured.
FLOPS_PER_NS, BYTES_PER_NS = 100, 10
MOST_SPIN_NS = 10**12

# Idle threads look for work this long before they sleep: longer than a futex wake-up takes, short enough that a
# phase without work costs no CPU. With more threads than CPUs a spinning thread keeps a working one away.
SPIN_NS = 50_000
SPIN_NS_OVERSUBSCRIBED = 2_000
# With OMP_WAIT_POLICY=active OpenMP's idle threads spin practically for ever; a worker sleeps after this time.
SPIN_NS_ACTIVE = 10_000_000


def check_seconds(name, value):
    """Return a duration that is not negative, or raise `UsageError`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise UsageError(f"{name} must be a number of seconds from 0 on, got {value!r}; 0 switches it off")
    return float(value)


def default_spin_ns(num_threads, num_cpus):
    """Return how long an idle thread spins: 50 us, 2 us with more threads than CPUs, or by OMP_WAIT_POLICY."""
    policy = os.environ.get("OMP_WAIT_POLICY", "").strip().lower()
    if policy == "active":
        return SPIN_NS_ACTIVE
    return SPIN_NS_OVERSUBSCRIBED if policy == "passive" or num_threads > num_cpus else SPIN_NS


def expected_cost_ns(plan):
    """Return the rough duration of each task, float64, shape (num_tasks,); only ratios matter."""
    flops = np.fromiter((block.flops for loop in plan.loops for block in loop.blocks), np.float64, plan.num_tasks)
    num_bytes = np.fromiter((block.bytes for loop in plan.loops for block in loop.blocks), np.float64, plan.num_tasks)
    return np.maximum(flops / FLOPS_PER_NS, num_bytes / BYTES_PER_NS) + 10


class _TaskingExecutor(BaseExecutor):
    """Base of the task executors: the team of threads, the event log, `run`. The thread that calls `run` executes no
    block: it sleeps, and polls for signals. `watchdog_s`: seconds without any progress after which a run is stopped
    with an error, 0: never; `spin_ns`: how long a thread without work looks for some before it sleeps."""

    naps = False

    def __init__(self, num_threads, *, watchdog_s=60.0, spin_ns=None, **settings):
        super().__init__(num_threads, **settings)
        num_cpus = len(usable_cpus()) if self.cpus is None else len(set(self.cpus))
        if spin_ns is None:
            spin_ns = default_spin_ns(self.num_threads, num_cpus)
        self.watchdog_s = check_seconds("watchdog_s", watchdog_s)
        spin_ns = check_whole("spin_ns", spin_ns, 0, MOST_SPIN_NS)
        self._team = Threads(self.num_threads, self.cpus, spin_ns, self.places)
        self._runtime = None

    def _run(self, bound, first_replay, num_replays):
        bound.check_unchanged()
        self._runtime.run(num_replays, first_replay)

    def conduct(self):
        """Return what this executor does besides running blocks."""
        return Conduct(
            caller_executes=False,
            caller_wakes_ns=CALLER_WAKES_NS,
            threads_start="executor",
            pinned="no" if self.cpus is None else "at start",
            idle_runtime="forktask",
            spin_ns=self._team.spin_ns,
            wait_policy=os.environ.get("OMP_WAIT_POLICY", ""),
            naps=self.naps,
            membarrier=HAS_MEMBARRIER,
            blocks_signals=True,
        )

    def _forget(self):
        self._runtime = None

    def _end(self):
        self._team.close()


class TasksExecutor(_TaskingExecutor):
    """Tasks created anew each iteration by one of the threads, dependences found at run time."""

    about = TASKS

    def _prepare(self, bound):
        self._runtime = EagerRuntime(
            self._team,
            bound,
            barrier_after(bound.plan, self.options.taskwait),
            self.options.window,
            self.event_capacity,
            self.watchdog_s,
        )
        self._workers = self._runtime.workers


class _ReplayExecutor(_TaskingExecutor):
    """Base of the replaying executors: recording and placement."""

    barrier = "none"

    @property
    def naps(self):
        """Whether a worker that sleeps also wakes by itself, to look for tasks to claim."""
        return self.options.placement == "partitioned"

    def record(self, bound):
        """Find the plan's dependences: the TaskGraph that `prepare` takes, so that each step can be timed apart."""
        return record_with_barriers(bound.plan, self.barrier)

    def _prepare(self, bound, graph=None):
        self._runtime = self._compile(bound, self.record(bound) if graph is None else graph)
        self._workers = self._runtime.workers

    def _compile(self, bound, graph, workers=None):
        """Make the runtime for a graph; `workers`: those of another runtime, to share."""
        options = (self.event_capacity, self.watchdog_s, workers)
        if self.options.placement == "stealing":
            return ReplayRuntime(self._team, bound, graph, *options)
        newest = self.options.priority == "newest"
        return ProgramRuntime(self._team, bound, graph, expected_cost_ns(bound.plan), *options, newest)


class TaskGraphExecutor(_ReplayExecutor):
    """A graph recorded once and replayed, with a barrier between iterations (OpenMP 6.0 `taskgraph`)."""

    about = TASKGRAPH

    @property
    def barrier(self):
        return self.options.barrier


class TaskIterExecutor(_ReplayExecutor):
    """A graph recorded once, closed cyclically and replayed without barrier: iteration k + 1 overlaps iteration k."""

    about = TASKITER
    _rest = None  # runs what is left over of an unrolled graph

    def unrolled(self, plan):
        """Return the plan of which one pass is the `unroll` iterations of this executor's graph."""
        inputs = [b.name for b in plan.buffers.values() if b.role == "input" and b.name not in plan.arena_of]
        return unroll(plan, self.options.unroll, dict.fromkeys(inputs, self.options.slots))

    def record(self, bound):
        """Find the dependences of `unroll` iterations in a row: the TaskGraph that `prepare` takes."""
        return record_with_barriers(self.unrolled(bound.plan), self.barrier)

    def _prepare(self, bound, graph=None):
        if self.options.unroll == 1:
            super()._prepare(bound, graph)
            return
        self._runtime = self._compile(bound.again(self.unrolled(bound.plan)), graph or self.record(bound))
        self._workers = self._runtime.workers
        self._workers.tasks_per_pass = bound.num_tasks
        self._rest = self._compile(bound, record_with_barriers(bound.plan, self.barrier), self._workers)

    def _run(self, bound, first_replay, num_replays):
        if self._rest is None:
            super()._run(bound, first_replay, num_replays)
            return
        bound.check_unchanged()
        times = self.options.unroll
        left_over = num_replays % times
        if num_replays >= times:
            self._runtime.bound.shift_iterations(first_replay % times * bound.iteration_stride)
            self._runtime.run(num_replays // times, first_replay // times)
        self._rest.run(left_over, first_replay + num_replays - left_over)

    def _forget(self):
        self._rest = None
        super()._forget()
