"""Chains: blocks of one kind that update the same memory one after the other; what a critical cycle leads through."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...cython_src.plan.dependences import TaskGraph
from ...cython_src.plan.model import COMMUTATIVE, READ, UPDATE, Plan
from ..bounds.bounds import cycle_mean

FEWEST_LINKS = 3


@dataclass(frozen=True)
class Chain:
    """Blocks of one layer and kernel, each of which updates what the one before has updated, in this order or, where
    updates are commutative, in any."""

    layer: str
    phase: str
    kernel: str
    buffer: str
    links: int  # blocks of the longest chain
    seconds: float  # of these blocks
    work_s: float  # of all blocks of this layer, phase and kernel


def find_chains(plan: Plan, seconds: np.ndarray) -> list[Chain]:
    """Return the longest chain of each layer, phase and kernel, the longest time first, from seconds of each task."""
    table, buffers = plan.accesses, list(plan.buffers)
    groups = [(loop.layer, loop.phase, loop.kernel) for loop in plan.loops]
    group_of = [groups[loop] for loop in plan.task_loop]
    last: dict[int, int] = {}  # cell -> task that wrote it last
    length, ends = np.ones(plan.num_tasks, np.int64), np.array(seconds, float)
    through = [-1] * plan.num_tasks
    for task in range(plan.num_tasks):
        cells_written = []
        for access in range(table.task_offsets[task], table.task_offsets[task + 1]):
            kind = table.access_kind[access]
            if kind == READ:
                continue
            number = table.access_list[access]
            cells = table.list_cells[table.list_offsets[number] : table.list_offsets[number + 1]].tolist()
            cells_written += cells
            if kind not in (UPDATE, COMMUTATIVE):
                continue
            for cell in cells:
                before = last.get(cell, -1)
                if before < 0 or group_of[before] != group_of[task]:
                    continue
                if ends[before] + seconds[task] > ends[task]:
                    ends[task] = ends[before] + seconds[task]
                    length[task] = length[before] + 1
                    through[task] = int(table.access_buffer[access])
        last.update(dict.fromkeys(cells_written, task))
    work: Counter = Counter()
    best: dict[tuple[str, str, str], int] = {}
    for task, group in enumerate(group_of):
        work[group] += float(seconds[task])
        if ends[task] > ends[best.setdefault(group, task)]:
            best[group] = task
    chains = [
        Chain(*group, buffers[through[task]], int(length[task]), float(ends[task]), work[group])
        for group, task in best.items()
        if length[task] >= FEWEST_LINKS
    ]
    return sorted(chains, key=lambda chain: -chain.seconds)


def cycle_parts(plan: Plan, graph: TaskGraph, seconds: Sequence[float]) -> tuple[float, list[tuple[str, float]]]:
    """Return the maximum cycle mean, and the parts of the critical cycle's time by layer and phase, largest first."""
    result = cycle_mean(graph, seconds)
    parts: Counter = Counter()
    for node in result.cycle:
        if node < plan.num_tasks:
            loop = plan.loops[int(plan.task_loop[node])]
            parts[f"{loop.layer or loop.name} {loop.phase}"] += float(seconds[node])
    total = sum(parts.values()) or 1.0
    return result.mean_s, [(name, part / total) for name, part in parts.most_common()]
