"""Dot product: a reduction, whose private copies are combined in a fixed order: every model gives the same bits."""

import sys

import numpy as np

import forktask as ft

from .common import run_example


@ft.task(reads=["x", "y"], reduction="total")
def add_dot(x, y, total):
    total += np.sum(x * y)


@ft.task(writes="total")
def clear(total):
    total[0] = 0


def compute(model, threads, iterations=5, n=100_000, grainsize=8192):
    random = np.random.default_rng(1)
    x_values, y_values = random.standard_normal(n), random.standard_normal(n)
    graph = ft.UserGraph("dot_product")
    sums = np.zeros(1)
    x, y, total = graph.array("x", x_values), graph.array("y", y_values), graph.array("total", sums)
    clear(total)
    for i in graph.taskloop(n, grainsize=grainsize):
        add_dot(x[i], y[i], total)
    with graph:
        graph.taskiter(iterations, model=model, threads=threads)
    return "equals numpy.dot", bool(np.isclose(sums[0], np.dot(x_values, y_values))), sums


if __name__ == "__main__":
    sys.exit(run_example("dot_product", compute))
