"""Tiled Cholesky factorisation: four NumPy kernels, whose tasks find their order from the tiles they touch."""

import sys

import numpy as np
from threadpoolctl import threadpool_limits

import forktask as ft

from .common import run_example


def load(source, tile):
    """Copy the matrix, from which each iteration starts again."""
    tile[...] = source


def potrf(tile):
    """tile = L with L L' = tile."""
    tile[...] = np.linalg.cholesky(tile)


def trsm(diagonal, tile):
    """tile = tile L'^-1."""
    tile[...] = np.linalg.solve(diagonal, tile.T).T


def gemm(left, right, tile):
    """tile = tile - left right'."""
    tile -= left @ right.T


def compute(model, threads, iterations=3, n=256, size=64):
    random = np.random.default_rng(1).standard_normal((n, n))
    matrix = random @ random.T + n * np.eye(n)
    factor = np.zeros((n, n))
    graph = ft.UserGraph("cholesky")
    a, f = graph.array("matrix", matrix), graph.array("factor", factor)
    tiles = list(graph.taskloop(n, grainsize=size))
    for row, i in enumerate(tiles):
        for j in tiles[: row + 1]:
            graph.task(load, reads=a[i, j], writes=f[i, j])
    for step, k in enumerate(tiles):
        graph.task(potrf, updates=f[k, k], flops=size**3 / 3)
        for i in tiles[step + 1 :]:
            graph.task(trsm, reads=f[k, k], updates=f[i, k], flops=size**3)
        for row, i in enumerate(tiles[step + 1 :]):
            for j in tiles[step + 1 : step + 2 + row]:
                graph.task(gemm, reads=[f[i, k], f[j, k]], updates=f[i, j], flops=2 * size**3)
    with graph, threadpool_limits(1, user_api="blas"):  # A task computes on one thread.
        graph.taskiter(iterations, model=model, threads=threads)
    lower = np.tril(factor)
    return "equals numpy.linalg.cholesky", np.allclose(lower, np.linalg.cholesky(matrix), atol=1e-9), lower


if __name__ == "__main__":
    sys.exit(run_example("cholesky", compute))
