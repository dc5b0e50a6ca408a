"""Floors on the time of an iteration, from a plan's graph and the durations of its blocks.

| bound | holds for | formula |
|---|---|---|
| area | every model | work / P |
| span | models with a barrier between iterations | longest path of one iteration |
| fork-join | a barrier after each loop | sum over loops of max(work of the loop / P, longest block) |
| Brent, from above | greedy tasks with a barrier between iterations | work / P + span (1 - 1 / P) |
| cycle mean | every model, iterations overlapping too | largest duration / tokens over the cycles of the closed graph |

Durations are those of blocks run one at a time; a machine whose P threads do the work of `capacity` < P single ones
(shared clock, shared cores) is allowed for by dividing by the capacity. Slowdown from sharing caches and memory is
not part of a bound: it shows as a distance from it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...cython_src.errors import UsageError
from ...cython_src.plan.dependences import TaskGraph, record_graph, topological_order
from ...cython_src.plan.model import Plan
from . import graph_bounds


@dataclass(frozen=True)
class GraphBounds:
    """Bounds that do not depend on the number of threads, in seconds."""

    work_s: float  # sum of all durations
    span_s: float  # longest path within one iteration
    cycle_mean_s: float | None  # maximum cycle mean; None for a graph that is not closed


@dataclass(frozen=True, eq=False)
class CycleMean:
    """A critical cycle and the potentials that prove it."""

    mean_s: float
    # int32, shape (length,); nodes of a cycle whose durations sum to mean_s times its tokens
    cycle: np.ndarray
    # float64, shape (num_nodes,); potentials[w] >= potentials[u] + duration[u] - mean_s * token for each edge u -> w,
    # within the tolerance: summed along any cycle this says that none exceeds mean_s
    potentials_s: np.ndarray
    tolerance_s: float


def node_durations(graph: TaskGraph, task_durations_s) -> np.ndarray:
    """Return the durations of all nodes, float64, shape (num_nodes,); joins take no time. Raises `ValueError`: there is
    not one finite duration of at least 0 for each task."""
    durations = np.asarray(task_durations_s, dtype=np.float64)
    if durations.shape != (graph.num_tasks,):
        raise ValueError(f"durations must have shape ({graph.num_tasks},), one for each task, got {durations.shape}")
    if not (np.isfinite(durations).all() and (durations >= 0).all()):
        raise ValueError("durations must be finite and not negative")
    return np.concatenate([durations, np.zeros(graph.num_joins)])


def _flat(graph: TaskGraph):
    return graph.successor_offsets, graph.successor_split, graph.successors


def span(graph: TaskGraph, task_durations_s) -> float:
    """Return the longest path within one iteration, in seconds."""
    weights = node_durations(graph, task_durations_s)
    order = topological_order(*_flat(graph))
    return graph_bounds.longest_path(order, *_flat(graph), weights)


def cycle_mean(graph: TaskGraph, task_durations_s) -> CycleMean:
    """Return the maximum cycle mean of a closed graph: no schedule on any number of workers takes less per iteration.
    Raises `ValueError`: the graph is not closed."""
    if not graph.closed:
        raise ValueError("the cycle mean needs a closed graph; record it with closed=True")
    weights = node_durations(graph, task_durations_s)
    order = topological_order(*_flat(graph))
    tolerance = 1e-10 * float(weights.sum())
    mean, cycle, potentials = graph_bounds.maximum_cycle_mean(order, *_flat(graph), weights, tolerance)
    return CycleMean(mean, cycle, potentials, tolerance)


def graph_bounds_of(graph: TaskGraph, task_durations_s) -> GraphBounds:
    """Return work, span and, for a closed graph, the maximum cycle mean."""
    return GraphBounds(
        work_s=float(np.sum(task_durations_s)),
        span_s=span(graph, task_durations_s),
        cycle_mean_s=cycle_mean(graph, task_durations_s).mean_s if graph.closed else None,
    )


def plan_bounds(plan: Plan, block_time_s: Mapping[str, Sequence[float]]) -> GraphBounds:
    """Return the bounds of a plan from seconds per block, in block order, by name of the loop. Raises `UsageError` as
    in `durations_by_loop`."""
    loop_times = durations_by_loop(plan.loops, block_time_s)
    return graph_bounds_of(record_graph(plan.accesses, closed=True), [t for blocks in loop_times for t in blocks])


def durations_by_loop(loops: Iterable[Any], block_time_s: Mapping[str, Sequence[float]]) -> list[list[float]]:
    """Return the durations of each loop's blocks, in plan order; those of loops that share a name follow each other
    under it. Loops are those of a plan or of its row. Raises `UsageError`: a loop is missing, or its number of
    durations is not its number of blocks."""
    used: dict[str, int] = {}
    result = []
    for loop in loops:
        name, num_blocks = loop.name, loop.num_blocks
        start = used.get(name, 0)
        used[name] = start + num_blocks
        blocks = list(block_time_s.get(name, ())[start : start + num_blocks])
        if len(blocks) != num_blocks:
            raise UsageError(
                f"durations must be those of all {num_blocks} blocks of loop {name!r}, got {len(blocks)}; measure again"
            )
        result.append(blocks)
    return result


def machine_rates(peak: float | None, bandwidth: Mapping[str, float], threads: int) -> tuple[float, float]:
    """Return FLOP/s and bytes/s of `threads` threads together, from one thread's peak and bandwidth by threads; NaN
    where they were not measured.

    Threads share the path to memory, so their bandwidth is what was measured of as many, never a multiple of one's. It
    is not less than that of fewer threads: the others could wait.
    """
    measured = {int(n): rate for n, rate in bandwidth.items() if int(n) <= threads}
    return (peak or math.nan) * threads, max(measured.values()) if measured.get(threads) else math.nan


def least_times(work: tuple[float, float], flops_per_s: float, bytes_per_s: float) -> tuple[float, float]:
    """Return the least seconds of a loop's arithmetic and of its bytes; the longer one is its roofline floor.

    Flops count convolutions in their direct form, bytes each region once (`Plan.least_bytes`). Rates are those of all
    threads together; the bandwidth is that of memory, so data that stay in caches may be faster.
    """
    return work[0] / flops_per_s, work[1] / bytes_per_s


def roofline_floor(loops: Iterable[tuple[float, float]], flops_per_s: float, bytes_per_s: float) -> float:
    """Return the least seconds of an iteration: the sum over its loops of the longer of `least_times`."""
    return sum(max(least_times(work, flops_per_s, bytes_per_s)) for work in loops)


def brent_bound(work_s: float, span_s: float, threads: int, capacity: float) -> float:
    """Return work / capacity + span (1 - 1 / threads): what one iteration takes at most if no thread idles while a task
    is ready, and nothing but blocks takes time.

    References
    ----------
    Brent, "The parallel evaluation of general arithmetic expressions", JACM 21 (1974); Graham, "Bounds on
    multiprocessing timing anomalies" (1969).
    """
    return work_s / capacity + span_s * (1 - 1 / threads)


def fork_join_bound(loop_times: Sequence[Sequence[float]], threads: int, capacity: float | None = None) -> float:
    """Return the sum over loops of max(area of the loop, its longest block): a barrier after each, best placement.

    The capacity is `threads` by default. A loop of fewer blocks than threads is bound by its longest block.
    """
    capacity = float(threads) if capacity is None else capacity
    return sum(max(sum(blocks) / capacity, max(blocks)) for blocks in loop_times)


def fork_join_static_bound(loop_times: Sequence[Sequence[float]], threads: int) -> float:
    """Return the sum over loops of the largest share if each thread gets one contiguous run of equally many blocks.

    This is what `schedule(static)` without a chunk size does (the first n mod P threads get one block more), so it is
    exact for that schedule, up to barriers.
    """
    total = 0.0
    for blocks in loop_times:
        quotient, rest = divmod(len(blocks), threads)
        cuts = np.cumsum([0] + [quotient + (t < rest) for t in range(threads)])
        sums = np.concatenate([[0.0], np.cumsum(blocks)])
        total += float(np.max(sums[cuts[1:]] - sums[cuts[:-1]]))
    return total


def predicted_times(
    loop_times: Sequence[Sequence[float]], threads: int, capacity: float | None = None, graph: GraphBounds | None = None
) -> dict[str, float]:
    """Return floors for one number of threads, in seconds per iteration: "area", "forkjoin", "forkjoin_static"; with
    `graph` also "taskgraph" = max(area, span) and "taskiter" = max(area, cycle mean)."""
    capacity = float(threads) if capacity is None else capacity
    area = sum(map(sum, loop_times)) / capacity  # the capacity of P undisturbed threads is P
    times = {
        "area": area,
        "forkjoin": fork_join_bound(loop_times, threads, capacity),
        "forkjoin_static": max(fork_join_static_bound(loop_times, threads), area),
    }
    if graph is not None:
        times["taskgraph"] = max(area, graph.span_s)
        if graph.cycle_mean_s is not None:
            times["taskiter"] = max(area, graph.cycle_mean_s)
    return times
