"""Recorded graphs with barriers: after each loop, each phase or each iteration; and in what order threads that wait at
barriers best take blocks.

A barrier is a join node that all ends of a segment lead to and that leads to all beginnings of the next. Dependences
between segments are implied by it and left out, so a segment is recorded alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from .dependences import TaskGraph, record_graph
from .model import Plan

BARRIERS = ("loop", "phase", "iteration", "none")
# As in tasking/programs/homes.h: places that differ by less do not tell the blocks of a loop apart.
PLACES_DIFFER = 1e-3


def barrier_after(plan, barrier: str) -> list[bool]:
    """Say for each loop of a plan whether a barrier of this kind stands behind it."""
    following = [*(loop.phase for loop in plan.loops[1:]), None]
    if barrier == "phase":
        return [loop.phase != phase for loop, phase in zip(plan.loops, following, strict=True)]
    return [barrier == "loop" or (barrier == "iteration" and phase is None) for phase in following]


def needed_barriers(plan, thread_of: np.ndarray) -> np.ndarray:
    """Say after which loops threads must wait, where each runs its blocks of all loops in the order of the plan: before
    a loop of which a block depends on another thread's since the last barrier, and after the last loop. `thread_of`:
    of each task, int. Returns uint8, shape (num_loops,)."""
    graph = record_graph(plan.accesses, closed=False)
    source, target, _ = graph.edges()
    of_task = source < plan.num_tasks  # others are joins, which follow tasks alone
    latest = np.full((graph.num_nodes, thread_of.max(initial=0) + 1), -1)  # loop that a node follows, by thread
    np.maximum.at(latest, (target[of_task], thread_of[source[of_task]]), plan.task_loop[source[of_task]])
    np.maximum.at(latest, target[~of_task], latest[source[~of_task]])
    latest[np.arange(plan.num_tasks), thread_of] = -1
    follows = latest[: plan.num_tasks].max(axis=1)
    result, begin = np.zeros(len(plan.loops), np.uint8), 0
    result[-1:] = 1
    for number, loop in enumerate(plan.loops):
        if follows[loop.first_task : loop.first_task + loop.num_blocks].max(initial=-1) >= begin:
            result[number - 1], begin = 1, number
    return result


def order_by_place(plan: Plan) -> np.ndarray:
    """Return the tasks of each loop in the order of their places, int32, shape (num_tasks,).

    A block's place is the mean place of the blocks whose results it uses, and a place is the part of a loop's blocks
    that come before. Loops of which some block uses none stay as they are, and those whose blocks have equal places.
    """
    graph = record_graph(plan.accesses, closed=False)
    sums, counts = np.zeros((2, graph.num_nodes))
    pending = graph.num_intra.copy()
    result = np.arange(plan.num_tasks, dtype=np.int32)
    for loop in plan.loops:
        nodes = np.arange(loop.first_task, loop.first_task + loop.num_blocks)
        place = nodes.astype(np.float32)
        if loop.num_blocks and counts[nodes].all():
            mean = (sums[nodes] / counts[nodes]).astype(np.float32)  # the order of a sum must not tell blocks apart
            place = mean if np.ptp(mean) >= PLACES_DIFFER else place
        result[nodes] = nodes[np.argsort(place, kind="stable")]
        _, group, sizes = np.unique(place, return_inverse=True, return_counts=True)
        sums[nodes] = ((np.cumsum(sizes) - sizes / 2) / max(loop.num_blocks, 1))[group]
        counts[nodes] = 1
        while len(nodes):  # and the joins that are complete
            lengths = graph.successor_split[nodes] - graph.successor_offsets[nodes]
            source = np.repeat(nodes, lengths)
            starts = np.repeat(graph.successor_offsets[nodes] - np.cumsum(lengths) + lengths, lengths)
            targets = graph.successors[starts + np.arange(len(source))]
            for values in (sums, counts):
                np.add.at(values, targets, values[source])
            np.subtract.at(pending, targets, 1)
            nodes = np.unique(targets[(targets >= plan.num_tasks) & (pending[targets] == 0)])
    return result


def record_with_barriers(plan, barrier: str) -> TaskGraph:
    """Record a plan's graph for replay: closed, without kinds of edges, its barriers, if any, as its last nodes;
    without ("none") by the dependences of each iteration on the one before."""
    if barrier == "none" or not plan.num_tasks:
        return record_graph(plan.accesses, closed=True)
    last = [
        loop.first_task + loop.num_blocks
        for loop, ends in zip(plan.loops, barrier_after(plan, barrier), strict=True)
        if ends
    ]
    return with_barriers([_record_segment(plan.accesses, *tasks) for tasks in pairwise([0, *last])])


def _record_segment(table, first: int, stop: int) -> TaskGraph:
    """Record the open graph of tasks first ... stop - 1 alone."""
    return record_graph(
        replace(table, num_tasks=stop - first, task_offsets=np.ascontiguousarray(table.task_offsets[first : stop + 1])),
        closed=False,
    )


def with_barriers(segments: Sequence[TaskGraph]) -> TaskGraph:
    """Join open graphs in a row, with a barrier behind each; the last one leads to the next iteration. `segments`:
    recorded with `closed=False`; their tasks are numbered one after the other."""
    num_tasks = sum(graph.num_tasks for graph in segments)
    first_barrier = num_tasks + sum(graph.num_joins for graph in segments)
    num_nodes = first_barrier + len(segments)
    sources, targets, begins = [], [], []
    first_task, first_join = 0, num_tasks
    for number, graph in enumerate(segments):
        name = np.concatenate(
            [np.arange(first_task, first_task + graph.num_tasks), np.arange(first_join, first_join + graph.num_joins)]
        )
        source, target, _ = graph.edges()
        ends = name[np.diff(graph.successor_offsets) == 0]
        begins.append(name[graph.num_intra == 0])
        sources += [name[source], ends]
        targets += [name[target], np.full(len(ends), first_barrier + number)]
        if number:
            sources.append(np.full(len(begins[-1]), first_barrier + number - 1))
            targets.append(begins[-1])
        first_task += graph.num_tasks
        first_join += graph.num_joins
    source, target = np.concatenate(sources), np.concatenate(targets)
    order = np.argsort(source, kind="stable")
    counts = np.bincount(source, minlength=num_nodes)
    split = np.cumsum(counts)
    offsets = np.concatenate([[0], split])
    offsets[-1] += len(begins[0])  # the edges with a token, behind all others
    num_cross = np.zeros(num_nodes, np.int32)
    num_cross[begins[0]] = 1
    return TaskGraph(
        num_tasks=num_tasks,
        num_joins=num_nodes - num_tasks,
        successor_offsets=offsets.astype(np.int32),
        successor_split=split.astype(np.int32),
        successors=np.concatenate([target[order], begins[0]]).astype(np.int32),
        num_intra=np.bincount(target, minlength=num_nodes).astype(np.int32),
        num_cross=num_cross,
        closed=True,
    )
