"""Part of a plan's task graph, small enough to be drawn: some loops' tasks, and everything else folded.

Rows are the plan's loops in order. Loops that are not shown are folded into one node for each run of them within a
phase, so that paths through them are not lost; barriers are nodes between rows. A join of the graph, which stands for
all edges from a set of tasks to another, stays a node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from ...cython_src.errors import UsageError, check_choice, did_you_mean
from ...cython_src.plan.barriers import BARRIERS, barrier_after, record_with_barriers
from ...cython_src.plan.model import PHASES, BlockLoop, Plan
from ..bounds.bounds import span
from ..tables.numbers import plural

MOST_TASKS = 400  # of a picture: boxes of more are smaller than a line of text


@dataclass(frozen=True)
class DrawnRow:
    """A loop that is shown, loops that are folded, or a barrier."""

    kind: str  # {"loop", "folded", "barrier"}
    name: str  # of the loop; what is folded; what the barrier waits for
    phase: str
    nodes: range  # its nodes: a task each, or one


@dataclass(frozen=True)
class GraphView:
    """What a picture shows; see the module."""

    title: str
    barrier: str  # {"loop", "phase", "iteration", "none"}
    rows: tuple[DrawnRow, ...]
    joins: range  # nodes behind those of the rows
    edges: dict[tuple[int, int], bool]  # whether it leads to the next iteration, for each pair of nodes
    longest_path: int  # tasks on the longest path of one iteration, all of the plan's tasks counted

    @property
    def num_tasks(self) -> int:
        """Tasks that are shown."""
        return sum(len(row.nodes) for row in self.rows if row.kind == "loop")

    def describe(self) -> str:
        """Say in a sentence what is shown."""
        crossing = sum(self.edges.values())
        loops = sum(row.kind == "loop" for row in self.rows)
        barriers = sum(row.kind == "barrier" for row in self.rows)
        return (
            f"barrier {self.barrier}: {self.num_tasks} tasks of {loops} loops, {len(self.edges) - crossing} edges "
            f"within an iteration, {crossing} to the next, {barriers} barriers; {self.longest_path} tasks on the "
            "longest path of the whole step"
        )


def view_of(
    plan: Plan, barrier: str, layers: Sequence[str] = (), phases: Sequence[str] = (), title: str = ""
) -> GraphView:
    """Return the view of a plan's tasks of some layers and phases.

    Parameters
    ----------
    barrier : {"loop", "phase", "iteration", "none"}
    layers : sequence of str
        Names of layers, each with all below it ("h.0" has "h.0.mlp.c_fc"); empty: all.
    phases : sequence of str
        Empty: all.
    title : str
        Empty: the plan's name.

    Raises
    ------
    UsageError
        An unknown barrier, layer or phase, nothing to show, or more tasks than a picture holds.
    """
    check_choice("barrier", barrier, BARRIERS)
    shown = [_is_shown(loop, layers, phases) for loop in plan.loops]
    _check(plan, shown, layers, phases)
    ends = barrier_after(plan, barrier)
    graph = record_with_barriers(plan, barrier)
    rows: list[DrawnRow] = []
    node_of = np.full(graph.num_nodes, -1, np.int64)
    count = 0

    def add(kind: str, name: str, phase: str, nodes: int) -> None:
        nonlocal count
        rows.append(DrawnRow(kind, name, phase, range(count, count + nodes)))
        count += nodes

    at_barrier = iter(range(graph.num_nodes - sum(ends), graph.num_nodes))
    groups = groupby(range(len(plan.loops)), lambda number: number if shown[number] else plan.loops[number].phase)
    for _, group in groups:  # a loop that is shown, or a run of others within a phase
        numbers = list(group)
        loops = [plan.loops[number] for number in numbers]
        first, tasks = loops[0], sum(loop.num_blocks for loop in loops)
        if shown[numbers[0]]:
            add("loop", first.name, first.phase, tasks)
        else:
            text = f"{plural(tasks, 'task')} of {plural(len(loops), 'loop')}"
            add("folded", text, first.phase, 1)
        nodes = rows[-1].nodes
        node_of[first.first_task : first.first_task + tasks] = nodes if len(nodes) == tasks else nodes[0]
        for number in numbers:
            if ends[number] and number != numbers[-1]:
                node_of[next(at_barrier)] = nodes[0]
            elif ends[number]:
                add("barrier", f"barrier after {first.phase if barrier == 'phase' else barrier}", first.phase, 1)
                node_of[next(at_barrier)] = rows[-1].nodes[0]
    first_join = count
    joins = np.flatnonzero(node_of < 0)
    node_of[joins] = np.arange(first_join, first_join + len(joins))
    source, target, token = graph.edges()
    edges: dict[tuple[int, int], bool] = {}
    for a, b, t in zip(node_of[source].tolist(), node_of[target].tolist(), token.tolist(), strict=True):
        if a != b:
            edges[a, b] = edges.get((a, b), True) and bool(t)
    edges, joins_left = _without_small_joins(edges, first_join)
    depth = round(span(graph, np.ones(plan.num_tasks)))
    return GraphView(title or plan.name, barrier, tuple(rows), range(first_join, first_join + joins_left), edges, depth)


def _is_shown(loop: BlockLoop, layers: Sequence[str], phases: Sequence[str]) -> bool:
    below = not layers or any(loop.layer == layer or loop.layer.startswith(f"{layer}.") for layer in layers)
    return below and (not phases or loop.phase in phases)


def _check(plan: Plan, shown: Sequence[bool], layers: Sequence[str], phases: Sequence[str]) -> None:
    for phase in phases:
        if phase not in PHASES:
            raise UsageError(f"phases must be some of {', '.join(PHASES)}; got {phase!r}{did_you_mean(phase, PHASES)}")
    names = sorted({loop.layer for loop in plan.loops})
    for layer in layers:
        if not any(name == layer or name.startswith(f"{layer}.") for name in names):
            near = did_you_mean(layer, names)
            raise UsageError(f"layers must be some of {', '.join(names)} or what these begin with, got {layer!r}{near}")
    tasks = sum(loop.num_blocks for loop, is_shown in zip(plan.loops, shown, strict=True) if is_shown)
    if not tasks:
        raise UsageError(f"layers {', '.join(layers)} must have loops of phase {', '.join(phases)}, got none")
    if tasks > MOST_TASKS:
        raise UsageError(
            f"a picture holds at most {MOST_TASKS} tasks, got {tasks}; name fewer --layers or --phases, lower the "
            "batch or enlarge the blocks (--granularity)"
        )


def _without_small_joins(
    edges: dict[tuple[int, int], bool], first_join: int
) -> tuple[dict[tuple[int, int], bool], int]:
    """Replace joins with one node on a side by edges past them; number those that are left anew."""
    before: dict[int, dict[int, bool]] = {}
    after: dict[int, dict[int, bool]] = {}
    for (a, b), crosses in edges.items():
        after.setdefault(a, {})[b] = crosses
        before.setdefault(b, {})[a] = crosses
    for join in sorted({node for edge in edges for node in edge if node >= first_join}):
        sources, targets = before.get(join, {}), after.get(join, {})
        if min(len(sources), len(targets)) > 1:
            continue
        for a, first in sources.items():
            after[a].pop(join)
            for b, second in targets.items():
                # An edge within the iteration implies the one to the next.
                crosses = (first or second) and after[a].get(b, True)
                if a != b:
                    after[a][b] = before[b][a] = crosses
        for b in targets:
            before[b].pop(join)
        before.pop(join, None)
        after.pop(join, None)
    left = {(a, b): crosses for a, targets in after.items() for b, crosses in targets.items()}
    joins = sorted({node for edge in left for node in edge if node >= first_join})
    renamed = {join: first_join + number for number, join in enumerate(joins)}
    return {(renamed.get(a, a), renamed.get(b, b)): crosses for (a, b), crosses in sorted(left.items())}, len(joins)
