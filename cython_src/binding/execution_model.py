"""What is known of an execution model without importing its executor: name, options, conduct, look in figures.

Each model is described once, in `forkjoin/models.py` or `tasking/models.py`. Constructors, the command line, the
reference pages, the analysis and the figures read the description.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from ..affinity import kept_affinity
from ..records import Field, Record, fields

PACKAGE = __package__.partition(".")[0]


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
    # Module, relative to the package, that is built where another library was found, which the executor calls; "":
    # none.
    library: str = ""
    says: str = ""  # what it does, for those who do not know its name; "": nothing is said
    runs_tasks: bool = False  # a block starts when those that it depends on have ended; else loop by loop
    barrier: str = "none"  # or loop, phase, iteration: where it waits, if none of its options says so
    max_threads: int | None = None
    # `records`, `closes`: `prepare` records a task graph; and closes it over iterations
    records: bool = False
    closes: bool = False
    logs_waiting: bool = False  # it logs what a thread does between blocks, or does nothing there
    first_creates: bool = False  # between blocks its first thread creates tasks, or launches
    is_reference: bool = False  # another library decides who runs a block and when; it may allocate memory in each step
    # Another program that trains the same network by kernels of its own: its time is compared and, within rounding, its
    # losses. It has no blocks to log.
    is_peer: bool = False
    # A peer that is a function or program of the user's: a step is one call of it, whatever the plan.
    is_call: bool = False
    package: str = ""  # of Python, that its executor imports; "": none besides forktask's own
    # Many times as slow as the others: one generation shows it, and curves over short runs leave it out.
    far_behind: bool = False
    device: str = "cpu"  # where plans are bound for it
    moves_data: bool = False  # every step copies between host and device, so that the model means nothing without data
    mixes_devices: bool = False  # some kernels run on the host and some on the device; its bits then differ from both
    reproducible: bool = True  # two runs of a deterministic plan give the same bits
    # Names in seaborn's colour-blind palette, or shares of white, that its variants take in turn.
    colors: tuple[str, ...] = ("yellow",)
    markers: str = "*P"  # one letter for each variant, in turn
    # What to try, by reasons for which its GPU runs nothing ("waits", "host blocks"), where another executor or option
    # spares them.
    advice: Mapping[str, str] = field(default_factory=dict, hash=False)

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
        parts = ((self.library, PACKAGE), (self.package, None))
        return all(not name or _can_import(name, parent) for name, parent in parts)

    @cached_property
    def fields(self) -> dict[str, Field]:
        """All options by name, those of binding last."""
        return {field.name: field for field in (*fields(self.options), *fields(self.binding))}

    def library_address(self) -> int:
        """Import the library's module and return the address of its functions."""
        return import_module(self.library, PACKAGE).LIBRARY

    def executor_class(self) -> Any:
        """Import and return the class of its executors."""
        module, _, name = self.executor.partition(":")
        return getattr(import_module(module, PACKAGE), name)


@cache
def _can_import(name: str, parent: str | None) -> bool:
    if parent is None:  # a large package, which is not loaded to be asked for
        return find_spec(name) is not None
    try:
        with kept_affinity():
            import_module(name, parent)
    except ImportError:  # not built, or without its library
        return False
    return True
