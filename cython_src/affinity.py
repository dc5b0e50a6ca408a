"""The CPUs of this process, which OpenMP libraries take from the thread that loads them.

libgomp pins that thread to its first place where a variable of `BINDING` is set, and LLVM's and Intel's library pin the
first thread that uses them. Whoever then reads the thread's mask, or starts threads, has one CPU.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

BINDING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
_seen: set[tuple[str, int]] = set()  # libraries whose pinning of a thread was undone; any later one is the user's


def start_remedy(error: int) -> str:
    """Return what to do where threads could not start on their CPUs, by errno."""
    if error in (errno.EPERM, errno.ENOSYS):
        return "leave the sandbox, such as snap's or one of seccomp, that forbids sched_setaffinity"
    return "ask for fewer, or raise `ulimit -v`, `ulimit -u` or the container's pids.max"


def binding_variables() -> list[str]:
    """Return the variables, with their values, that let OpenMP libraries pin threads."""
    return [f"{name}={value}" for name in BINDING if (value := os.environ.get(name, "false")).lower() != "false"]


@functools.cache
def may_pin() -> bool:
    """Return whether the system lets threads be pinned; sandboxes forbid it."""
    try:
        os.sched_setaffinity(0, os.sched_getaffinity(0))
    except OSError:
        return False
    return True


@contextmanager
def kept_affinity() -> Iterator[None]:
    """Give the calling thread back the CPUs that it had, whether it was moved or an OpenMP library was loaded."""
    before = os.sched_getaffinity(0)
    try:
        yield
    finally:
        if not before <= os.sched_getaffinity(0):
            with suppress(OSError):
                os.sched_setaffinity(0, before)


def usable_cpus() -> list[int]:
    """Return the logical CPUs that this process may run on, ascending.

    Where an OpenMP library that another package brought, such as PyTorch, has pinned the calling thread to its first
    place, the thread gets the CPUs of all places back.
    """
    cpus = os.sched_getaffinity(0)
    if binding_variables():
        with kept_affinity():  # to ask LLVM's library is its first use
            places = [place for library in _new_libraries() for place in _places(library, cpus)]
        if places:
            cpus = cpus.union(*places)
            with suppress(OSError):
                os.sched_setaffinity(0, cpus)
    return sorted(cpus)


def _new_libraries() -> Iterator[ctypes.CDLL]:
    with open("/proc/self/maps") as maps:
        paths = {line.split()[-1] for line in maps if any(f"/lib{name}" in line for name in ("gomp", "omp", "iomp5"))}
    for path in paths:
        if (seen := (path, threading.get_native_id())) not in _seen:
            _seen.add(seen)
            with suppress(OSError):
                yield ctypes.CDLL(path)


def _places(library: ctypes.CDLL, pinned: set[int]) -> list[list[int]]:
    """Return the CPUs of each place of an OpenMP library; none unless the thread is pinned to the first one."""
    result = []
    with suppress(AttributeError):  # no library of OpenMP 4.5
        for place in range(library.omp_get_num_places()):
            cpus = (ctypes.c_int * library.omp_get_place_num_procs(place))()
            library.omp_get_place_proc_ids(place, cpus)
            result.append([*cpus])
    return result if result and {*result[0]} == pinned else []
