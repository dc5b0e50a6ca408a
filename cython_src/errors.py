"""The exceptions for what a user can mend, checks that raise them, and the nearest known name for one that is none."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

F = TypeVar("F", bound=Callable)


class UsageError(ValueError):
    """Bad input: one sentence with the rule, the value received and the remedy.

    The command line prints it without a traceback and exits with code 2.
    """


class MachineError(UsageError, RuntimeError):
    """A request that this process, its environment or the machine cannot fulfil: one sentence too, with the remedy."""


def did_you_mean(name: object, known: Iterable[object]) -> str:
    """Return a clause that names the known name most like an unknown one, or an empty text."""
    small = {str(k).lower(): str(k) for k in known}
    near = difflib.get_close_matches(str(name).lower(), small, 1)
    return f"; did you mean {small[near[0]]!r}?" if near else ""


def check_choice(name: str, value: object, choices: Collection[str]) -> None:
    """Raise `UsageError` unless a value is one of the choices."""
    if value not in choices:
        raise UsageError(f"{name} must be one of {', '.join(choices)}; got {value!r}")


def refusals(checks: Iterable[Callable[[], object]]) -> list[str]:
    """Call each check, and return the sentences of those that raise `UsageError`."""
    found = []
    for check in checks:
        try:
            check()
        except UsageError as error:
            found.append(str(error))
    return found


def checked_call(function: F, name: str = "", further: Iterable[str] = ()) -> F:
    """Return a function whose arguments raise `UsageError` where they do not fit its signature.

    Parameters
    ----------
    function : callable
    name : str, optional
        By which users call it; default: its own.
    further : iterable of str
        Names that its `**` takes.
    """
    name, signature = name or function.__name__, inspect.signature(function)
    own = [p.name for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD and p.name != "self"]
    known = (*own, *further)

    def misfit(args: tuple, kwargs: dict) -> str:
        for given in kwargs:
            if given not in known:
                return f"got {given!r}{did_you_mean(given, known)}"
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            return str(error)
        return ""

    @functools.wraps(function)
    def call(*args, **kwargs):
        problem = misfit(args, kwargs) if further else ""
        if not problem:
            try:
                return function(*args, **kwargs)
            except TypeError:
                problem = misfit(args, kwargs)
                if not problem:
                    raise
        raise UsageError(f"arguments of {name} are {', '.join(known)}; {problem}") from None

    return call  # type: ignore[return-value]


def checked_class(kind: type) -> type:
    """Let the constructor of a class raise as `checked_call` does, and return the class."""
    kind.__init__ = checked_call(kind.__init__, kind.__name__)  # type: ignore[misc]
    return kind
