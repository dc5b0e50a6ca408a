"""From tasks in the order in which they were recorded to loops of independent blocks, as few as the regions allow.

Fork-join has a barrier behind each loop, so the order of recording would decide what it costs: a tiled product that is
recorded i-j-k has all updates of one tile in a row. A task moves up to an earlier loop of its own kind where nothing
that it conflicts with lies on the way. Tasks that conflict keep their order, and so do tasks that update the same cells
in any order: the serial run of the loops leaves the bits of the serial run of the tasks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Sequence

import numpy as np

from ..plan.model import READ, UPDATE, WRITE, AccessTable

ALONE = WRITE  # kind of every access that conflicts with all others


def join_tasks(table: AccessTable, keys: Sequence[Hashable], keep: Sequence[bool]) -> list[list[int]]:
    """Return the numbers of the tasks of each loop, loops in an order in which they can run.

    There are never more loops than runs of consecutive independent tasks of one key; where there are as many, these
    runs are what is returned, so that nothing moves without a gain.

    `table`: what the tasks touch, in the order of recording. Tasks of one loop have equal `keys`; tasks whose keys are
    equal touch the same arrays. Tasks of `keep` stay in the loop that consecutive tasks form, and in order with all
    others that stay.

    Linear in the number of cells that tasks touch, but for a binary search a task. At most one loop is opened for each
    run: what tasks of a run conflict with was recorded before the run, so that all may join the loop which is opened.
    """
    cells_of = [cells.tolist() for cells in np.split(table.list_cells, table.list_offsets[1:-1])]
    offsets, lists = table.task_offsets.tolist(), table.access_list.tolist()
    kinds = [ALONE if kind == UPDATE else kind for kind in table.access_kind.tolist()]
    # Cell -> kind -> last loop and last task; an access that conflicts with all others comes after them.
    last: list[dict[int, tuple[int, int]]] = [{} for _ in range(table.num_cells)]
    loops: list[list[int]] = []
    runs: list[list[int]] = []
    loops_of: dict[Hashable, list[int]] = {}
    for number, key in enumerate(keys):
        touched = [(kinds[a], cell) for a in range(offsets[number], offsets[number + 1]) for cell in cells_of[lists[a]]]
        earliest, before = 0, -1  # loop that it may join, and last task that it conflicts with
        for kind, cell in touched:
            for other, (loop, task) in last[cell].items():
                if other != kind or kind == ALONE:
                    earliest, before = max(earliest, loop + 1), max(before, task)
                elif kind != READ:
                    earliest = max(earliest, loop)
        goes_on = number > 0 and keys[number - 1] == key and before < runs[-1][0]
        if goes_on:
            runs[-1].append(number)
        else:
            runs.append([number])
        if keep[number]:
            place = len(loops) - goes_on
        else:
            mine = loops_of.setdefault(key, [])
            result = bisect_left(mine, earliest)
            place = mine[result] if result < len(mine) else len(loops)
        if place == len(loops):
            loops.append([])
            loops_of.setdefault(key, []).append(place)
        loops[place].append(number)
        for kind, cell in touched:
            seen = last[cell]
            loop = max(place, seen[kind][0]) if kind in seen else place
            if kind == ALONE:
                seen.clear()
            seen[kind] = loop, number
    return loops if len(loops) < len(runs) else runs
