"""Dot product: a partial sum for each chunk, then a fixed tree, so that every model gives the same bits."""

import sys

import numpy as np

from forktask.experiments.examples.common import run_example
from forktask.experiments.user_graph import UserGraph


def partial_dot(x, y, partial):
    partial[0] = np.sum(x * y)


def add(right, left):
    left += right


def compute(model, threads, iterations, n=100_000, grainsize=8192):
    random = np.random.default_rng(1)
    x_values, y_values = random.standard_normal(n), random.standard_normal(n)
    graph = UserGraph("dot_product")
    chunks = list(graph.taskloop(n, grainsize=grainsize))
    sums = np.zeros(len(chunks))
    x, y, partials = graph.array("x", x_values), graph.array("y", y_values), graph.array("partials", sums)
    for number, i in enumerate(chunks):
        graph.task(partial_dot, reads=[x[i], y[i]], writes=partials[number : number + 1])
    step = 1
    while step < len(chunks):
        for left in range(0, len(chunks) - step, 2 * step):
            graph.task(add, reads=partials[left + step], updates=partials[left])
        step *= 2
    with graph:
        graph.taskiter(iterations, model=model, threads=threads)
    return "equals numpy.dot", bool(np.isclose(sums[0], np.dot(x_values, y_values))), sums[:1]


def main(argv=None):
    return run_example("dot_product", compute, iterations=5, argv=argv)


if __name__ == "__main__":
    sys.exit(main())
