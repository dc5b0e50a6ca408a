"""Reductions, lowered: private copies for groups of blocks, combined in a fixed order.

A reduction access says that a block adds something to a region. Blocks of a loop are dealt to at most `groups` groups
of neighbours; each group has a private copy of the buffer, in which its blocks follow one another. Before the first
block that touches the buffer in another way, or at the end of the pass, the copies are combined with the buffer in the
order of the groups. All of this becomes ordinary loops, reads, writes and updates:

    fill (a block a copy)  ->  the user's loops, on the copies  ->  combine (a block a region)

So dependences, also those to the next iteration, every executor and every check treat it like any other plan, and the
result is bitwise the same under all of them. It may differ by rounding from a loop without groups.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np

from ..errors import UsageError
from .model import REDUCTION, UPDATE, Access, Block, BlockLoop, Buffer, read, update, write

MAX_GROUPS = 16  # copies are operands of the combining kernel
REDUCTION_DTYPES = ("float32", "float64", "int32", "int64", "uint64")
Box = tuple[tuple[int, int], ...]


@dataclass
class _Run:
    """Loops that reduce into a buffer with nothing else touching it in between."""

    buffer: str
    first: int
    last: int
    num_copies: int = 0
    boxes: dict[Box, None] = field(default_factory=dict)

    @property
    def copies(self) -> list[str]:
        return [copy_name(self.buffer, i) for i in range(self.num_copies)]


def copy_name(buffer: str, number: int) -> str:
    """Name of a private copy."""
    return f"{buffer}.copy{number}"


def lower_reductions(
    buffers: Mapping[str, Buffer], loops: Sequence[BlockLoop], groups: int
) -> tuple[dict[str, Buffer], list[BlockLoop]]:
    """Replace reduction accesses. `buffers`, `loops`: of a plan that is being built; blocks of each loop are known to
    be independent; `groups`: private copies of a buffer at most. Raises `UsageError`: a block that touches a buffer
    both as a reduction and otherwise; a dtype without kernels."""
    if not 1 <= groups <= MAX_GROUPS:
        raise UsageError(f"reduction_groups must be in [1, {MAX_GROUPS}], got {groups}")
    runs = _find_runs(buffers, loops, groups)
    # A run of single blocks needs no copies: they follow one another in the buffer itself.
    begins = {(run.first, run.buffer): run for run in runs if run.num_copies > 1}
    active: dict[str, _Run] = {}
    named, buffers = buffers, dict(buffers)
    lowered: list[BlockLoop] = []

    def append(loop: BlockLoop) -> None:
        first = lowered[-1].first_task + lowered[-1].num_blocks if lowered else 0
        lowered.append(replace(loop, first_task=first))

    for number, loop in enumerate(loops):
        touched = {access.buffer for block in loop.blocks for access in block.accesses}
        for name in sorted(touched):
            if (number, name) in begins:
                run = active[name] = begins[number, name]
                for copy in run.copies:
                    if copy in named:
                        raise UsageError(f"buffer {copy!r} has the name of a private copy of {name!r}; rename it")
                    buffers[copy] = replace(buffers[name], name=copy, role="temporary", carried=False)
                append(_fill(buffers[name], run, loop))
        for part in _split(loop, active, groups):
            append(part)
        for run in [run for run in active.values() if run.last == number]:
            append(_combine(buffers[run.buffer], run, loop))
            del active[run.buffer]
    return buffers, lowered


def _find_runs(buffers: Mapping[str, Buffer], loops: Sequence[BlockLoop], groups: int) -> list[_Run]:
    result: list[_Run] = []
    current: dict[str, _Run] = {}
    for number, loop in enumerate(loops):
        boxes: dict[str, dict[Box, None]] = {}
        otherwise: set[str] = set()
        for index, block in enumerate(loop.blocks):
            kinds: dict[str, set[bool]] = {}
            for access in block.accesses:
                kinds.setdefault(access.buffer, set()).add(access.kind == REDUCTION)
                if access.kind != REDUCTION:
                    otherwise.add(access.buffer)
                    continue
                boxes.setdefault(access.buffer, {})[access.box] = None
            for name in (name for name, two in kinds.items() if len(two) > 1):
                raise UsageError(
                    f"a block may not touch a buffer both as a reduction and otherwise, but block {index} of loop "
                    f"{loop.name!r} does so with {name!r}; declare an update, or use another buffer"
                )
        for name in otherwise:
            current.pop(name, None)
        for name in boxes:
            if buffers[name].dtype not in REDUCTION_DTYPES:
                raise UsageError(
                    f"a reduction must be over {', '.join(REDUCTION_DTYPES)}, got {buffers[name].dtype} of buffer "
                    f"{name!r}"
                )
            run = current.get(name)
            if run is None:
                run = current[name] = _Run(name, number, number)
                result.append(run)
            run.last = number
            run.num_copies = max(run.num_copies, math.ceil(loop.num_blocks / _rounds(loop.num_blocks, groups)))
            run.boxes.update(boxes[name])
            if name in otherwise:  # other blocks of the same loop touch other parts of it
                current.pop(name)
    return result


def _rounds(num_blocks: int, groups: int) -> int:
    """Blocks of the longest group, which is the number of loops that a loop is split into."""
    return -(-num_blocks // groups)


def _split(loop: BlockLoop, active: Mapping[str, _Run], groups: int) -> list[BlockLoop]:
    """The loop on private copies; round j holds the j-th block of each group, so that its blocks are independent."""
    reduced = {a.buffer for block in loop.blocks for a in block.accesses if a.kind == REDUCTION}
    if not reduced:
        return [loop]
    rounds = _rounds(loop.num_blocks, groups)
    parts: list[list[Block]] = [[] for _ in range(rounds)]
    for number, block in enumerate(loop.blocks):
        copies = {name: copy_name(name, number // rounds) for name in reduced if name in active}
        accesses = tuple(
            Access(UPDATE, copies.get(a.buffer, a.buffer), a.box) if a.kind == REDUCTION else a for a in block.accesses
        )
        mine = {a.buffer for a in block.accesses if a.kind == REDUCTION}
        operands = {
            name: copies[buffer] for name, buffer in loop.operands.items() if buffer in mine and buffer in copies
        }
        parts[number % rounds].append(replace(block, accesses=accesses, operands=operands or None))
    if rounds == 1:
        return [replace(loop, blocks=tuple(parts[0]))]
    return [replace(loop, name=f"{loop.name}.{j}", blocks=tuple(part)) for j, part in enumerate(parts)]


def bounds_of(shape: tuple[int, ...], box: Box) -> tuple[int, ...]:
    """Start and stop of a box in each of the four dimensions."""
    inner = math.prod(shape[4:])
    ranges = [box[d] if d < len(box) else (0, n) for d, n in enumerate((*shape[:4], *(1,) * (4 - len(shape))))]
    ranges[3] = (ranges[3][0] * inner, ranges[3][1] * inner)
    return tuple(itertools.chain(*ranges))


def loop_like(
    near: BlockLoop,
    name: str,
    kernel: str,
    operands: Mapping[str, str],
    blocks: Sequence[Block],
    buffer: Buffer,
    **attributes: int,
) -> BlockLoop:
    """Return a loop of a kernel that fills or combines buffers like `buffer`, in layer and phase of another loop."""
    shape = buffer.shape
    # Four dimensions: those that regions may cut, the rest in the last one.
    _, n1, n2, n3 = (*shape[:3], math.prod(shape[3:])) if len(shape) > 3 else (*shape, *(1,) * (4 - len(shape)))
    return BlockLoop(
        name=name,
        kernel=kernel,
        operands=MappingProxyType(operands),
        attributes=MappingProxyType(
            {"dtype": REDUCTION_DTYPES.index(buffer.dtype), "n1": n1, "n2": n2, "n3": n3, **attributes}
        ),
        blocks=tuple(blocks),
        layer=near.layer,
        phase=near.phase,
        iteration_offset=near.iteration_offset,
    )


def _fill(buffer: Buffer, run: _Run, near: BlockLoop) -> BlockLoop:
    """Private copies set to zero, a block each: as large as the copies themselves."""
    hull = tuple(
        (min(r[0] for r in ranges), max(r[1] for r in ranges)) for ranges in zip(*_full(buffer, run), strict=True)
    )
    bounds, size = bounds_of(buffer.shape, hull), buffer.bytes_of(hull)
    blocks = [Block(bounds, (write(copy, *hull),), 0.0, size, {"out": copy}) for copy in run.copies]
    name, operands = f"{near.name}.fill.{buffer.name}", {"out": run.copies[0]}
    return loop_like(near, name, "reduction_fill", operands, blocks, buffer)


def _combine(buffer: Buffer, run: _Run, near: BlockLoop) -> BlockLoop:
    """buffer = ((buffer + copy 0) + copy 1) + ..., a block for each part of the regions that is cut no further."""
    blocks = [
        Block(
            bounds_of(buffer.shape, box),
            (update(buffer.name, *box), *(read(copy, *box) for copy in run.copies)),
            float(buffer.bytes_of(box) // np.dtype(buffer.dtype).itemsize * run.num_copies),
            buffer.bytes_of(box) * (run.num_copies + 2),
        )
        for box in _pieces(_full(buffer, run))
    ]
    operands = {"out": buffer.name, **{f"copy{i}": copy for i, copy in enumerate(run.copies)}}
    name, copies = f"{near.name}.combine.{buffer.name}", run.num_copies
    return loop_like(near, name, "reduction_combine", operands, blocks, buffer, copies=copies)


def _full(buffer: Buffer, run: _Run) -> list[Box]:
    """The run's boxes with a range for each dimension that regions may cut."""
    return [(*box, *((0, n) for n in buffer.shape[len(box) : 4])) for box in run.boxes]


def _pieces(boxes: Sequence[Box]) -> list[Box]:
    """Disjoint boxes that cover the union of some boxes: the grid of all their cuts, without what none covers."""
    cuts = [sorted({cut for ranges in dimension for cut in ranges}) for dimension in zip(*boxes, strict=True)]
    return [
        piece
        for piece in itertools.product(*(itertools.pairwise(c) for c in cuts))
        if any(all(a <= x and y <= b for (x, y), (a, b) in zip(piece, box, strict=True)) for box in boxes)
    ]
