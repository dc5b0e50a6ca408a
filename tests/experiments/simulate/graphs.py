"""Plans without work, and their blocks' durations, whose makespans are known."""

import numpy as np

from forktask.cython_src.plan.builder import PlanBuilder
from forktask.cython_src.plan.model import Block, commutative, update
from forktask.cython_src.plan.model import read as reads


def plan_of(*loops):
    """A plan from loops of blocks: tuples of cells that it updates, that it reads, and that it updates in any order."""
    builder = PlanBuilder("graph")
    size = 1 + max(cell for loop in loops for block in loop for cells in block for cell in cells)
    builder.buffer("cells", (size,), role="parameter")
    for number, loop in enumerate(loops):
        blocks = [
            Block(
                (),
                tuple(
                    access("cells", (cell, cell + 1))
                    for access, cells in zip((update, reads, commutative), block, strict=False)
                    for cell in cells
                ),
            )
            for block in loop
        ]
        builder.loop(f"loop{number}", "replica", {"cells": "cells"}, blocks, attributes={"kernel": 0})
    return builder.build()


def chain(n):
    """Return n tasks that update one cell after the other."""
    return plan_of(*[[((0,), ())]] * n)


def independent(n):
    """Return one loop of n tasks."""
    return plan_of([((i,), ()) for i in range(n)])


def three_stages():
    """Return three tasks, each of which hands a cell to the next: two cycles that share the middle one."""
    return plan_of([((0,), ())], [((1,), (0,))], [((2,), (1,))])


def stencil(width, steps):
    """Return steps of points that read their neighbours of the step before, in two rows of cells."""
    rows = []
    for step in range(steps):
        own, before = (step % 2) * width, (1 - step % 2) * width
        rows.append(
            [
                ((own + p,), tuple(before + q for q in (p - 1, p, p + 1) if 0 <= q < width) if step else ())
                for p in range(width)
            ]
        )
    return plan_of(*rows)


def list_schedule_s(loop_times, threads, longest_first=False):
    """Return the sum over loops of the time of list scheduling, as `schedule(dynamic)` with chunks of one block does.

    The next block, in plan order or the longest one, goes to the first free thread. With the longest first that takes
    at most 4/3 of the best time.
    """
    total = 0.0
    for blocks in loop_times:
        free = np.zeros(threads)
        for duration in sorted(blocks, reverse=True) if longest_first else blocks:
            free[np.argmin(free)] += duration
        total += float(free.max())
    return total
