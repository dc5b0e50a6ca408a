"""A pipeline: produce, transform, consume. Two slots, so that an item is produced while the last is transformed.

One iteration takes two items. With `taskiter` the stages of neighbouring iterations overlap; the consumer still sees
the items in order, because it updates what it keeps.
"""

import sys

import numpy as np

import forktask as ft

from .common import run_example


@ft.task(writes="item")
def produce(item, iteration, slot):
    item[...] = np.sin(np.arange(item.size) * (2 * iteration + slot + 1))


@ft.task(reads="item", writes="spectrum")
def transform(item, spectrum):
    spectrum[...] = np.abs(np.fft.rfft(item))


@ft.task(reads="spectrum", updates=["average", "count"])
def consume(spectrum, average, count):
    count += 1
    average += (spectrum - average) / count


def compute(model, threads, iterations=10, size=4096):
    items, spectra = np.zeros((2, size)), np.zeros((2, size // 2 + 1))
    average, count = np.zeros(size // 2 + 1), np.zeros(1)
    graph = ft.UserGraph("pipeline")
    item, spectrum = graph.array("item", items), graph.array("spectrum", spectra)
    kept, seen = graph.array("average", average), graph.array("count", count)
    for slot in (0, 1):
        produce(item[slot], ft.ITERATION, slot)
        transform(item[slot], spectrum[slot])
        consume(spectrum[slot], kept, seen)
    with graph:
        graph.taskiter(iterations, model=model, threads=threads)
    data, expected, number = np.zeros(size), np.zeros(size // 2 + 1), np.zeros(1)
    for iteration in range(iterations):
        for slot in (0, 1):
            produce(data, iteration, slot)
            consume(np.abs(np.fft.rfft(data)), expected, number)
    return "bitwise equal to one item after the other", np.array_equal(average, expected), average


if __name__ == "__main__":
    sys.exit(run_example("pipeline", compute))
