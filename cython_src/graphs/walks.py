"""A graph of walks through memory: short while their lines are in the core's own cache, long for any other reason.

No network's blocks are so sensitive to where their data are: a walk takes ten and more times as long once its memory is
untouched, evicted, or in another core's cache. So outliers that are injected into it show (`sampling/hogs.py`).
"""

from __future__ import annotations

from ..kernels.bench.bench import PAGE_NUMBERS
from ..plan.builder import PlanBuilder
from ..plan.model import Block, Plan, update

PARTS = 8  # of the memory, each for the blocks of one worker as long as nothing moves them
PAGES = 256  # of a part: the lines of all parts fit into a core's cache, their pages into its address translation
LOOPS = ("out", "back")


def walks() -> Plan:
    """Return the plan: two loops, in each of which every block walks through its part of the memory."""
    builder = PlanBuilder("walks", workload="walks")
    memory = builder.buffer("memory", (PARTS, PAGES, PAGE_NUMBERS), "int64", "temporary", carried=True)
    for name in LOOPS:
        builder.loop(
            name,
            "walk",
            {"memory": memory},
            [Block((part,), (update(memory, (part, part + 1)),), bytes=64.0 * PAGES) for part in range(PARTS)],
            attributes={"pages": PAGES, "page_numbers": PAGE_NUMBERS},
            layer=name,
        )
    return builder.build()
