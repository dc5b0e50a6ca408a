"""The contract of all executors: the numbers that a run may have, and a record of its conduct.

Models are compared for who runs a block and when. All else that differs between two executors is in the record that
each of them gives, which is stored with every sample.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import index

from ..errors import UsageError

MOST_PASSES = 2**31 - 1  # of the plan in a run: task models count them in 32 bits
MOST_ITERATIONS = 2**63  # kernels see the iteration as a signed number of 64 bits


def check_run(num_iterations: int, first_iteration: int, stride: int) -> tuple[int, int]:
    """Return (number of passes, first pass) of a run, of `stride` iterations each. Raises `UsageError`: no whole
    number, a negative one, one that `stride` does not divide, too many passes, or iterations from 2**63 on."""
    try:
        num_iterations, first_iteration = index(num_iterations), index(first_iteration)
    except TypeError:
        raise UsageError(
            f"iterations and first_iteration must be whole numbers, got {num_iterations!r} and {first_iteration!r}"
        ) from None
    if num_iterations < 0 or num_iterations % stride or first_iteration < 0 or first_iteration % stride:
        raise UsageError(
            f"iterations and first_iteration must be multiples of {stride} (the plan's iteration_stride) and not "
            f"negative, got {num_iterations} and {first_iteration}; count iterations from 0"
        )
    if first_iteration + num_iterations >= MOST_ITERATIONS:
        raise UsageError(
            f"first_iteration + iterations must be less than 2**63, got {first_iteration} + {num_iterations}; "
            f"begin at a smaller number"
        )
    if num_iterations // stride > MOST_PASSES:
        raise UsageError(
            f"iterations must be at most {stride * MOST_PASSES} in one run, got {num_iterations}; split the run"
        )
    return num_iterations // stride, first_iteration // stride


@dataclass(frozen=True)
class Conduct:
    """An executor's conduct: all that it does besides running blocks."""

    caller_executes: bool  # the thread that calls `run` is one of `num_threads`; if not, it waits
    caller_wakes_ns: int = 0  # time between two wake-ups of a waiting caller during a run; 0: it does not wait
    threads_start: str = "never"  # executor, prepare, first run or each run: when threads besides the caller start
    pinned: str = "no"  # at start or each run: when threads are pinned to their CPUs
    idle_runtime: str = "none"  # the library that decides how a thread without work waits; "none": no thread does
    release: str = ""  # version of the library that runs the plan; "": it names none, or there is no other library
    # How long such a thread looks for work before it sleeps; None: the library's own decision.
    spin_ns: int | None = None
    wait_policy: str = ""  # OMP_WAIT_POLICY, which steers forktask, libgomp and libomp; "" if not set
    naps: bool = False  # a thread that sleeps during a run also wakes by itself, to look for work
    # A thread that falls asleep interrupts all running threads of the process, which saves them a fence a task.
    membarrier: bool = False
    blocks_signals: bool = False  # threads besides the caller block signals
    python_lock: bool = False  # the executor itself takes Python's lock for each block
