"""Lanes of a GPU model's event log: the thread that launches, threads that compute, streams, copies.

They are the workers of the log. A plan's blocks are not what a GPU's log has times of: its tasks are launches, of whole
loops or of parts of them, or of a captured graph, with the dependences of the blocks in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...cython_src.binding.bind import EVENT_DTYPE, SPELL_DTYPE
from ...cython_src.gpu.launch_log import CALLER, COPY_DTYPE, GRAPH
from ...cython_src.plan.dependences import TaskGraph
from ...tasking.gpu_streams import launch_graph
from ..events.event_states import SPELLS
from ..events.events import COPIES, HOST, STREAM, THREAD, graph_of_edges


@dataclass(frozen=True, eq=False)
class Lanes:
    """Logs of the lanes of a run."""

    blocks: np.ndarray
    spells: list[np.ndarray]  # of each lane; `kind` counts `event_states.SPELLS`
    num_lost: int  # spells and copies past the capacity
    copies: np.ndarray = field(default_factory=lambda: np.zeros(0, COPY_DTYPE))
    copy_lanes: range = range(0)
    about: Mapping[str, Any] = field(default_factory=dict)  # what the log of a GPU's model says besides


@dataclass(frozen=True)
class LoggedLoop:
    """Launches of one loop, or of captured graphs."""

    name: str
    layer: str
    phase: str
    first_task: int
    num_blocks: int


class LaunchPlan:
    """The launches of a pass: what states are found from in place of a plan's blocks.

    Attributes
    ----------
    node_of : dict of int to int
        Launch by its first block in the plan.
    """

    def __init__(self, name: str, loops: list[LoggedLoop], stride: int, node_of: dict[int, int], graph: TaskGraph):
        self.name, self.loops, self.iteration_stride = name, loops, stride
        self.node_of, self.graph = node_of, graph
        self.num_tasks = graph.num_tasks
        self.task_loop = np.repeat(np.arange(len(loops)), [loop.num_blocks for loop in loops])


def launch_plan(executor) -> LaunchPlan:
    """Return the launches of a prepared executor of a GPU."""
    plan, parts = executor.bound.plan, sorted(executor.logged_parts())
    if not parts:
        count = executor.unroll
        name = "graph of 1 pass" if count == 1 else f"graph of {count} passes"
        loop = LoggedLoop(name, "captured graph", "", 0, 1)
        edge = graph_of_edges(1, np.array([[0], [0], [1]], np.int32))
        return LaunchPlan(plan.name, [loop], count * plan.iteration_stride, {GRAPH: 0}, edge)
    loops: list[LoggedLoop] = []
    for number, loop in enumerate(plan.loops):
        first = loops[-1].first_task + loops[-1].num_blocks if loops else 0
        count = sum(part[0] == number for part in parts)
        loops.append(LoggedLoop(loop.name, loop.layer, loop.phase, first, count))
    node_of = {plan.loops[number].first_task + first: node for node, (number, first, _) in enumerate(parts)}
    result = launch_graph(plan, parts)
    edges = [
        (before, node, token)
        for token, table in enumerate((result.before, result.before_next))
        for node, all_before in enumerate(table)
        for before in all_before
    ]
    ordered = np.array(sorted(edges, key=lambda edge: (edge[0], edge[2], edge[1])), np.int32).reshape(-1, 3).T
    graph = graph_of_edges(len(parts), ordered)
    return LaunchPlan(plan.name, loops, plan.iteration_stride, node_of, graph)


def lanes_of(executor, plan: LaunchPlan, first_iteration: int) -> Lanes:
    """Return what a logged run of a GPU's model has left in its log. `executor`: after the run; `first_iteration`: of
    the run."""
    log = executor.workers.read()
    computes = executor.about.max_threads is None
    threads = [(THREAD, f"thread {w}") for w in range(executor.num_threads if computes else 0)]
    streams = np.unique(log.launches["worker"]).tolist()
    streams_at = 1 + len(threads)
    copies_at = streams_at + len(streams)
    lane_of_stream = {stream: streams_at + k for k, stream in enumerate(streams)}
    lanes = [(HOST, "host"), *threads, *((STREAM, f"stream {k}") for k in range(len(streams)))]
    copying = sorted({stream for _, stream in log.copy_lanes} - {*streams})  # streams without launches have no lane
    names = [*streams, *copying]
    lanes += [(COPIES, f"to {place}, stream {names.index(stream)}") for place, stream in log.copy_lanes]
    blocks = np.zeros(len(log.launches) + len(log.host_blocks), EVENT_DTYPE)
    blocks[: len(log.launches)] = log.launches
    for i, stream in enumerate(log.launches["worker"].tolist()):
        blocks["worker"][i] = lane_of_stream[stream]
    for i, (start, stop, worker, iteration, task) in enumerate(log.host_blocks, len(log.launches)):
        blocks[i] = (start, stop, iteration, task, 0 if worker == CALLER else 1 + worker)
    graphs = blocks["task"] == GRAPH
    blocks["iteration"][graphs] = first_iteration + blocks["iteration"][graphs] * plan.iteration_stride
    blocks["task"] = [plan.node_of[task] for task in blocks["task"].tolist()]
    blocks = _in_turn(blocks)
    copies = log.copies.copy()
    copies["lane"] += copies_at
    spells: list[list[tuple]] = [[] for _ in lanes]
    first_pass = first_iteration // plan.iteration_stride
    for start, stop, what, replay, task in log.host:
        node = plan.node_of.get(task, -1)
        spells[0].append((start, stop, replay + first_pass * (task == GRAPH), node, SPELLS.index(what)))
    for start, stop, _, lane in copies.tolist():
        _, stream = log.copy_lanes[lane - copies_at]
        for shown in {lane, lane_of_stream.get(stream, lane)}:
            spells[shown].append((start, stop, -1, -1, SPELLS.index("copying")))
    return Lanes(
        blocks=blocks,
        spells=[np.array(own, SPELL_DTYPE) for own in spells],
        num_lost=log.num_lost,
        copies=copies,
        copy_lanes=range(copies_at, len(lanes)),
        about={"lanes": lanes, "clock_error_ns": log.clock["error_ns"], "clock_drift_ppm": log.clock["drift_ppm"]},
    )


def _in_turn(blocks: np.ndarray) -> np.ndarray:
    """Sort by lane and time, and let no launch begin before the one ahead of it in its stream has ended: rounded times
    overlap by less than the error of the clock."""
    blocks = blocks[np.lexsort((blocks["start_ns"], blocks["worker"]))]
    for lane in np.unique(blocks["worker"]):
        own = np.flatnonzero(blocks["worker"] == lane)
        blocks["stop_ns"][own] = np.maximum.accumulate(blocks["stop_ns"][own])
        blocks["start_ns"][own[1:]] = np.maximum(blocks["start_ns"][own[1:]], blocks["stop_ns"][own[:-1]])
    return blocks
