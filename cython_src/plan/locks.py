"""Locks of commutative accesses: which a task takes while it runs."""

from __future__ import annotations

import numpy as np

from .model import COMMUTATIVE, AccessTable


def commutative_locks(table: AccessTable) -> tuple[int, np.ndarray, np.ndarray]:
    """Return the number of locks that keep commutative accesses apart, and int32 arrays, offsets and locks: task t
    needs locks[offsets[t]:offsets[t + 1]], ascending. Regions that share a cell share a lock."""
    chosen = np.flatnonzero(table.access_kind == COMMUTATIVE)
    parent: dict[int, int] = {}

    def root(cell: int) -> int:
        while parent.setdefault(cell, cell) != cell:
            parent[cell] = cell = parent[parent[cell]]
        return cell

    lists = np.unique(table.access_list[chosen]).tolist()
    for which in lists:
        cells = table.list_cells[table.list_offsets[which] : table.list_offsets[which + 1]].tolist()
        for cell in cells:
            parent[root(cell)] = root(cells[0])
    number: dict[int, int] = {}
    lock_of = {w: number.setdefault(root(int(table.list_cells[table.list_offsets[w]])), len(number)) for w in lists}
    task = np.repeat(np.arange(table.num_tasks), np.diff(table.task_offsets))[chosen]
    pairs = np.unique(
        np.array([task, [lock_of[w] for w in table.access_list[chosen].tolist()]], dtype=np.int64).reshape(2, -1),
        axis=1,
    )
    offsets = np.searchsorted(pairs[0], np.arange(table.num_tasks + 1)).astype(np.int32)
    return len(number), offsets, pairs[1].astype(np.int32)
