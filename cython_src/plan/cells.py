"""Cut points to cells: each access as a list of cells, also where buffers share memory; locks of commutative ones."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ..errors import UsageError
from .model import COMMUTATIVE, AccessTable, BlockLoop, Buffer

Box = tuple[tuple[int, int], ...]
Partition = tuple[tuple[int, ...], tuple[bytes, ...]]  # shape and cut points of a buffer


def build_access_table(
    buffers: Mapping[str, Buffer], loops: Sequence[BlockLoop]
) -> tuple[AccessTable, dict[str, list[np.ndarray]], dict[str, int]]:
    """Split buffers at every cut point and express each access as a list of cells.

    Also returns each buffer's cut points, a sorted array for each of its leading dimensions, and its first cell.
    """
    cuts: dict[str, list[set[int]]] = {}
    number_of: dict[tuple[str, Box], int] = {}  # region -> number of its cell list
    index_of = {name: i for i, name in enumerate(buffers)}
    task_offsets = [0]
    access_kind: list[int] = []
    access_list: list[int] = []
    access_buffer: list[int] = []
    for loop in loops:
        for block in loop.blocks:
            for kind, name, box in block.accesses:
                number = number_of.get((name, box))
                if number is None:
                    number = number_of[name, box] = len(number_of)
                    _cut(cuts, buffers[name], box, loop)
                access_kind.append(kind)
                access_list.append(number)
                access_buffer.append(index_of[name])
            task_offsets.append(len(access_list))

    first_cell: dict[str, int] = {}
    position: dict[str, list[dict[int, int]]] = {}
    num_cells = 0
    for name, dims in cuts.items():
        first_cell[name] = num_cells
        position[name] = [{cut: i for i, cut in enumerate(sorted(dim))} for dim in dims]
        num_cells += math.prod(len(dim) - 1 for dim in dims)
    list_offsets = [0]
    list_cells: list[int] = []
    for name, box in number_of:
        cells: Sequence[int] = (0,)
        for where, ends in itertools.zip_longest(position[name], box):
            extent = len(where) - 1
            span = range(extent) if ends is None else range(where[ends[0]], where[ends[1]])
            cells = [cell * extent + place for cell in cells for place in span]
        first = first_cell[name]
        list_cells += [first + cell for cell in cells]
        list_offsets.append(len(list_cells))

    table = AccessTable(
        num_tasks=len(task_offsets) - 1,
        num_cells=num_cells,
        task_offsets=np.array(task_offsets, dtype=np.int32),
        access_kind=np.array(access_kind, dtype=np.uint8),
        access_list=np.array(access_list, dtype=np.int32),
        list_offsets=np.array(list_offsets, dtype=np.int32),
        list_cells=np.array(list_cells, dtype=np.int32),
        access_buffer=np.array(access_buffer, dtype=np.int32),
    )
    return table, {name: [np.array(sorted(dim)) for dim in dims] for name, dims in cuts.items()}, first_cell


def _cut(cuts: dict[str, list[set[int]]], buffer: Buffer, box: Box, loop: BlockLoop) -> None:
    """Add the ends of a region to the cut points of its buffer."""
    dims = cuts.setdefault(buffer.name, [{0, n} for n in buffer.shape[:4]])
    if len(box) > len(dims):
        raise UsageError(
            f"a region of {buffer.name!r} may have at most {len(dims)} ranges, got {len(box)} in loop {loop.name!r}"
        )
    for cut, (start, stop), n in zip(dims, box, buffer.shape, strict=False):
        if not 0 <= start < stop <= n:
            raise UsageError(
                f"a region of {buffer.name!r} must lie within shape {buffer.shape} and hold an element, got {box} in "
                f"loop {loop.name!r}"
            )
        cut.update((start, stop))


def share_memory(buffers: Mapping[str, Buffer], loops: Sequence[BlockLoop]) -> dict[str, int]:
    """Put transient buffers of one dtype whose lifetimes do not meet on common arenas, the largest first."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for number, loop in enumerate(loops):
        for name in {access.buffer for block in loop.blocks for access in block.accesses}:
            first.setdefault(name, number)
            last[name] = number
    candidates = [b for b in buffers.values() if not b.persistent and not b.carried and b.name in first]
    arenas: list[list[str]] = []
    for buffer in sorted(candidates, key=lambda b: (-b.size_bytes, first[b.name], b.name)):
        for tenants in arenas:
            # One dtype an arena: all its buffers grow alike when the plan is bound to float64.
            if buffer.dtype == buffers[tenants[0]].dtype and all(
                last[buffer.name] < first[t] or last[t] < first[buffer.name] for t in tenants
            ):
                tenants.append(buffer.name)
                break
        else:
            arenas.append([buffer.name])
    shared = [tenants for tenants in arenas if len(tenants) > 1]
    return {name: number for number, tenants in enumerate(shared) for name in tenants}


def storage_cells(
    buffers: Mapping[str, Buffer],
    table: AccessTable,
    cuts: Mapping[str, list[np.ndarray]],
    first_cell: Mapping[str, int],
    arena_of: Mapping[str, int],
) -> AccessTable:
    """Express the accesses on cells of storage: buffers on one arena get cells in common.

    A cell of an arena is a set of elements that belong to the same cell of every tenant.
    """
    pieces: dict[str, tuple[np.ndarray, np.ndarray]] = {}  # buffer -> cells of storage, and each own cell's first
    tenants: dict[int, dict[Partition, list[str]]] = {}
    num_cells = 0
    for name, own in cuts.items():
        if name in arena_of:
            partition = (buffers[name].shape, tuple(c.tobytes() for c in own))
            tenants.setdefault(arena_of[name], {}).setdefault(partition, []).append(name)
            continue
        count = math.prod(len(c) - 1 for c in own)
        pieces[name] = np.arange(num_cells, num_cells + count, dtype=np.int32), np.arange(count + 1)
        num_cells += count
    for alike in tenants.values():  # buffers that are cut alike are the same cells
        runs = [_cell_runs(buffers[names[0]].shape, cuts[names[0]]) for names in alike.values()]
        starts = np.sort(np.concatenate([start for start, _ in runs]), kind="stable")  # merges runs that are in order
        starts = starts[:-1][np.diff(starts) > 0]
        labels = [label[np.searchsorted(start, starts, side="right") - 1] for start, label in runs]
        first = _first_of_each(labels)
        for names, label in zip(alike.values(), labels, strict=True):
            cells = label[first]
            order = np.argsort(cells, kind="stable")
            shared = (num_cells + order).astype(np.int32), np.searchsorted(cells[order], np.arange(cells.max() + 2))
            pieces.update(dict.fromkeys(names, shared))
        num_cells += len(first)

    names, firsts = list(first_cell), np.array(list(first_cell.values()))
    number_of: dict[tuple[int, bytes], int] = {}  # the same cells of buffers cut alike -> number of their list
    lists: list[np.ndarray] = []
    numbers = np.empty(len(table.list_offsets) - 1, np.int32)
    for number, (start, stop) in enumerate(itertools.pairwise(table.list_offsets.tolist())):
        cells = table.list_cells[start:stop]
        owner = names[np.searchsorted(firsts, cells[0], side="right") - 1]
        cells = cells - first_cell[owner]
        storage, bounds = pieces[owner]
        key = (id(storage), cells.tobytes())
        if key not in number_of:
            number_of[key] = len(lists)
            lists.append(np.sort(np.concatenate([storage[bounds[c] : bounds[c + 1]] for c in cells.tolist()])))
        numbers[number] = number_of[key]
    return replace(
        table,
        num_cells=num_cells,
        access_list=numbers[table.access_list],
        list_offsets=np.concatenate([[0], np.cumsum([len(c) for c in lists])]).astype(np.int32),
        list_cells=np.concatenate(lists) if lists else np.zeros(0, np.int32),
    )


def _first_of_each(labels: Sequence[np.ndarray]) -> np.ndarray:
    """Return the index of the first column of each kind, kinds in lexicographic order; labels are at least -1."""
    codes, largest = np.zeros(len(labels[0]), np.int64), 1
    for label in labels:
        extent = int(label.max()) + 2
        if largest * extent >= 1 << 62:
            codes = np.unique(codes, return_inverse=True)[1]
            largest = int(codes.max()) + 1
        codes = codes * extent + label + 1
        largest *= extent
    return np.unique(codes, return_index=True)[1]


def _cell_runs(shape: tuple[int, ...], cuts: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """First element and cell of each run of elements in one cell; the last run, cell -1, starts past the end."""
    inner = max((d for d, c in enumerate(cuts) if len(c) > 2), default=-1)  # the innermost dimension that is cut
    start, label = np.zeros(1, np.int64), np.zeros(1, np.int64)
    for d in range(inner + 1):
        stride = math.prod(shape[d + 1 :])
        if d < inner:
            index = np.arange(shape[d])
            where = np.searchsorted(cuts[d], index, side="right") - 1
        else:
            index, where = cuts[d][:-1], np.arange(len(cuts[d]) - 1)
        start = (start[:, None] + index * stride).ravel()
        label = (label[:, None] * (len(cuts[d]) - 1) + where).ravel()
    return np.append(start, math.prod(shape)), np.append(label, -1)


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
