"""Plain loops in the place of kernels: what the bytes of a loop take where the step leaves them.

A loop over arrays of its own finds them where it left them itself; a kernel finds its operands where other kernels of
the step left them. So plain loops that read, copy, fill or update the regions of each block take the kernels' places in
the same step, on the same memory, and are timed there.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator
from dataclasses import replace

import numpy as np

from ...cython_src.kernels.interface.kernel_spec import KernelSpec
from ...cython_src.plan.model import READ, WRITE, Access, Block, BlockLoop, Buffer, Plan
from .machine_peaks import MAX_OPERANDS, STREAM_BOUNDS, STREAM_KINDS, plain_kernel

UNCOUNTED = 0.25  # of a loop's bytes, at most, that only blocks declare (weights, partial sums) or only the plan counts

Run = tuple[int, int, int, int]  # first float, rows, floats of a row, floats from row to row


def with_plain_loops(plan: Plan, chosen: Collection[str], instruction_set: str | None = None) -> tuple[Plan, list[int]]:
    """Return a plan in which plain loops stand in the place of loops, and the numbers of these.

    Left as they are: loops whose blocks declare other bytes than the plan counts for them (rows of a table, of which
    few are used), that use more buffers than a kernel may have operands, or whose elements are no multiples of four
    bytes.

    Parameters
    ----------
    plan : Plan
    chosen : collection of str
        Names of loops.
    instruction_set : str, optional
        Default: that of the kernels.
    """
    address, number = plain_kernel(instruction_set)
    loops, kernels, replaced = list(plan.loops), {**(plan.attributes.get("kernels") or {})}, []
    for k, loop in enumerate(plan.loops):
        streams = _loop_streams(plan, loop) if loop.name in chosen and isinstance(loop.blocks, tuple) else None
        if streams is None:
            continue
        names, rows = streams
        width = max(map(len, rows))
        kernel = f"plain loops, {len(names)} operands, {width} streams"
        kernels[kernel] = KernelSpec(
            kernel,
            tuple(f"o{i}" for i in range(len(names))),
            ("instruction_set",),
            (),
            tuple(f"{bound}{i}" for i in range(width) for bound in STREAM_BOUNDS),
            address=address,
            instruction_sets=False,
        )
        nothing = (0,) * len(STREAM_BOUNDS)
        blocks = tuple(
            replace(block, bounds=tuple(itertools.chain(*row, *[nothing] * (width - len(row)))), operands=None)
            for block, row in zip(loop.blocks, rows, strict=True)
        )
        operands = {f"o{i}": name for i, name in enumerate(names)}
        loops[k] = replace(
            loop, kernel=kernel, operands=operands, attributes={"instruction_set": number}, blocks=blocks
        )
        replaced.append(k)
    return replace(plan, loops=tuple(loops), attributes={**plan.attributes, "kernels": kernels}), replaced


def _loop_streams(plan: Plan, loop: BlockLoop) -> tuple[list[str], list[list[tuple[int, ...]]]] | None:
    """Buffers of a loop, and for each block its streams; None for a loop that is left as it is."""
    names = sorted({access.buffer for block in loop.blocks for access in block.accesses})
    if not 0 < len(names) <= MAX_OPERANDS or any(np.dtype(plan.buffers[n].dtype).itemsize % 4 for n in names):
        return None
    index = {name: i for i, name in enumerate(names)}
    rows = [_block_streams(plan, block, index) for block in loop.blocks]
    moved = sum(
        4 * row[5] * row[6] * (2 if row[0] in (STREAM_KINDS["copy"], STREAM_KINDS["update"]) else 1)
        for block in rows
        for row in block
    )
    return (names, rows) if abs(moved - loop.bytes) <= UNCOUNTED * loop.bytes else None


def _block_streams(plan: Plan, block: Block, index: dict[str, int]) -> list[tuple[int, ...]]:
    """Return a block's streams: each written region is copied from a read one with rows alike, or filled where there is
    none; regions that are updated, or read and not copied, follow."""
    regions: dict[str, list[tuple[Access, Run]]] = {"read": [], "write": [], "update": []}
    for access in dict.fromkeys(block.accesses):
        way = {READ: "read", WRITE: "write"}.get(access.kind, "update")
        regions[way] += [(access, run) for run in _runs(plan.buffers[access.buffer], access.box)]
    streams, unread = [], regions["read"]
    for access, (start, rows, count, stride) in regions["write"]:
        to = (index[access.buffer], start)
        for i, (source, run) in enumerate(unread):
            if run[1:3] == (rows, count) and plan.buffers[source.buffer].dtype == plan.buffers[access.buffer].dtype:
                place = (index[source.buffer], run[0], rows, count, stride, run[3])
                streams.append((STREAM_KINDS["copy"], *to, *place))
                unread = unread[:i] + unread[i + 1 :]
                break
        else:
            streams.append((STREAM_KINDS["fill"], *to, *to, rows, count, stride, stride))
    for kind, left in (("update", regions["update"]), ("read", unread)):
        for access, (start, rows, count, stride) in left:
            place = (index[access.buffer], start)
            streams.append((STREAM_KINDS[kind], *place, *place, rows, count, stride, stride))
    return streams


def _runs(buffer: Buffer, box: tuple[tuple[int, int], ...]) -> Iterator[Run]:
    """Yield the rows of equal distance that make up a region, in four-byte elements."""
    words = np.dtype(buffer.dtype).itemsize // 4
    ranges = [*box, *((0, n) for n in buffer.shape[len(box) :])] or [(0, 1)]
    shape = buffer.shape or (1,)
    strides = [words * math.prod(shape[d + 1 :]) for d in range(len(shape))]
    inner = max((d for d, (r, n) in enumerate(zip(ranges, shape, strict=True)) if r != (0, n)), default=0)
    start, stop = ranges[inner]
    count = (stop - start) * strides[inner]
    for place in itertools.product(*(range(*r) for r in ranges[: max(inner - 1, 0)])):
        first = sum(i * stride for i, stride in zip(place, strides, strict=False)) + start * strides[inner]
        if inner == 0:
            yield first, 1, count, count
        else:
            row, end = ranges[inner - 1]
            yield first + row * strides[inner - 1], end - row, count, strides[inner - 1]
