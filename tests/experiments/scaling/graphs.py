"""Small graphs for tests of scaling tests, in a module that other processes can import."""

import time

import numpy as np

from forktask import UserGraph
from forktask.cython_src.graphs.task_bench import task_bench


def smooth(left, right, out):
    """Python kernel: the mean of neighbours."""
    out[...] = 0.5 * (left + right)


def add(values, total):
    """Python kernel: add to a sum."""
    total += values.sum()


def means(grain: int = 16) -> UserGraph:
    """Means of neighbours in slices, then their sums: two loops."""
    values, out, sums = np.arange(64.0), np.zeros(48), np.zeros(48 // grain)
    graph = UserGraph("means")
    x, y, s = graph.array("x", values), graph.array("y", out), graph.array("sums", sums)
    for i in graph.taskloop(48, grainsize=grain):
        graph.task(smooth, reads=[x[i], x[i.start + 16 : i.stop + 16]], writes=y[i])
    for number, i in enumerate(graph.taskloop(48, grainsize=grain)):
        graph.task(add, reads=y[i], updates=s[number])
    return graph


def _fill(out):
    out[...] = np.random.default_rng().random()


def random() -> UserGraph:
    """A graph that computes something else each time."""
    graph = UserGraph("random")
    values = graph.array("values", np.zeros(4))
    graph.task(_fill, writes=values)
    return graph


def _add_part(total):
    total += 0.1


def sums_in_any_order(parts: int = 4) -> UserGraph:
    """Commutative updates: equal within a tolerance only."""
    graph = UserGraph("sums")
    total = graph.array("total", np.zeros(1))
    for _ in range(parts):
        graph.task(_add_part, commutative=total)
    return graph


def compiled(width: int = 4):
    """Compiled blocks of some 100 us, in two steps of `width` independent ones."""
    return task_bench("no_comm", width, 2, kernel="compute", work=50_000)


def _count(total):
    for _ in range(20_000):
        total += 1


def _wait(total):
    time.sleep(0.002)


def in_python(waits: bool = False) -> UserGraph:
    """Independent tasks in Python, which hold the GIL, or release it."""
    graph = UserGraph("in_python")
    totals = graph.array("totals", np.zeros(4))
    for i in range(4):
        graph.task(_wait if waits else _count, updates=totals[i])
    return graph
