"""Functions that declare what they do to their arguments, so that calling one records a task: `@task(...)`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import UsageError
from .user_graph import Region, TaskArray

KINDS = ("reads", "writes", "updates", "concurrent", "commutative", "reduction")  # as `TaskRecorder.task` takes them


class TaskFunction:
    """A function with declared accesses. Made by `task`.

    Called with regions of a graph's arrays it records a task of that graph and returns None; called with anything
    else it is the function itself.
    """

    def __init__(self, function: Callable, declared: dict[str, tuple[str, ...]]):
        self.function = function
        self.declared = declared
        self.signature = inspect.signature(function)
        names = list(self.signature.parameters)
        regions = [name for kind in KINDS for name in declared[kind]]
        self._others = [name for name in names if name not in regions]
        places = [(*regions, *self._others).index(name) for name in names]

        @functools.wraps(function)
        def kernel(*values: Any) -> None:  # regions by kind, then the other arguments: as a graph calls kernels
            function(*(values[place] for place in places))

        self._kernel = kernel
        functools.update_wrapper(self, function)

    def __repr__(self) -> str:
        kinds = ", ".join(f"{kind}={names}" for kind, names in self.declared.items() if names)
        return f"<task {self.function.__name__}: {kinds}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Record a task, or run the function.

        Raises
        ------
        UsageError
            Regions of two graphs, or some declared arguments that are regions and some that are not.
        """
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        values = bound.arguments
        regions = {name: values[name] for kind in KINDS for name in self.declared[kind]}
        given = [name for name, value in regions.items() if isinstance(value, Region | TaskArray)]
        if not given:
            return self.function(*args, **kwargs)
        for name, value in regions.items():
            if name not in given:
                raise UsageError(
                    f"argument {name!r} of task {self.function.__name__!r} must be a region, as {given[0]!r} is, got "
                    f"{type(value).__name__}; wrap the array with graph.array() and slice what that returns"
                )
        first = regions[given[0]]
        graph = (first.array if isinstance(first, Region) else first).graph
        accesses: dict[str, Any] = {kind: [regions[name] for name in self.declared[kind]] for kind in KINDS}
        graph.task(self._kernel, args=[values[name] for name in self._others], **accesses)
        return None


def task(
    *,
    reads: str | Sequence[str] = (),
    writes: str | Sequence[str] = (),
    updates: str | Sequence[str] = (),
    concurrent: str | Sequence[str] = (),
    commutative: str | Sequence[str] = (),
    reduction: str | Sequence[str] = (),
) -> Callable[[Callable], TaskFunction]:
    """Declare what a function does to its parameters, so that calling it with regions records a task.

    Parameters
    ----------
    reads, writes, updates, concurrent, commutative, reduction : str or sequence of str
        Names of parameters, by what the function does to them; see `TaskRecorder.task`. All others are arguments that
        the task is recorded with.

    Raises
    ------
    UsageError
        A name that is no parameter, or is declared twice; no declaration at all.

    Examples
    --------
    >>> @task(reads=["left", "right"], writes="out")
    ... def smooth(left, right, out):
    ...     out[...] = 0.5 * (left + right)
    >>> smooth(x[0:16], x[16:32], y[0:16])  # x and y are arrays of a graph: records a task
    """
    given = (reads, writes, updates, concurrent, commutative, reduction)
    declared = {
        kind: (names,) if isinstance(names, str) else tuple(names) for kind, names in zip(KINDS, given, strict=True)
    }

    def decorate(function: Callable) -> TaskFunction:
        parameters = inspect.signature(function).parameters
        simple = [name for name, p in parameters.items() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        if len(simple) < len(parameters):
            raise UsageError(
                f"parameters of task {function.__name__!r} must be positional, got {inspect.signature(function)}; "
                f"leave out *, ** and what follows them"
            )
        names = [name for kind in KINDS for name in declared[kind]]
        if not names:
            raise UsageError(
                f"task {function.__name__!r} must declare an access, got none; name what it reads or writes"
            )
        for name in names:
            if name not in simple or names.count(name) > 1:
                raise UsageError(
                    f"a task declares each of its parameters once at most; {function.__name__!r} has "
                    f"{', '.join(simple)}, got {name!r}{' twice' if names.count(name) > 1 else ''}"
                )
        return TaskFunction(function, declared)

    return decorate
