"""Rules that the accesses of every plan keep: independent blocks, and no read before the first write."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from ..errors import UsageError
from .model import CONCURRENT, READ, WRITE, AccessTable, BlockLoop, Buffer


def check_blocks_are_independent(buffers: Mapping[str, Buffer], loops: Sequence[BlockLoop], table: AccessTable) -> None:
    """Refuse a loop in which one block writes a cell that another block touches, unless both may do so in any order.

    Also refuse a block that touches a cell both in any order and otherwise.
    """
    length = np.diff(table.list_offsets)
    for loop in loops:
        tasks = table.task_offsets[loop.first_task : loop.first_task + loop.num_blocks + 1]
        span = slice(tasks[0], tasks[-1])
        which = table.access_list[span]
        if not len(which) or (loop.num_blocks == 1 and table.access_kind[span].max() < CONCURRENT):
            continue
        block = np.repeat(np.arange(loop.num_blocks), np.diff(tasks))
        access = np.repeat(np.arange(len(which)), length[which])
        cells = np.concatenate([table.list_cells[table.list_offsets[w] : table.list_offsets[w + 1]] for w in which])
        order = np.argsort(cells, kind="stable")
        cells, access = cells[order], access[order]
        group = np.flatnonzero(np.diff(cells, prepend=-1))
        kinds = table.access_kind[span][access]
        weakest, strongest = np.minimum.reduceat(kinds, group), np.maximum.reduceat(kinds, group)
        low = np.minimum.reduceat(block[access], group)
        high = np.maximum.reduceat(block[access], group)
        any_order = (weakest == strongest) & (strongest >= CONCURRENT)
        bad = np.flatnonzero(((low != high) & (strongest != READ) | (strongest >= CONCURRENT)) & ~any_order)
        if not len(bad):
            continue
        where = bad[0]
        name = list(buffers)[table.access_buffer[span][access[group[where]]]]
        if low[where] != high[where]:
            raise UsageError(
                f"blocks of one loop must be independent, but blocks {low[where]} and {high[where]} of loop "
                f"{loop.name!r} meet in buffer {name!r}, which one of them writes; make it a chain of loops or write "
                f"partial buffers"
            )
        raise UsageError(
            f"a block may not touch a region both as concurrent, commutative or reduction and otherwise, but block "
            f"{low[where]} of loop {loop.name!r} does so in buffer {name!r}; declare an update"
        )


def check_transient_reads(buffers: Mapping[str, Buffer], loops: Sequence[BlockLoop], table: AccessTable) -> None:
    """Refuse a plan that reads a transient, not carried cell before any task of the same pass has written it."""
    kept = [buffer.persistent or buffer.carried for buffer in buffers.values()]
    names = list(buffers)
    written = np.zeros(table.num_cells, dtype=bool)
    whole: set[int] = set()  # lists whose cells have all been written
    cells = [table.list_cells[start:stop] for start, stop in itertools.pairwise(table.list_offsets.tolist())]
    kinds, lists, owners = table.access_kind.tolist(), table.access_list.tolist(), table.access_buffer.tolist()
    offsets = table.task_offsets.tolist()
    for loop in loops:
        for number in range(loop.num_blocks):
            span = range(offsets[loop.first_task + number], offsets[loop.first_task + number + 1])
            for a in span:
                if kinds[a] == WRITE or kept[owners[a]] or lists[a] in whole:
                    continue
                if not written[cells[lists[a]]].all():
                    raise UsageError(
                        f"{loop.name}[{number}] reads buffer {names[owners[a]]!r} before any block wrote that part of "
                        f"it; write it first, or declare the buffer as carried or persistent"
                    )
                whole.add(lists[a])
            for a in span:
                if kinds[a] == WRITE and lists[a] not in whole:
                    written[cells[lists[a]]] = True
                    whole.add(lists[a])
