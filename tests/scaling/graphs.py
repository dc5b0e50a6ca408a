"""Graphs under scaling tests, in a module of their own so that measuring processes import nothing else."""

import numpy as np
from forktask.experiments.user_graph import UserGraph


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
