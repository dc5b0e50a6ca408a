"""Random graphs of users: the accesses of `random_plans` on boxes of two arrays, recorded through `UserGraph`."""

from dataclasses import dataclass

import numpy as np
from tasking.random_plans import FOLDS, KINDS, kinds_loops

from forktask import ITERATION, UserGraph

# Kind of an access -> argument of `UserGraph.task`. Kernels get their regions in the order of the values.
ARGUMENTS = {kind: {"read": "reads", "write": "writes", "update": "updates"}.get(kind, kind) for kind in KINDS}
ARGUMENTS |= {"fold read": "reads", "fold update": "updates", "fold reduction": "reduction"}
COLUMNS = {"cells": 3, "folds": 2}
MASK = 2**64 - 1


@dataclass(frozen=True)
class Task:
    """A task: argument of `UserGraph.task` -> (array, box) each."""

    number: int
    regions: dict[str, list[tuple[str, tuple[tuple[int, int], ...]]]]


@dataclass(frozen=True)
class Drawn:
    """A random graph: its tasks in program order, None for a taskwait."""

    num_cells: int
    reduction_groups: int
    tasks: list[Task | None]


def draw(seed):
    """Return a random graph. What tasks add to a region in any order does not depend on the order, so that all models
    leave the same bits."""
    rng = np.random.default_rng(seed)
    num_cells = int(rng.integers(2, 12))
    tasks = []
    for blocks in kinds_loops(rng, num_cells):
        if rng.random() < 0.15:
            tasks.append(None)
        for ranges in blocks:
            regions = {argument: [] for argument in dict.fromkeys(ARGUMENTS.values())}
            for kind, cells in ranges.items():
                array = "folds" if kind in FOLDS else "cells"
                columns = sorted(rng.choice(COLUMNS[array] + 1, 2, replace=False).tolist())
                regions[ARGUMENTS[kind]].append((array, (cells, tuple(columns))))
            tasks.append(Task(len(tasks), {k: v for k, v in regions.items() if v}))
    return Drawn(num_cells, int(rng.integers(1, 5)), tasks)


def mix(*values):
    """Read all regions that are read, and write, update or add to the others."""
    *regions, kinds, number, iteration = values
    state = 7919 * number + 104729 * iteration + 1
    for region, kind in zip(regions, kinds, strict=True):
        if kind in ("reads", "updates"):
            for value in region.flat:
                state = (31 * state + int(value)) & MASK
    for region, kind in zip(regions, kinds, strict=True):
        if kind == "writes":
            region[...] = np.arange(region.size, dtype=np.uint64).reshape(region.shape) + np.uint64(state)
        elif kind == "updates":
            region *= np.uint64(31)
            region += np.uint64(state)
        elif kind != "reads":
            region += np.uint64(state)


def record(drawn, undeclared=None):
    """Return the graph on new arrays, and these; the task `undeclared` keeps what it writes and updates to itself."""
    arrays = {name: np.zeros((drawn.num_cells, width), np.uint64) for name, width in COLUMNS.items()}
    graph = UserGraph("random", reduction_groups=drawn.reduction_groups)
    wrapped = {name: graph.array(name, array) for name, array in arrays.items()}
    for task in drawn.tasks:
        if task is None:
            graph.taskwait()
            continue
        regions = {k: [(a, _slices(box)) for a, box in boxes] for k, boxes in task.regions.items()}
        kernel = mix
        if task.number == undeclared:
            hidden = [(k, arrays[a][index]) for k in ("writes", "updates") for a, index in regions.pop(k, ())]

            def kernel(*values, hidden=hidden):
                *shown, kinds, number, iteration = values
                views = [view for _, view in hidden]
                mix(*shown, *views, (*kinds, *(k for k, _ in hidden)), number, iteration)

        kinds = tuple(k for k, boxes in regions.items() for _ in boxes)
        given = {k: [wrapped[a][index] for a, index in boxes] for k, boxes in regions.items()}
        graph.task(kernel, **given, args=(kinds, task.number, ITERATION), name="mix")
    return graph, arrays


def _slices(box):
    return tuple(slice(start, stop) for start, stop in box)


def run(drawn, model, threads, iterations):
    """Return the arrays after two runs of the graph, which together have so many iterations."""
    graph, arrays = record(drawn)
    first = iterations // 4 * 2
    with graph:
        graph.run(first, model=model, threads=threads)
        graph.run(iterations - first, model=model, threads=threads, first_iteration=first)
    return arrays


def run_as_recorded(drawn, iterations):
    """Return the arrays after plain calls of the tasks in the order of recording: no plan, loop or model."""
    arrays = {name: np.zeros((drawn.num_cells, width), np.uint64) for name, width in COLUMNS.items()}
    for iteration in range(iterations):
        for task in filter(None, drawn.tasks):
            views = [arrays[a][_slices(box)] for boxes in task.regions.values() for a, box in boxes]
            kinds = tuple(kind for kind, boxes in task.regions.items() for _ in boxes)
            mix(*views, kinds, task.number, iteration)
    return arrays


def as_code(drawn):
    """Return a program that records the graph."""
    lines = [
        "import numpy as np",
        "from forktask import ITERATION, UserGraph",
        "from tasking.random_graphs import mix",
        "",
        f"graph = UserGraph('random', reduction_groups={drawn.reduction_groups})",
        *(f"{a} = graph.array({a!r}, np.zeros(({drawn.num_cells}, {n}), np.uint64))" for a, n in COLUMNS.items()),
    ]
    for task in drawn.tasks:
        if task is None:
            lines.append("graph.taskwait()")
            continue
        words = ["mix"]
        for kind, boxes in task.regions.items():
            regions = (f"{a}[{', '.join(f'{start}:{stop}' for start, stop in box)}]" for a, box in boxes)
            words.append(f"{kind}=[{', '.join(regions)}]")
        kinds = tuple(kind for kind, boxes in task.regions.items() for _ in boxes)
        words.append(f"args=({kinds!r}, {task.number}, ITERATION), name='mix'")
        lines.append(f"graph.task({', '.join(words)})")
    return "\n".join(lines)


def check(drawn, models, iterations=6):
    """Run a graph under models on numbers of threads, and raise with its program where one leaves other bits than
    plain calls in the order of recording."""
    expected = run_as_recorded(drawn, iterations)
    for model, threads in (("serial", 1), *models):
        result = run(drawn, model, threads, iterations)
        wrong = [name for name in expected if not np.array_equal(result[name], expected[name])]
        assert not wrong, f"{model} on {threads} threads leaves other bits in {', '.join(wrong)}:\n{as_code(drawn)}"
