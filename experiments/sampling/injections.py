"""Causes of outliers, injected into a run whose event log is on, so that a diagnosis can be held against them."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ...cython_src.errors import UsageError
from ..machine.topology import available_cpus
from .hogs import hogs_running

INJECTIONS = ("first-touch", "cold-cache", "preemption")
EVICTED_BYTES = 1 << 27  # that are written on each CPU to empty its caches: more than any last level holds for a core
LEFT_S = 0.04  # for which a hog leaves the CPU before it takes it again
MADV_DONTNEED = 4  # Linux, all architectures


@contextlib.contextmanager
def injected(cause: str, bound, cpus: Sequence[int] | None) -> Iterator[Callable[[], None] | None]:
    """Inject a cause of outliers, or none with an empty text, while a run lasts.

    Parameters
    ----------
    cause : str
        One of `INJECTIONS`. first-touch: pages of the transient buffers are given back to the system before the run, so
        that the first pass touches them as after start. preemption: a process that needs the last CPU for some
        milliseconds, again and again.
    bound : BoundPlan
    cpus : sequence of int or None
        Of the workers.

    Yields
    ------
    callable or None
        cold-cache: to be called in the middle of the run, when no worker is in a block; writes more memory on each CPU
        than its caches hold.
    """
    used = available_cpus() if cpus is None else list(cpus)
    if cause == "preemption":
        with hogs_running(1, used[-1:], LEFT_S):
            yield None
        return
    if cause == "first-touch":
        _give_back(bound)
    yield (lambda: _evict(used)) if cause == "cold-cache" else None


def _give_back(bound) -> None:
    """Give the whole pages of all transient buffers back; they read as zero again, as right after binding."""
    page = os.sysconf("SC_PAGE_SIZE")
    libc = ctypes.CDLL(None, use_errno=True)
    for name, buffer in bound.plan.buffers.items():
        if buffer.persistent:
            continue
        array = bound.arrays[name]
        first = -(-array.ctypes.data // page) * page
        size = (array.ctypes.data + array.nbytes - first) // page * page
        if size > 0 and libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(size), MADV_DONTNEED) != 0:
            raise UsageError(
                f"first-touch must give memory back to the system, but it refuses: {os.strerror(ctypes.get_errno())}"
            )


def _evict(cpus: Sequence[int]) -> None:
    """Write more memory on each CPU than its caches hold, and come back to where this thread may run."""
    before = os.sched_getaffinity(0)
    memory = np.zeros(EVICTED_BYTES, np.uint8)
    try:
        for cpu in dict.fromkeys(cpus):
            os.sched_setaffinity(0, {cpu})
            memory += 1
    finally:
        os.sched_setaffinity(0, before)
