"""Reading of small files in /proc and /sys; a value that this machine hides is None."""

from __future__ import annotations

from pathlib import Path


def read_text(path: Path) -> str | None:
    """Return the text of a file without surrounding white space; None if it is missing or may not be read, or if the
    kernel has no value: it then writes "(null)"."""
    try:
        text = path.read_text(errors="replace").strip()
    except OSError:
        return None
    return None if text == "(null)" else text


def read_int(path: Path) -> int | None:
    """Return the whole number in a file; None if it is missing or holds something else."""
    text = read_text(path)
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def read_fields(path: Path, separator: str) -> dict[str, str]:
    """Return the fields of a file with a name and a value in each line; of a name that comes again the first value."""
    found: dict[str, str] = {}
    for line in (read_text(path) or "").splitlines():
        name, _, value = line.partition(separator)
        found.setdefault(name.strip(), value.strip())
    return found
