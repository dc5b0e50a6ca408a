"""Small files of /proc and /sys; a value that this machine hides is None, never a guess."""

from __future__ import annotations

from pathlib import Path


def read_text(path: Path) -> str | None:
    """Text of a file without surrounding white space; None where it is missing or may not be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def read_int(path: Path) -> int | None:
    """The whole number in a file; None where it is missing or holds something else."""
    text = read_text(path)
    try:
        return None if text is None else int(text)
    except ValueError:
        return None
