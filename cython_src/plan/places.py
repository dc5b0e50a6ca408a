"""Places of blocks: which blocks of neighbouring loops work on the same data."""

from __future__ import annotations

import numpy as np

from .dependences import record_graph
from .model import Plan

# As in tasking/programs/homes.h: places that differ by less do not tell the blocks of a loop apart.
PLACES_DIFFER = 1e-3


def order_by_place(plan: Plan) -> np.ndarray:
    """Return the tasks of each loop in the order of their places, int32, shape (num_tasks,).

    A block's place is the mean place of the blocks whose results it uses, and a place is the part of a loop's blocks
    that come before. Loops of which some block uses none stay as they are, and those whose blocks have equal places.
    """
    graph = record_graph(plan.accesses, closed=False)
    sums, counts = np.zeros((2, graph.num_nodes))
    pending = graph.num_intra.copy()
    result = np.arange(plan.num_tasks, dtype=np.int32)
    for loop in plan.loops:
        nodes = np.arange(loop.first_task, loop.first_task + loop.num_blocks)
        place = nodes.astype(np.float32)
        if loop.num_blocks and counts[nodes].all():
            mean = (sums[nodes] / counts[nodes]).astype(np.float32)  # the order of a sum must not tell blocks apart
            place = mean if np.ptp(mean) >= PLACES_DIFFER else place
        result[nodes] = nodes[np.argsort(place, kind="stable")]
        _, group, sizes = np.unique(place, return_inverse=True, return_counts=True)
        sums[nodes] = ((np.cumsum(sizes) - sizes / 2) / max(loop.num_blocks, 1))[group]
        counts[nodes] = 1
        while len(nodes):  # and the joins that are complete
            lengths = graph.successor_split[nodes] - graph.successor_offsets[nodes]
            source = np.repeat(nodes, lengths)
            starts = np.repeat(graph.successor_offsets[nodes] - np.cumsum(lengths) + lengths, lengths)
            targets = graph.successors[starts + np.arange(len(source))]
            for values in (sums, counts):
                np.add.at(values, targets, values[source])
            np.subtract.at(pending, targets, 1)
            nodes = np.unique(targets[(targets >= plan.num_tasks) & (pending[targets] == 0)])
    return result
