"""Where workers and memory go: options of measuring, the same for every model and outside runtime."""

from __future__ import annotations

import errno
from typing import Annotated

from ...cython_src.affinity import may_pin, start_remedy
from ...cython_src.errors import UsageError
from ...cython_src.records import Record, about
from .numa import INTERLEAVE, POLICIES
from .topology import BINDS, check_places, cpu_order

# Annotations of fields, for records that have a base of their own.
Places = Annotated[
    str,
    about(
        "what threads get one after the other, as OMP_PLACES: cores (SMT siblings come last), threads (siblings come "
        "together), llc (last-level caches), numa, sockets, or a list of CPUs such as 0-3,8"
    ),
]
Bind = Annotated[
    str,
    about(
        "close: neighbouring threads on neighbouring places; spread: on places far apart, as OMP_PROC_BIND; none: "
        "threads are not pinned",
        choices=BINDS,
    ),
]
MemoryPolicy = Annotated[
    str,
    about(
        "NUMA nodes of memory: interleave, page by page on all; first_touch, that of the thread to which a static "
        "schedule gives the block that writes it first; node0, the first; without effect where there is one node",
        choices=POLICIES,
    ),
]
Check = Annotated[bool, about("check the plans of networks and graphs of one's own, once, before they are measured")]


class Placement(Record, frozen=True):
    """Options that say where the threads of a measured model go, and its memory."""

    oversubscribe: Annotated[bool, about("allow more threads than CPUs")] = False
    places: Places = "cores"
    bind: Bind = "close"
    memory_policy: MemoryPolicy = INTERLEAVE

    def __post_init__(self) -> None:
        super().__post_init__()
        check_placement(self.places, self.bind)

    def order(self, threads: int, cpus=None) -> list[int]:
        """Return the CPU of each thread as `cpu_order` does; for threads that are not pinned, competing processes run
        there."""
        return cpu_order(threads, cpus, places=self.places, bind=self.bind, oversubscribe=self.oversubscribe)

    def cpus(self, threads: int) -> list[int] | None:
        """Return the CPU of each thread; None: not pinned. Raises `UsageError` as `cpu_order`, and where the system
        forbids pinning."""
        order = self.order(threads)
        if self.bind == "none":
            return None
        if not may_pin():
            raise UsageError(
                f"the system must let threads be pinned, got an error of sched_setaffinity with bind={self.bind}; "
                f"pass --bind none, or {start_remedy(errno.EPERM)}"
            )
        return order


def check_placement(places: str, bind: str) -> None:
    """Raise `UsageError` for places that this machine lacks, and for places of threads that are not pinned."""
    check_places(places)
    if bind == "none" and places != "cores":
        raise UsageError(f"places are for threads that are pinned, got {places} with bind=none; bind close or spread")
