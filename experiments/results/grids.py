"""TOML files of grids, of sweeps and studies: each key takes one value or a list, and what runs is their product."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...cython_src.errors import UsageError
from ...cython_src.lowering.options import spelled
from ...cython_src.reading import check_keys, check_title, read_toml
from ...cython_src.records import Field


def read_grid(path: Path | str, grid: str, others: tuple[str, ...], example: str) -> tuple[dict[str, Any], str]:
    """Read a file with a title and some tables, of which the grid must be there; return its values and the comment
    before its first key.

    Raises
    ------
    UsageError
        A file that cannot be read, another key, a title that is no text, or no grid.
    """
    values, comment = read_toml(path, "TOML file or the name of a shipped one")
    check_keys(values, ("title", grid, *others), str(path))
    check_title(values.get("title", ""), str(path))
    if grid not in values:
        raise UsageError(f"{path} must have a table [{grid}], got none; write it, and keys below, such as {example}")
    return values, comment


def check_table(table: Any, where: str) -> None:
    """Raise `UsageError` for what is no table."""
    if not isinstance(table, dict):
        raise UsageError(f"{where} must be a table, got {table!r:.60}; write its name in brackets above its keys")


def values_of(field: Field, value: Any, where: str) -> tuple:
    """Return the checked values of a key, each once.

    Raises
    ------
    UsageError
        An empty list, or a value that the field refuses.
    """
    listed = value if isinstance(value, list) else [value]
    if field.kind is tuple and listed and not isinstance(listed[0], list | tuple):
        listed = [value]
    if not listed:
        raise UsageError(f"key {field.name!r} in {where} must have at least one value, got an empty list; leave it out")
    return tuple(dict.fromkeys(field.checked(spelled(field.name, v)) for v in listed))
