"""Reading of small files in /proc and /sys; a value that this machine hides is None."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def read_text(path: Path) -> str | None:
    """Return the text of a file without surrounding white space and NUL bytes, which some kernels append; None if it is
    missing or may not be read, or if the kernel has no value: it then writes "(null)"."""
    try:
        text = path.read_text(errors="replace").strip(" \t\n\r\0")
    except OSError:
        return None
    return None if text == "(null)" else text


def read_int(path: Path) -> int | None:
    """Return the whole number in a file; None if it is missing or holds something else."""
    return parsed(int, read_text(path))


def parsed(parse: Callable[[str], T], text: str | None) -> T | None:
    """Return what `parse` makes of a text; None of none, and of one that it cannot read."""
    try:
        return None if text is None else parse(text)
    except (ValueError, LookupError, ArithmeticError):
        return None


def read_fields(path: Path, separator: str) -> dict[str, str]:
    """Return the fields of a file with a name and a value in each line; of a name that comes again the first value."""
    result: dict[str, str] = {}
    for line in (read_text(path) or "").splitlines():
        name, _, value = line.partition(separator)
        result.setdefault(name.strip(), value.strip())
    return result
