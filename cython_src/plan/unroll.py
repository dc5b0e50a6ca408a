"""Several iterations in one pass of a plan, with renamed copies ("slots") of buffers.

Unrolled by U, the recorded graph holds U iterations. What that buys is renaming: a buffer with two slots may be
written for the next iteration while this one still reads it, which takes the anti-dependence out of the graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from ..errors import UsageError
from .model import Block, BlockLoop, Plan, UniformBlocks


def slot_name(buffer: str, slot: int) -> str:
    """Name of a buffer's slot; slot 0 is the buffer itself."""
    return f"{buffer}.slot{slot}" if slot else buffer


def unroll(plan: Plan, times: int, slots: Mapping[str, int] | None = None) -> Plan:
    """A plan of which one pass is `times` passes of the given one. `slots`: transient buffers of which pass k uses slot
    k modulo this number. Raises `UsageError`: less than one; slots of a buffer that is not transient, is carried from
    one iteration to the next, or shares memory."""
    if times < 1:
        raise UsageError(f"unroll must be at least 1, got {times}")
    slots = {name: number for name, number in (slots or {}).items() if number != 1}
    for name, number in slots.items():
        buffer = plan.buffers.get(name)
        if buffer is None or number < 1 or buffer.persistent or buffer.carried or name in plan.arena_of:
            raise UsageError(
                f"only transient buffers with memory of their own, which no iteration hands to the next, may have "
                f"slots, and at least one; got {number} of {name!r}; leave it out"
            )
    if times == 1:
        return plan
    slots = {name: min(number, times) for name, number in slots.items()}
    buffers = dict(plan.buffers)
    for name, number in slots.items():
        for slot in range(1, number):
            buffers[slot_name(name, slot)] = replace(buffers[name], name=slot_name(name, slot))
    loops = []
    for k in range(times):
        names = {name: slot_name(name, k % number) for name, number in slots.items() if k % number}
        for loop in plan.loops:
            loops.append(
                replace(
                    _renamed(loop, names),
                    iteration_offset=loop.iteration_offset + k * plan.iteration_stride,
                    first_task=loop.first_task + k * plan.num_tasks,
                )
            )
    return replace(
        plan,
        buffers=MappingProxyType(buffers),
        loops=tuple(loops),
        accesses=_repeated(plan, times, slots, {name: i for i, name in enumerate(buffers)}),
        iteration_stride=plan.iteration_stride * times,
    )


def _renamed(loop: BlockLoop, names: Mapping[str, str]) -> BlockLoop:
    """A loop on other buffers."""
    if not loop.buffers & set(names):
        return loop

    def rename(operands):
        return MappingProxyType({operand: names.get(buffer, buffer) for operand, buffer in operands.items()})

    def block_renamed(block: Block) -> Block:
        accesses = tuple(a._replace(buffer=names.get(a.buffer, a.buffer)) for a in block.accesses)
        return replace(block, accesses=accesses, operands=rename(block.operands) if block.operands else None)

    blocks = loop.blocks if isinstance(loop.blocks, UniformBlocks) else tuple(map(block_renamed, loop.blocks))
    return replace(loop, operands=rename(loop.operands), blocks=blocks)


def _repeated(plan: Plan, times: int, slots: Mapping[str, int], index_of: Mapping[str, int]):
    """The access table of `times` passes, renamed buffers on cells of their own."""
    table = plan.accesses
    cells = [table.list_cells[a:b] for a, b in zip(table.list_offsets[:-1], table.list_offsets[1:], strict=True)]
    num_cells = table.num_cells
    position = {name: i for i, name in enumerate(plan.buffers)}
    access_list, access_buffer = [], []
    lists_of_slot: dict[tuple[str, int], np.ndarray] = {}  # list -> list of the same cells in that slot
    for name, number in slots.items():
        used = np.unique(table.access_list[table.access_buffer == position[name]])
        old = np.unique(np.concatenate([cells[i] for i in used.tolist()])) if len(used) else np.zeros(0, np.int32)
        for slot in range(1, number):
            mapping = np.arange(len(table.list_offsets) - 1, dtype=np.int32)
            mapping[used] = np.arange(len(cells), len(cells) + len(used), dtype=np.int32)
            lists_of_slot[name, slot] = mapping
            cells += [(num_cells + np.searchsorted(old, cells[i])).astype(np.int32) for i in used.tolist()]
            num_cells += len(old)
    for k in range(times):
        lists, owners = table.access_list.copy(), table.access_buffer.copy()
        for name, number in slots.items():
            if k % number:
                here = table.access_buffer == position[name]
                lists[here] = lists_of_slot[name, k % number][table.access_list[here]]
                owners[here] = index_of[slot_name(name, k % number)]
        access_list.append(lists)
        access_buffer.append(owners)
    steps = np.tile(np.diff(table.task_offsets), times)
    return replace(
        table,
        num_tasks=table.num_tasks * times,
        num_cells=num_cells,
        task_offsets=np.concatenate([[0], np.cumsum(steps)]).astype(np.int32),
        access_kind=np.tile(table.access_kind, times),
        access_list=np.concatenate(access_list),
        access_buffer=np.concatenate(access_buffer),
        list_offsets=np.concatenate([[0], np.cumsum([len(c) for c in cells])]).astype(np.int32),
        list_cells=np.concatenate(cells) if cells else table.list_cells,
    )
