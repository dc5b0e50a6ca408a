"""Exceptions for what a user can mend, checks that raise them, and suggestions for unknown names."""

from __future__ import annotations

import copyreg
import difflib
import re
from collections.abc import Callable, Collection, Iterable
from importlib import import_module
from types import ModuleType
from typing import NoReturn


class UsageError(ValueError):
    """Bad input: one sentence with the rule, the value received and the remedy.

    The command line prints it without a traceback and exits with code 2.
    """


class MachineError(UsageError, RuntimeError):
    """A request that this process, its environment or the machine cannot fulfil: one sentence too, with the remedy."""


class UnsoundPlan(UsageError):
    """A plan of a user's network or graph that failed its check: a block touches what it does not declare, or a model
    leaves other bits than `serial`. One sentence names loop, kernel and buffer; the exit code is 4."""


def did_you_mean(name: object, known: Iterable[object]) -> str:
    """Return a clause that names the known name most like an unknown one, or an empty text. A name of several words may
    be known by their first letters, as learning-rate by lr."""
    small = {str(k).lower(): str(k) for k in known}
    words = {k: re.findall("[a-z0-9]+", k) for k in small}
    letters = {"".join(word[0] for word in result): k for k, result in words.items() if len(result) > 1}
    short = letters.get(str(name).lower().strip("-"))
    near = [short] if short else difflib.get_close_matches(str(name).lower(), small, 1)
    return f"; did you mean {small[near[0]]!r}?" if near else ""


def check_choice(name: str, value: object, choices: Collection[str]) -> None:
    """Raise `UsageError` unless a value is one of the choices."""
    if value not in choices:
        raise UsageError(f"{name} must be one of {', '.join(choices)}; got {value!r}{did_you_mean(value, choices)}")


def optional(module: str, what: str, extra: str, instead: str = "") -> ModuleType:
    """Return the module of a package that an extra of forktask installs, or raise `UsageError`: `what` needs it."""
    try:
        return import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise UsageError(
            f"{what} needs the package {package}, which is not installed; pip install 'forktask[{extra}]'{instead}"
        ) from None


def refuse_copies(kind: type, remedy: str) -> None:
    """Let `pickle`, `copy` and `deepcopy` of a class's objects raise `UsageError`: they hold functions or pointers."""

    def refuse(value: object) -> NoReturn:
        raise UsageError(f"what is copied or pickled must not hold functions or pointers, got {value!r:.80}; {remedy}")

    copyreg.pickle(kind, refuse)  # type: ignore[arg-type]


def refusals(checks: Iterable[Callable[[], object]]) -> list[str]:
    """Call each check, and return the sentences of those that raise `UsageError`."""
    result = []
    for check in checks:
        try:
            check()
        except UsageError as error:
            result.append(str(error))
    return result
