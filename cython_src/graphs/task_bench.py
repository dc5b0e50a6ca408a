"""Task Bench workloads as plans: graphs of `steps` by `width` tasks with a chosen pattern and kind of work.

References
----------
Slaughter et al., "Task Bench: A Parameterized Benchmark for Evaluating Parallel Runtime Performance" (SC 2020), for
patterns and kernels. Here a graph is one iteration of many: step 0 reads the last step of the iteration before, by the
same pattern, so that iterations may overlap where the pattern lets them.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType

import numpy as np

from ..errors import UsageError, check_choice
from ..kernels.bench.bench import CELL_NUMBERS, TASK_BENCH_KERNELS, WORK_BYTES, WORK_FLOPS, task_bench_kernel
from ..plan.model import READ, UPDATE, AccessTable, BlockLoop, Buffer, Plan, UniformBlocks

PATTERNS = ("trivial", "no_comm", "stencil_1d", "fft", "all_to_all", "nearest", "spread")
PATTERNS_WITH_RADIX = ("nearest", "spread")


def predecessors(pattern: str, width: int, radix: int, step: int, point: int) -> list[int]:
    """Points of the step before that a task reads, ascending."""
    p = point
    if pattern == "trivial":
        result = []
    elif pattern == "no_comm":
        result = [p]
    elif pattern == "stencil_1d":
        result = [p - 1, p, p + 1]
    elif pattern == "fft":
        distance = 1 << step % max((width - 1).bit_length(), 1)
        result = [p - distance, p, p + distance]
    elif pattern == "all_to_all":
        result = range(width)
    elif pattern == "nearest":
        result = range(p - radix // 2, p + (radix + 1) // 2)
    else:  # spread
        result = [(p + i * width // radix + (step % width if i else 0)) % width for i in range(radix)]
    return sorted({q for q in result if 0 <= q < width})


def _ranges(numbers: list[int]) -> list[tuple[int, int]]:
    """Ascending numbers as ranges (start, stop)."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number:
            ranges[-1][1] += 1
        else:
            ranges.append([number, number + 1])
    return [tuple(r) for r in ranges]


def _period(pattern: str, width: int) -> int:
    """Steps after which the pattern repeats."""
    if pattern == "fft":
        return max((width - 1).bit_length(), 1)
    return width if pattern == "spread" else 1


def task_bench(
    pattern: str,
    width: int = 16,
    steps: int = 16,
    *,
    radix: int = 5,
    kernel: str = "empty",
    work: int = 0,
    check: bool = True,
) -> Plan:
    """A plan of one graph, a loop for each step, all of whose tasks write a cell of a cache line each, "cells".

    Parameters
    ----------
    pattern : str
        One of `PATTERNS`.
    width, steps : int
        Points, and steps an iteration.
    radix : int
        Predecessors of a task, for nearest and spread.
    kernel : str
        One of `kernels.bench.bench.TASK_BENCH_KERNELS`: `empty`; `compute`, fused multiply-adds in registers;
        `load_imbalance`, between none and all of that, anew in each iteration; `memory`, copies in scratch memory
        larger than the caches of a core; `busy_wait`, spinning for a time.
    work : int
        Units of work a task: 32 flops (compute, load_imbalance), 1 KiB copied (memory), nanoseconds (busy_wait).
    check : bool
        Each task checks that its inputs came from the right tasks of the right iteration.
    """
    check_choice("pattern", pattern, PATTERNS)
    check_choice("kernel", kernel, TASK_BENCH_KERNELS)
    if width < 1 or steps < 2 or width * steps > 2**27:
        raise UsageError(
            f"width must be at least 1, steps at least 2 and their product at most 2^27; got {width} and {steps}"
        )
    if not 1 <= radix <= width and pattern in PATTERNS_WITH_RADIX:
        raise UsageError(f"radix must be in [1, {width}] (the width), got {radix}")
    if work < 0:
        raise UsageError(f"work must not be negative, got {work}")
    attributes = {
        "kernel": TASK_BENCH_KERNELS.index(kernel),
        "work": work,
        "steps": steps,
        "width": width,
        "check": int(check),
    }
    flops = float(WORK_FLOPS * work) if kernel in ("compute", "load_imbalance") else 0.0
    size = float(WORK_BYTES * work) if kernel == "memory" else 0.0
    arrays, loops, first_task = list(_steps(pattern, width, steps, radix)), [], 0
    for step, (bounds, *_) in enumerate(arrays):
        loops.append(
            BlockLoop(
                name=f"step{step}",
                kernel=task_bench_kernel((bounds.shape[1] - 1) // 2),
                operands={"cells": "cells"},
                attributes={**attributes, "step": step},
                blocks=UniformBlocks(bounds, flops, size),
                first_task=first_task,
            )
        )
        first_task += len(bounds)
    # Its content passes from one iteration to the next.
    cells = Buffer("cells", (steps, width, CELL_NUMBERS), "int64", "temporary", carried=True)
    # Accesses are computed: `PlanBuilder` would take too long to find those of a million tasks.
    return Plan(
        f"task_bench {pattern}",
        MappingProxyType({"cells": cells}),
        tuple(loops),
        _table(arrays, width),
        attributes={
            "workload": "task_bench",
            "pattern": pattern,
            "width": width,
            "steps": steps,
            "radix": radix,
            "kernel": kernel,
            "work": work,
            "check": check,
            "memory": "full",
            "mean_work": work / 2 if kernel == "load_imbalance" else float(work),
        },
    )


def replica(plan: Plan, durations: np.ndarray, work: float) -> Plan:
    """The graph of another plan with compute work in place of its kernels. `durations`: of the plan's tasks; only their
    ratios count; `work`: units of work of an average task; rounding to whole units for each task, see the attribute
    "mean_work". Raises `UsageError`: durations that do not fit the plan or are not positive."""
    durations = np.asarray(durations, dtype=float)
    if durations.shape != (plan.num_tasks,) or not (durations > 0).all():
        raise UsageError(f"durations must be {plan.num_tasks} positive numbers, got shape {durations.shape}")
    units = np.rint(work * durations / durations.mean()).astype(np.int32)
    loops = [
        BlockLoop(
            name=loop.name,
            kernel="replica",
            operands={},
            attributes={"kernel": TASK_BENCH_KERNELS.index("compute")},
            blocks=UniformBlocks(units[loop.first_task : loop.first_task + loop.num_blocks, None]),
            layer=loop.layer,
            phase=loop.phase,
            first_task=loop.first_task,
        )
        for loop in plan.loops
    ]
    # The access table names buffers by number; nothing is ever stored in them.
    buffers = {name: Buffer(name, (1,), role="temporary", carried=True) for name in plan.buffers}
    return Plan(
        f"replica of {plan.name}",
        MappingProxyType(buffers),
        tuple(loops),
        plan.accesses,
        attributes={**plan.attributes, "workload": "replica", "mean_work": float(units.mean()), "aliases": {}},
    )


def _offsets(counts: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)


def _steps(pattern: str, width: int, steps: int, radix: int) -> Iterator[tuple]:
    """Yield the arrays of each step, see `_step_arrays`; those of a period have the same."""
    period = _period(pattern, width)
    shapes = [
        _step_arrays([_ranges(predecessors(pattern, width, radix, step, p)) for p in range(width)])
        for step in range(min(period, steps))
    ]
    for step in range(steps):
        yield shapes[step % period]


def _table(arrays: list[tuple], width: int) -> AccessTable:
    """Accesses of all steps, from the arrays of each."""
    bounds, counts, kinds, numbers, sizes, reads = zip(*arrays, strict=True)
    first_list = np.cumsum([0, *map(len, sizes)])
    cells = []
    for step in range(len(arrays)):
        cells += [np.arange(step * width, (step + 1) * width), reads[step] + (step - 1) % len(arrays) * width]
    return AccessTable(
        num_tasks=sum(map(len, bounds)),
        num_cells=len(arrays) * width,
        task_offsets=_offsets(np.concatenate(counts)),
        access_kind=np.concatenate(kinds),
        access_list=np.concatenate([n + first for n, first in zip(numbers, first_list, strict=False)]).astype(np.int32),
        list_offsets=_offsets(np.concatenate(sizes)),
        list_cells=np.concatenate(cells).astype(np.int32),
        access_buffer=np.zeros(sum(map(len, kinds)), dtype=np.int32),
    )


def _step_arrays(ranges: list[list[tuple[int, int]]]):
    """Bounds and accesses of one step from the ranges of predecessors of each point, with points for cells.

    Returns
    -------
    bounds : shape (n, 1 + 2 k), k the largest number of ranges of any point
    counts : accesses of each task: its own cell, and each range
    kind, number : of each access; lists 0 ... n - 1 are the own cells, then come the distinct ranges
    sizes : cells of each list, reads : cells of the ranges' lists
    """
    n = len(ranges)
    k = max(map(len, ranges))
    bounds = np.zeros((n, 1 + 2 * k), dtype=np.int32)
    bounds[:, 0] = range(n)
    list_of_range: dict[tuple[int, int], int] = {}
    kind: list[int] = []
    number: list[int] = []
    for i, mine in enumerate(ranges):
        bounds[i, 1 : 1 + 2 * len(mine)] = np.ravel(mine)
        kind += [UPDATE] + [READ] * len(mine)
        number += [i] + [list_of_range.setdefault(r, n + len(list_of_range)) for r in mine]
    distinct = list(list_of_range)
    reads = [np.arange(start, stop) for start, stop in distinct]
    return (
        bounds,
        np.array([1 + len(mine) for mine in ranges]),
        np.array(kind, dtype=np.uint8),
        np.array(number),
        np.concatenate([np.ones(n, dtype=int), [stop - start for start, stop in distinct]]).astype(int),
        np.concatenate(reads) if reads else np.zeros(0, dtype=int),
    )
