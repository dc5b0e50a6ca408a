"""What is known of an execution model without importing its executor: name, options, conduct, look in figures.

Each model is described once, in `forkjoin/models.py` or `tasking/models.py`. Constructors, the command line, the
reference pages, the analysis and the figures read the description.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib import import_module
from typing import Any

from ..records import Field, Record, fields

PACKAGE = __package__.partition(".")[0]


class NoOptions(Record):
    """Options of a model that has none."""


@dataclass(frozen=True)
class ExecutionModel:
    """An execution model.

    Attributes
    ----------
    executor : str
        Module, relative to the package, and class: ".forkjoin.executor:SerialExecutor". It is imported when an executor
        is made.
    library : str
        Module, relative to the package, that is built where another library was found, which the executor calls; "":
        none.
    options, binding : type of Record
        Options of the executor, and those that binding a plan for it takes.
    says : str
        What it does, for those who do not know its name; "": nothing is said.
    runs_tasks : bool
        A block starts when those that it depends on have ended; else loop by loop.
    barrier : {"loop", "phase", "iteration", "none"}
        The point at which it waits, where none of its options says so.
    records, closes : bool
        `prepare` records a task graph; and closes it over iterations.
    logs_waiting : bool
        It logs what a thread does between blocks, or does nothing there.
    first_creates : bool
        Between blocks its first thread creates tasks, or launches.
    is_reference : bool
        Another library decides who runs a block and when; it may allocate memory in each step.
    far_behind : bool
        Many times as slow as the others: one generation shows it, and curves over short runs leave it out.
    device : {"cpu", "gpu"}
        Where plans are bound for it.
    moves_data : bool
        Every step copies between host and device, so that the model means nothing without data.
    mixes_devices : bool
        Some kernels run on the host and some on the device; its bits then differ from both.
    reproducible : bool
        Two runs of a deterministic plan give the same bits.
    colors : tuple of str
        Names in seaborn's colour-blind palette, or shares of white, that its variants take in turn.
    markers : str
        One letter for each variant, in turn.
    advice : mapping
        What to try, by reasons for which its GPU runs nothing ("waits", "host blocks"), where another executor or
        option spares them.
    """

    name: str
    executor: str
    options: type[Record] = NoOptions
    binding: type[Record] = NoOptions
    library: str = ""
    says: str = ""
    runs_tasks: bool = False
    barrier: str = "none"
    max_threads: int | None = None
    records: bool = False
    closes: bool = False
    logs_waiting: bool = False
    first_creates: bool = False
    is_reference: bool = False
    far_behind: bool = False
    device: str = "cpu"
    moves_data: bool = False
    mixes_devices: bool = False
    reproducible: bool = True
    colors: tuple[str, ...] = ("yellow",)
    markers: str = "*P"
    advice: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def is_gpu(self) -> bool:
        """Whether its plans are bound for a GPU."""
        return self.device == "gpu"

    @property
    def joins_loops(self) -> bool:
        """Whether its threads wait for one another after each loop."""
        return not (self.runs_tasks or self.is_gpu) and self.max_threads is None

    @property
    def is_built(self) -> bool:
        """Whether its executor is part of this installation, and the library that it calls is there."""
        return not self.library or _can_import(self.library)

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
def _can_import(library: str) -> bool:
    try:
        import_module(library, PACKAGE)
    except ImportError:  # not built, or without its library
        return False
    return True
