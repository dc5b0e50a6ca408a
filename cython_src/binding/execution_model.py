"""What is known of an execution model without importing its executor: name, options, conduct, look in figures.

Each model is described once, in `forkjoin/models.py` or `tasking/models.py`. Constructors, the command line, the
reference pages, the analysis and the figures read the description.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib import import_module, metadata
from importlib.util import find_spec
from typing import Any

from ..affinity import kept_affinity
from ..records import Field, Record, fields

PACKAGE = __package__.partition(".")[0]


@dataclass(frozen=True)
class Conduct:
    """An executor's conduct: all that it does besides running blocks.

    Models are compared for who runs a block and when; all else that differs between two executors is in this record,
    which is stored with every sample.
    """

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


class NoOptions(Record):
    """Options of a model that has none."""


@dataclass(frozen=True)
class ExecutionModel:
    """An execution model."""

    name: str
    # Module, relative to the package, and class: ".forkjoin.executor:SerialExecutor". It is imported when an executor
    # is made.
    executor: str
    # `options`, `binding`: options of the executor, and those that binding a plan for it takes
    options: type[Record] = NoOptions
    binding: type[Record] = NoOptions
    # Library that the executor calls (outside.h): a module, relative to the package, which is built where another
    # library was found; or the path of a file. "": none.
    library: str = ""
    # Of a runtime of the user's own: `file`, `sha256` and `version`; empty: the model is part of this package.
    origin: Mapping[str, str] = field(default_factory=dict, hash=False)
    says: str = ""  # what it does, for those who do not know its name; "": nothing is said
    runs_tasks: bool = False  # a block starts when those that it depends on have ended; else loop by loop
    barrier: str = "none"  # or loop, phase, iteration: where it waits, if none of its options says so
    max_threads: int | None = None
    # `records`, `closes`: `prepare` records a task graph; and closes it over iterations
    records: bool = False
    closes: bool = False
    logs_waiting: bool = False  # it logs what a thread does between blocks, or does nothing there
    first_creates: bool = False  # between blocks its first thread creates tasks
    is_reference: bool = False  # another library decides who runs a block and when; it may allocate memory in each step
    # Another program that trains the same network by kernels of its own: its time is compared and, within rounding, its
    # losses. It has no blocks to log.
    is_peer: bool = False
    # A peer that is a function or program of the user's: a step is one call of it, whatever the plan.
    is_call: bool = False
    package: str = ""  # of Python, that its executor imports, such as "jax>=0.7"; "": none besides forktask's own
    # Environment variables -> pattern of values under which the package would run elsewhere or on other threads.
    clashes: Mapping[str, str] = field(default_factory=dict, hash=False)
    # Many times as slow as the others: one generation shows it, and curves over short runs leave it out.
    far_behind: bool = False
    device: str = "cpu"  # where plans are bound for it
    moves_data: bool = False  # every step copies between host and device, so that the model means nothing without data
    mixes_devices: bool = False  # some kernels run on the host and some on the device; its bits then differ from both
    reproducible: bool = True  # two runs of a deterministic plan give the same bits
    # Names in seaborn's colour-blind palette, or shares of white, that its variants take in turn.
    colors: tuple[str, ...] = ("#808000",)
    markers: str = "*P"  # one letter for each variant, in turn

    @property
    def is_gpu(self) -> bool:
        """Whether its plans are bound for a GPU."""
        return self.device == "gpu"

    @property
    def joins_loops(self) -> bool:
        """Whether its threads wait for one another after each loop."""
        return not (self.runs_tasks or self.is_gpu or self.is_peer) and self.max_threads is None

    @property
    def is_built(self) -> bool:
        """Whether its executor is part of this installation, and the libraries that it calls are there."""
        library = not self.library or not isinstance(load_library(self.library), OSError)
        return library and not self.lacking_package()

    def lacking_package(self) -> str:
        """Say why the package that its executor imports cannot be used; "": it can, or there is none."""
        name, _, least = self.package.partition(">=")
        if name and find_spec(name) is None:
            return "which is not installed"
        found = metadata.version(name) if least else ""
        return f"and {found} is installed" if _numbers(found) < _numbers(least) else ""

    @cached_property
    def fields(self) -> dict[str, Field]:
        """All options by name, those of binding last."""
        return {field.name: field for field in (*fields(self.options), *fields(self.binding))}

    def library_address(self) -> int:
        """Load the library and return the address of its functions. Raises `ValueError`: it has none."""
        return ctypes.addressof(ctypes.c_char.in_dll(load_library(self.library), "forktask_runtime"))

    def executor_class(self) -> Any:
        """Import and return the class of its executors, that of another model with this one's name and options."""
        module, _, name = self.executor.partition(":")
        result = getattr(import_module(module, PACKAGE), name)
        return result if getattr(result, "about", None) is self else type(result)(name, (result,), {"about": self})


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


@cache
def load_library(library: str) -> Any:
    """Load a model's library; or return the error, where there is no such file, or a library that it needs is missing.

    It is loaded as C code, so it needs nothing of a module of Python.
    """
    try:
        spec = find_spec(library, PACKAGE) if library.startswith(".") else None
        with kept_affinity():
            return ctypes.CDLL(library if spec is None else spec.origin)
    except OSError as error:
        return error
