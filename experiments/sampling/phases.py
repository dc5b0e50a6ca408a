"""Times of a step's phases (load, forward, backward, update), from the event log."""

from __future__ import annotations

import itertools

import numpy as np

# A model that waits at one of these points runs no block of a phase before the phase before it has ended.
PHASE_BARRIERS = ("loop", "phase")


def phase_walls(events: np.ndarray, plan, num_passes: int) -> dict[str, float]:
    """Return the wall time of each phase, mean over passes: {phase: seconds}.

    A phase lasts from the end of the one before it to its own end, so it holds the barrier that it waited at, and the
    phases add up to the time from the first start in the log to the last stop.

    Parameters
    ----------
    events : structured array as of `Workers.events`
        Of a model with a barrier between phases at least; of others these are not times of phases.
    plan : Plan
    num_passes : int
        Passes through the plan that were logged; every block ran once in each.
    """
    names = [loop.phase for loop in plan.loops]
    # An unrolled plan, and one whose phases take turns, have several stretches of a phase.
    stretch_of_loop = np.cumsum([0, *(a != b for a, b in itertools.pairwise(names))])
    num_stretches = int(stretch_of_loop[-1]) + 1
    passes = np.empty(len(events), np.int64)
    passes[np.lexsort((events["start_ns"], events["task"]))] = np.tile(np.arange(num_passes), plan.num_tasks)
    stretch = passes * num_stretches + stretch_of_loop[plan.task_loop[events["task"]]]
    ends = np.zeros(num_passes * num_stretches, np.int64)
    np.maximum.at(ends, stretch, events["stop_ns"])
    walls = np.diff(ends, prepend=events["start_ns"].min()).reshape(num_passes, num_stretches).mean(axis=0) * 1e-9
    result: dict[str, float] = dict.fromkeys(names, 0.0)
    for name, number in dict.fromkeys(zip(names, stretch_of_loop.tolist(), strict=True)):
        result[name] += float(walls[number])
    return result


def phases_beside(events: np.ndarray, plan, num_passes: int) -> dict[str, dict[str, float]]:
    """Return how long blocks of one phase ran while another phase had a running block, mean over passes: {phase: {other
    phase: busy seconds of the first}}, without pairs that never met."""
    phase = np.array([loop.phase for loop in plan.loops])[plan.task_loop[events["task"]]]
    begin = events["start_ns"].min()
    start, stop = events["start_ns"] - begin, events["stop_ns"] - begin
    result: dict[str, dict[str, float]] = {name: {} for name in dict.fromkeys(loop.phase for loop in plan.loops)}
    for other in result:
        times, busy = _time_covered(start[phase == other], stop[phase == other])
        for name in result:
            own = phase == name
            together = np.interp(stop[own], times, busy) - np.interp(start[own], times, busy)
            if name != other and (total := float(together.sum())) > 0:
                result[name][other] = total * 1e-9 / num_passes
    return result


def _time_covered(start: np.ndarray, stop: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return points in time, and up to each of them the time during which at least one of the intervals was open."""
    order = np.argsort(start, kind="stable")
    start, stop = start[order], np.maximum.accumulate(stop[order])
    begins = np.flatnonzero(np.concatenate([[True], start[1:] > stop[:-1]]))
    ends = np.concatenate([begins[1:] - 1, [len(start) - 1]])
    times = np.column_stack([start[begins], stop[ends]]).ravel()
    covered = np.cumsum(stop[ends] - start[begins])
    return times, np.column_stack([np.concatenate([[0], covered[:-1]]), covered]).ravel()
