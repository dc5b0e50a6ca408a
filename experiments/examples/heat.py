"""Heat by Gauss-Seidel: each point needs new values from north and west, so blocks run as a wavefront.

With `taskiter` the wavefronts of several sweeps are under way at once; fork-join waits at each diagonal.
"""

import sys

import numpy as np

import forktask as ft

from .common import run_example


def sweep(u):
    """One Gauss-Seidel sweep over the interior of u, row by row."""
    for i in range(1, u.shape[0] - 1):
        for j in range(1, u.shape[1] - 1):
            u[i, j] = 0.25 * (u[i - 1, j] + u[i, j - 1] + u[i, j + 1] + u[i + 1, j])


@ft.task(reads=["north", "west", "east", "south"], updates="block")
def sweep_block(north, west, east, south, block):
    padded = np.zeros((block.shape[0] + 2, block.shape[1] + 2))
    padded[1:-1, 1:-1] = block
    padded[:1, 1:-1], padded[-1:, 1:-1] = north, south
    padded[1:-1, :1], padded[1:-1, -1:] = west, east
    sweep(padded)
    block[...] = padded[1:-1, 1:-1]


def compute(model, threads, iterations=10, n=48, size=16):
    start = np.zeros((n + 2, n + 2))
    start[0], start[:, 0] = 1.0, 0.5  # hot walls
    grid = start.copy()
    graph = ft.UserGraph("heat")
    u = graph.array("u", grid)
    blocks = list(graph.taskloop(range(1, n + 1), grainsize=size))
    for diagonal in range(2 * len(blocks) - 1):  # blocks of one diagonal are independent
        for row in range(max(0, diagonal - len(blocks) + 1), min(diagonal + 1, len(blocks))):
            i, j = blocks[row], blocks[diagonal - row]
            west, east = u[i, j.start - 1 : j.start], u[i, j.stop : j.stop + 1]
            sweep_block(u[i.start - 1, j], west, east, u[i.stop, j], u[i, j])
    with graph:
        graph.taskiter(iterations, model=model, threads=threads)
    expected = start.copy()
    for _ in range(iterations):
        sweep(expected)
    return "bitwise equal to the serial sweep", np.array_equal(grid, expected), grid


if __name__ == "__main__":
    sys.exit(run_example("heat", compute))
