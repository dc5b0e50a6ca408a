"""Random plans for the tests of the task runtime."""

import itertools

import numpy as np

from forktask.cython_src.plan.builder import PlanBuilder
from forktask.cython_src.plan.model import Block, commutative, concurrent, read, reduction, update, write


def random_plan(seed, *, num_cells=None, num_loops=None, max_blocks=8, work=0, fail=(-1, -1), phases=("other",)):
    """A plan of random blocks: each reads, writes and updates random ranges of a vector of cells. Blocks of a loop are
    independent. Ranges differ in size, so that blockings meet and joins appear."""
    rng = np.random.default_rng(seed)
    num_cells = num_cells or int(rng.integers(2, 24))
    num_loops = num_loops or int(rng.integers(1, 9))
    builder = PlanBuilder(f"random{seed}")
    builder.buffer("cells", (num_cells,), "uint64", role="statistic")
    task = 0
    loops = []
    for _ in range(num_loops):
        # Cut the vector at random places; parts are written by one block or read by several.
        cuts = np.unique(np.concatenate([[0, num_cells], rng.integers(0, num_cells + 1, rng.integers(0, max_blocks))]))
        parts = list(zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True))
        roles = rng.choice(["read", "write", "update"], len(parts), p=rng.dirichlet(np.ones(3)))
        readable = [p for p, role in zip(parts, roles, strict=True) if role == "read"]
        owned = [(p, role) for p, role in zip(parts, roles, strict=True) if role != "read"]
        blocks = []
        for _ in range(int(rng.integers(1, max_blocks + 1))):
            bounds, accesses = [task + len(blocks)], []
            for kind, role, candidates in (
                (read, "read", readable),
                (write, "write", [p for p, r in owned if r == "write"]),
                (update, "update", [p for p, r in owned if r == "update"]),
            ):
                if candidates and rng.random() < 0.8:
                    start, stop = candidates[rng.integers(len(candidates))]
                    if role == "read" and stop - start > 1:
                        start, stop = sorted(rng.choice(np.arange(start, stop + 1), 2, replace=False).tolist())
                    else:
                        owned = [(p, r) for p, r in owned if p != (start, stop)]
                    accesses.append(kind("cells", (start, stop)))
                    bounds += [start, stop]
                else:
                    bounds += [0, 0]
            blocks.append(Block(tuple(bounds), tuple(accesses), flops=float(rng.exponential(1000))))
        loops.append(blocks)
        task += len(blocks)
    builder.buffer("trace", (task, 2), "uint64", role="statistic")
    attributes = {"work": work, "fail_iteration": fail[0], "fail_task": fail[1]}
    return _of_loops(builder, "test_hash", loops, attributes, phases, rng)


def _of_loops(builder, kernel, loops, attributes, phases, rng):
    """The plan of loops of a kernel over all buffers, each in a random phase."""
    operands = {name: name for name in builder.buffers}
    for number, blocks in enumerate(loops):
        phase = str(rng.choice(phases))
        builder.loop(f"loop{number}", kernel, operands, blocks, attributes=attributes, phase=phase)
    return builder.build()


def cells_plan(*loops, cost=None, work=None):
    """A plan of loops over ranges of cells, which blocks of 10 us times `cost`, or of `work` rounds, update."""
    builder = PlanBuilder("cells")
    builder.buffer("cells", (max(stop for loop in loops for _, stop in loop),), "uint64", role="statistic")
    builder.buffer("trace", (sum(map(len, loops)), 2), "uint64", role="statistic")
    tasks, none = itertools.count(), [0] * len(loops)
    for number, (loop, times, rounds) in enumerate(zip(loops, cost or none, work or none, strict=True)):
        blocks = [
            Block((next(tasks), 0, 0, 0, 0, *cells), (update("cells", cells),), flops=1e6 * times) for cells in loop
        ]
        attributes = {"work": rounds, "fail_iteration": -1, "fail_task": -1}
        builder.loop(f"loop{number}", "test_hash", {"cells": "cells", "trace": "trace"}, blocks, attributes=attributes)
    return builder.build()


def columns(width, steps, work=0):
    """Independent chains of `steps` updates: loop s updates cell i in block i."""
    return cells_plan(*[[(i, i + 1) for i in range(width)]] * steps, work=[work] * steps)


KINDS = {"read": read, "write": write, "update": update, "concurrent": concurrent, "commutative": commutative}
FOLDS = {"fold read": read, "fold update": update, "fold reduction": reduction}


def kinds_loops(rng, num_cells, max_blocks=8, num_loops=None):
    """Loops of blocks, each a mapping from some of KINDS and FOLDS to a range of cells. Blocks of a loop are
    independent, or touch a range in any order."""
    weights = rng.dirichlet(np.ones(5))
    for _ in range(num_loops or int(rng.integers(1, 8))):
        cuts = np.unique(np.concatenate([[0, num_cells], rng.integers(0, num_cells + 1, rng.integers(0, 4))])).tolist()
        parts = list(itertools.pairwise(cuts))
        roles = rng.choice([*KINDS], len(parts), p=weights)
        fold = str(rng.choice(["read", "update", "reduction"]))
        free = set(range(len(parts)))
        blocks = []
        for _ in range(int(rng.integers(1, max_blocks + 1))):
            ranges = {}
            for kind in KINDS:
                some = [
                    i for i in range(len(parts)) if roles[i] == kind and (kind not in ("write", "update") or i in free)
                ]
                if some and rng.random() < 0.7:
                    i = int(rng.choice(some))
                    free.discard(i)
                    ranges[kind] = parts[i]
            box = tuple(sorted(rng.choice(num_cells + 1, 2, replace=False).tolist()))
            if fold == "update":
                box = (len(blocks), len(blocks) + 1)
            if rng.random() < 0.6 and box[1] <= num_cells:
                ranges[f"fold {fold}"] = box
            blocks.append(ranges)
        yield blocks


def kinds_plan(seed, work=0, max_blocks=8, num_loops=None):
    """A plan with all access kinds on the same cells, and reductions into a second vector that others read and update.

    What blocks add to a region does not depend on their order, so every legal order gives the same bits.
    """
    rng = np.random.default_rng(seed)
    num_cells = int(rng.integers(2, 12))
    builder = PlanBuilder(f"kinds{seed}")
    builder.buffer("cells", (num_cells,), "uint64", role="statistic")
    builder.buffer("folds", (num_cells,), "uint64", role="statistic")
    builder.reduction_groups(int(rng.integers(1, 5)))
    loops, task = [], 0
    for drawn in kinds_loops(rng, num_cells, max_blocks, num_loops):
        blocks = []
        for ranges in drawn:
            accesses = [KINDS[kind]("cells", cells) for kind, cells in ranges.items() if kind in KINDS]
            accesses += [FOLDS[kind]("folds", cells) for kind, cells in ranges.items() if kind in FOLDS]
            bounds = [task + len(blocks), *itertools.chain(*(ranges.get(kind, (0, 0)) for kind in (*KINDS, *FOLDS)))]
            blocks.append(Block(tuple(bounds), tuple(accesses), flops=float(rng.exponential(1000))))
        loops.append(blocks)
        task += len(blocks)
    builder.buffer("trace", (task,), "uint64", role="statistic")
    return _of_loops(builder, "test_kinds", loops, {"work": work}, ["forward", "backward"], rng)


def shared_plan(seed, memory="shared"):
    """A chain of transient buffers, some of which share memory: random blockings, each stage reads the one before."""
    rng = np.random.default_rng(seed)
    num_cells = int(rng.integers(2, 9))
    num_stages = int(rng.integers(3, 8))
    builder = PlanBuilder(f"shared{seed}")
    builder.buffer("out", (num_cells,), "uint64", role="statistic")
    for stage in range(num_stages):
        builder.buffer(f"t{stage}", (num_cells,), "uint64")
    operands = ["out", *(f"t{stage}" for stage in range(num_stages))]
    for stage in range(num_stages):
        cuts = np.unique(np.concatenate([[0, num_cells], rng.integers(0, num_cells + 1, rng.integers(0, 5))])).tolist()
        blocks = []
        for start, stop in itertools.pairwise(cuts):
            source = (max(start - 1, 0), min(stop + 1, num_cells))
            accesses = [write(f"t{stage}", (start, stop))]
            accesses.append(read(f"t{stage - 1}", source) if stage else read("out", source))
            blocks.append(Block((start, stop, *source), tuple(accesses)))
        builder.loop(f"stage{stage}", "test_copy", {"out": f"t{stage}", "in": operands[stage]}, blocks)
    blocks = [
        Block((i, i + 1, i, i + 1), (write("out", (i, i + 1)), read(f"t{num_stages - 1}", (i, i + 1))))
        for i in range(num_cells)
    ]
    builder.loop("close", "test_copy", {"out": "out", "in": f"t{num_stages - 1}"}, blocks)
    return builder.build(memory=memory)
