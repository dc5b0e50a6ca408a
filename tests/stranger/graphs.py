"""A graph of tasks of one's own, by decorators."""

import numpy as np

import forktask as ft


@ft.task(reads=["left", "right"], writes="out")
def smooth(left, right, out):
    out[...] = 0.5 * (left + right)


@ft.task(reads="values", updates="total")
def add(values, total):
    total += values.sum()


def means(grain):
    graph = ft.UserGraph("means")
    x, y = graph.array("x", np.arange(64.0)), graph.array("y", np.zeros(48))
    sums = graph.array("sums", np.zeros(48 // grain))
    for i in graph.taskloop(48, grainsize=grain):
        smooth(x[i], x[i.start + 16 : i.stop + 16], y[i])
    for number, i in enumerate(graph.taskloop(48, grainsize=grain)):
        add(y[i], sums[number])
    return graph


if __name__ == "__main__":
    with means(16) as graph:
        print(graph.run(10, threads=2))
        print(graph.arrays["sums"].view)
