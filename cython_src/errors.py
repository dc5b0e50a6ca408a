"""The exceptions for what a user can mend, and the nearest known name for one that is none."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UsageError(ValueError):
    """Bad input: one sentence with the rule, the value received and the remedy.

    The command line prints it without a traceback and exits with code 2.
    """


class MachineError(UsageError, RuntimeError):
    """What this process, its environment or the machine does not let happen: likewise one sentence with the remedy."""


def did_you_mean(name: object, known: Iterable[object]) -> str:
    """Return a clause that names the known name most like an unknown one, or an empty text."""
    near = difflib.get_close_matches(str(name), [str(k) for k in known], 1)
    return f"; did you mean {near[0]!r}?" if near else ""
