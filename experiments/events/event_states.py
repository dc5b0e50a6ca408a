"""States of workers: from the event log of a run to what each worker did at every moment, and why it waited.

The blocks of the log and the plan's graph give the times at which each task became ready. So a waiting worker waits
with a ready task elsewhere, behind a barrier while the data of some task are there, for a task that has not been
created, or for a dependence, whatever the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...cython_src.binding.bind import SPELL_KINDS
from ...cython_src.binding.execution_model import ExecutionModel
from ...cython_src.plan.barriers import barrier_after
from ...cython_src.plan.dependences import TaskGraph

STATES = (
    "running",
    "scheduling",
    "creating",
    "waiting_ready",
    "waiting_none",
    "barrier",
    "lock",
    "asleep",
    "preempted",
)
(RUNNING, SCHEDULING, CREATING, WAITING_READY, WAITING_NONE, BARRIER, LOCK, ASLEEP, PREEMPTED) = range(len(STATES))
# What a worker waits for: a predecessor of every task that is left; nothing, a ready task stands elsewhere; a barrier,
# while the data of some task are there; the creation of a task whose data are there; or it is in the middle of a block.
CAUSES = ("dependence", "ready", "barrier", "creation", "block")
DEPENDENCE, READY, BEHIND_BARRIER, CREATION, IN_BLOCK = range(len(CAUSES))
STATE_DTYPE = np.dtype(
    [
        ("start_ns", "<i8"),
        ("stop_ns", "<i8"),
        ("iteration", "<i8"),
        ("task", "<i4"),
        ("worker", "<i2"),
        ("state", "u1"),
        ("cause", "u1"),
    ]
)
# A task that is handed on is ready for some hundred ns: no worker could have begun it sooner.
HANDING_ON_NS = 500


@dataclass(frozen=True, eq=False)
class Instances:
    """Times of each task in each pass of a run, ns: int64 arrays of shape (passes, tasks)."""

    start: np.ndarray
    stop: np.ndarray
    data_ready: np.ndarray  # when its last predecessor stopped; start of the run without any
    allowed: np.ndarray  # the same or, if later, when the last task before the barrier ahead of it stopped
    created: np.ndarray  # the same or, if later, when it was created; for models that create tasks


def ready_times(graph: TaskGraph, stop: np.ndarray, run_start: int) -> np.ndarray:
    """Return when each task of each pass had all its data, int64, shape (passes, tasks), as `stop`. The graph is
    closed: edges with a token lead to the next pass."""
    source, target, token = graph.edges()
    order = np.argsort(target, kind="stable")
    source, target, token = source[order], target[order], token[order].astype(bool)
    nodes, first = np.unique(target, return_index=True)
    of_join = np.isin(target, np.arange(graph.num_tasks, graph.num_nodes))
    join_nodes, join_first = np.unique(target[of_join], return_index=True)
    finished = np.full((2, graph.num_nodes), run_start, np.int64)  # of the pass before, of this pass
    ready = np.full(stop.shape, run_start, np.int64)
    for k in range(len(stop)):
        finished[0] = finished[1]
        finished[1, : graph.num_tasks] = stop[k]
        finished[1, graph.num_tasks :] = run_start
        # Joins may follow joins: repeat until nothing moves.
        while len(join_nodes):
            before = finished[1, join_nodes].copy()
            times = np.where(token[of_join], finished[0, source[of_join]], finished[1, source[of_join]])
            finished[1, join_nodes] = np.maximum.reduceat(times, join_first)
            if (finished[1, join_nodes] == before).all():
                break
        if len(nodes):
            times = np.maximum.reduceat(np.where(token, finished[0, source], finished[1, source]), first)
            of_task = nodes < graph.num_tasks
            ready[k, nodes[of_task]] = times[of_task]
    return ready


def instances(plan, graph: TaskGraph, blocks: np.ndarray, created: np.ndarray, barrier: str, run_start: int):
    """Return the `Instances` of a run from its blocks.

    Parameters
    ----------
    blocks : structured array as of `Workers.events`
    created : structured array as of `Workers.spells`: creations of tasks; may be empty
    barrier : {"loop", "phase", "iteration", "none"}

    Raises
    ------
    RuntimeError
        A block was not run exactly once in each pass.
    """
    passes = blocks["iteration"] // plan.iteration_stride
    first, num_passes = int(passes.min()), int(passes.max() - passes.min()) + 1
    place = (passes - first) * plan.num_tasks + blocks["task"]
    if len(place) != num_passes * plan.num_tasks or len(np.unique(place)) != len(place):
        raise RuntimeError(
            f"each of {plan.num_tasks} blocks must run once in each of {num_passes} passes, the log has {len(place)} "
            f"events"
        )
    start, stop = np.empty((2, num_passes, plan.num_tasks), np.int64)
    start.flat[place], stop.flat[place] = blocks["start_ns"], blocks["stop_ns"]
    data_ready = np.minimum(ready_times(graph, stop, run_start), start)
    allowed = data_ready
    if barrier != "none":
        end = segment_ends(plan, stop, barrier)
        before = np.concatenate([[run_start], np.maximum.accumulate(end.ravel())[:-1]]).reshape(end.shape)
        allowed = np.minimum(np.maximum(data_ready, before[:, segment_of_task(plan, barrier)]), start)
    ready = allowed
    if len(created):
        ready = allowed.copy()
        place = (created["replay"] - first) * plan.num_tasks + created["task"]
        ready.flat[place] = np.minimum(np.maximum(ready.flat[place], created["stop_ns"]), start.flat[place])
    return Instances(start, stop, data_ready, allowed, ready)


def segment_of_task(plan, barrier: str) -> np.ndarray:
    """Return the number of barriers before each task's loop in a pass, int64, shape (num_tasks,)."""
    ends = np.array(barrier_after(plan, barrier), np.int64)
    return (np.cumsum(ends) - ends)[plan.task_loop]


def segment_ends(plan, stop: np.ndarray, barrier: str, largest: bool = True) -> np.ndarray:
    """Return when the last task (not `largest`: the first) ahead of each barrier stopped, shape (passes, barriers)."""
    segment = segment_of_task(plan, barrier)  # ascending
    first = np.unique(segment, return_index=True)[1]
    return (np.maximum if largest else np.minimum).reduceat(stop, first, axis=1)


def waiting_causes(run: Instances) -> tuple[np.ndarray, np.ndarray]:
    """Return (times, causes): from each time on a worker that waits does so for this cause (see `CAUSES`)."""
    starts = np.sort(run.start, axis=None)
    counted = {name: np.sort(getattr(run, name), axis=None) for name in ("data_ready", "allowed", "created")}
    times = np.unique(np.concatenate([starts, *counted.values()]))
    started = np.searchsorted(starts, times, "right")
    open_ = {name: np.searchsorted(began, times, "right") > started for name, began in counted.items()}
    causes = np.select(
        [open_["created"], open_["allowed"], open_["data_ready"]], [READY, CREATION, BEHIND_BARRIER], DEPENDENCE
    ).astype(np.uint8)
    times, causes = _changes(times, causes)
    # A task that is only handed on hides no other cause: take the one before.
    short = (causes[:-1] != DEPENDENCE) & (np.diff(times) < HANDING_ON_NS)
    kept = np.r_[~short, True]
    return _changes(times[kept], causes[kept])


def _changes(times: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the entries of a step function at which it changes."""
    kept = np.r_[True, values[1:] != values[:-1]][: len(values)]
    return times[kept], values[kept]


def _inside(starts: np.ndarray, stops: np.ndarray, moments: np.ndarray) -> np.ndarray:
    """Return for each moment the number of the interval that holds it, -1: none. Intervals are sorted and apart."""
    if not len(starts):
        return np.full(len(moments), -1)
    number = np.searchsorted(starts, moments, "right") - 1
    return np.where((number >= 0) & (stops[number] > moments), number, -1)


def worker_states(
    plan,
    run: Instances,
    blocks: np.ndarray,
    spells: Sequence[np.ndarray],
    model: ExecutionModel,
    barrier: str,
    run_ns: tuple[int, int],
) -> np.ndarray:
    """Return what each worker did from the start to the end of a run, without gaps: structured array `STATE_DTYPE`.

    Parameters
    ----------
    plan : Plan
    blocks : structured array as of `Workers.events`
    spells : list of structured array
        Of each worker, as `Workers.spells` returns them.
    barrier : {"loop", "phase", "iteration", "none"}
    run_ns : (int, int)
        Start and end of the run.

    Notes
    -----
    Where no runtime says what a worker does between blocks: under fork-join it waits behind its last block of a loop
    until the last block of all ends; with the runtimes of others (OpenMP's tasks, oneTBB, StarPU) time with a ready
    task counts as scheduling, time without as waiting.
    """
    causes = waiting_causes(run)
    windows = None
    if model.joins_loops:
        windows = (
            segment_ends(plan, run.start, barrier, largest=False).ravel(),
            segment_ends(plan, run.stop, barrier).ravel(),
            segment_of_task(plan, barrier),
        )
    first_pass = int((blocks["iteration"] // plan.iteration_stride).min())
    return np.concatenate(
        [
            _states_of_worker(plan, blocks[blocks["worker"] == w], own, w, model, causes, windows, run_ns, first_pass)
            for w, own in enumerate(spells)
        ]
    )


def _states_of_worker(plan, blocks, spells, worker, model, causes, windows, run_ns, first_pass) -> np.ndarray:
    intervals = {kind: spells[spells["kind"] == k] for k, kind in enumerate(SPELL_KINDS)}
    intervals = {kind: part[np.argsort(part["start_ns"], kind="stable")] for kind, part in intervals.items()}
    cuts = [np.array(run_ns, np.int64), blocks["start_ns"], blocks["stop_ns"], causes[0]]
    for part in intervals.values():
        cuts += [part["start_ns"], part["stop_ns"]]
    if windows is not None:
        cuts += list(windows[:2])
    moments = np.unique(np.clip(np.concatenate(cuts), *run_ns))
    start = moments[:-1]
    block = _inside(blocks["start_ns"], blocks["stop_ns"], start)
    result = {kind: _inside(part["start_ns"], part["stop_ns"], start) >= 0 for kind, part in intervals.items()}
    cause = causes[1][np.clip(np.searchsorted(causes[0], start, "right") - 1, 0, None)]
    following = np.searchsorted(blocks["start_ns"], start, "right")  # the block that the worker runs next
    waiting = np.where(cause == READY, WAITING_READY, np.where(cause == BEHIND_BARRIER, BARRIER, WAITING_NONE))
    between = np.full(len(start), SCHEDULING, np.uint8)
    at_barrier = np.zeros(len(start), bool)
    if worker == 0 and model.first_creates:
        between[:] = CREATING
    elif not model.logs_waiting and windows is None:
        between = np.where(cause == READY, SCHEDULING, waiting)
    elif windows is not None and len(blocks):
        window = _inside(windows[0], windows[1], start)
        segments = windows[2][blocks["task"]] + (blocks["iteration"] // plan.iteration_stride - first_pass) * (
            int(windows[2].max()) + 1
        )
        ahead = np.r_[segments, -1][following]
        at_barrier = (window >= 0) & (ahead != window)
        between = np.where(at_barrier, BARRIER, SCHEDULING)
    kinds = ("preempted", "asleep", "running", "lock", "waiting", "creating")
    result["running"] = block >= 0
    state = np.select(
        [result[kind] for kind in kinds], [PREEMPTED, ASLEEP, RUNNING, LOCK, waiting, CREATING], between
    ).astype(np.uint8)
    shown = np.clip(np.where(at_barrier, following - 1, following), 0, max(len(blocks) - 1, 0))
    shown = np.where(block >= 0, block, shown)
    events = np.zeros(len(start), STATE_DTYPE)
    events["start_ns"], events["stop_ns"] = start, moments[1:]
    events["worker"], events["state"] = worker, state
    events["cause"] = np.where(np.isin(state, (RUNNING, SCHEDULING, CREATING, LOCK)), DEPENDENCE, cause)
    events["cause"][(block >= 0) & (state != RUNNING)] = IN_BLOCK
    events["task"] = blocks["task"][shown] if len(blocks) else -1
    events["iteration"] = blocks["iteration"][shown] if len(blocks) else -1
    same = np.ones(len(events), bool)
    for name in ("worker", "state", "cause", "task", "iteration"):
        same[1:] &= events[name][1:] == events[name][:-1]
    same[:1] = False
    # A block that follows itself is another instance of it: instances differ in their iteration.
    heads = np.flatnonzero(~same)
    merged = events[heads]
    merged["stop_ns"] = np.r_[merged["start_ns"][1:], events["stop_ns"][-1:]]
    return merged
