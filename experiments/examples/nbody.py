"""N-body: forces on a block of bodies need all positions, so each block's move waits for every force of the step."""

import sys

import numpy as np

import forktask as ft

from .common import run_example

TIME_STEP = 1e-3


def force(all_positions, own_positions, forces):
    """Compute the softened gravity of all bodies, each of mass 1, on some of them."""
    distance = all_positions[None, :, :] - own_positions[:, None, :]
    cube = ((distance**2).sum(axis=2) + 1e-2) ** 1.5
    forces[...] = (distance / cube[:, :, None]).sum(axis=1)


def move(forces, velocities, positions):
    velocities += TIME_STEP * forces
    positions += TIME_STEP * velocities


def compute(model, threads, iterations=10, n=192, grainsize=32):
    start = np.random.default_rng(1).standard_normal((n, 3))
    positions, velocities, forces = start.copy(), np.zeros((n, 3)), np.zeros((n, 3))
    graph = ft.UserGraph("nbody")
    x, v, f = (graph.array(*a) for a in (("x", positions), ("v", velocities), ("f", forces)))
    for i in graph.taskloop(n, grainsize=grainsize):
        graph.task(force, reads=[x, x[i]], writes=f[i], flops=20 * n * grainsize)
    for i in graph.taskloop(n, grainsize=grainsize):
        graph.task(move, reads=f[i], updates=[v[i], x[i]])
    with graph:
        graph.taskiter(iterations, model=model, threads=threads)
    expected, speed, pull = start.copy(), np.zeros((n, 3)), np.zeros((n, 3))
    for _ in range(iterations):
        force(expected, expected, pull)
        move(pull, speed, expected)
    return "bitwise equal to the plain loop", np.array_equal(positions, expected), positions


if __name__ == "__main__":
    sys.exit(run_example("nbody", compute))
