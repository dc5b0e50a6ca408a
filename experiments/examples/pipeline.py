"""A pipeline: produce, transform, consume. Two slots, so that an item is produced while the last is transformed.

One iteration takes two items. With `taskiter` the stages of neighbouring iterations overlap; the consumer still sees
the items in order, because it updates what it keeps.
"""

import sys

import numpy as np

from forktask.experiments.examples.common import run_example
from forktask.experiments.user_graph import ITERATION, UserGraph


def produce(item, iteration, slot):
    item[...] = np.sin(np.arange(item.size) * (2 * iteration + slot + 1))


def transform(item, spectrum):
    spectrum[...] = np.abs(np.fft.rfft(item))


def consume(spectrum, average, count):
    count += 1
    average += (spectrum - average) / count


def compute(model, threads, iterations, size=4096):
    items, spectra = np.zeros((2, size)), np.zeros((2, size // 2 + 1))
    average, count = np.zeros(size // 2 + 1), np.zeros(1)
    graph = UserGraph("pipeline")
    item, spectrum = graph.array("item", items), graph.array("spectrum", spectra)
    kept, seen = graph.array("average", average), graph.array("count", count)
    for slot in (0, 1):
        graph.task(produce, writes=item[slot], args=(ITERATION, slot))
        graph.task(transform, reads=item[slot], writes=spectrum[slot])
        graph.task(consume, reads=spectrum[slot], updates=[kept, seen])
    with graph:
        graph.taskiter(iterations, model=model, threads=threads)
    data, expected, number = np.zeros(size), np.zeros(size // 2 + 1), np.zeros(1)
    for iteration in range(iterations):
        for slot in (0, 1):
            produce(data, iteration, slot)
            consume(np.abs(np.fft.rfft(data)), expected, number)
    return "bitwise equal to one item after the other", np.array_equal(average, expected), average


def main(argv=None):
    return run_example("pipeline", compute, iterations=10, argv=argv)


if __name__ == "__main__":
    sys.exit(main())
