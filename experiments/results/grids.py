"""TOML files of grids, of sweeps and studies: each key takes one value or a list, and what runs is their product."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...cython_src.errors import UsageError, did_you_mean
from ...cython_src.reading import check_keys, check_title, read_toml
from ...cython_src.records import Field

# Kind of a file -> its tables, the grid first: a file is of the kind whose grid it has.
TABLES = {"sweep": ("grid", "measure", "quick", "slurm"), "study": ("train", "study", "stages", "quick")}
_SHIPPED = Path(__file__).parent.parent / "configs"


def shipped(kind: str) -> list[Path]:
    """Return the files of a kind that are shipped, sorted by name."""
    return [path for path in sorted(_SHIPPED.glob("*.toml")) if kind_of(path) == kind]


def given_or_shipped(name: str) -> Path | str:
    """Return the path of the TOML file that is shipped under a name, with or without `.toml`, or the name itself.

    A file of the user's comes first; a folder may have the name, such as that of the results. Raises `UsageError`:
    nothing has this name: says which one may be meant.
    """
    path, file = Path(name), name if name.endswith(".toml") else f"{name}.toml"
    if path.is_file() or os.sep in name:
        return name
    if (_SHIPPED / file).is_file():
        return _SHIPPED / file
    if path.exists():
        return name
    names = sorted(path.stem for path in _SHIPPED.glob("*.toml"))
    raise UsageError(
        f"FILE must be a TOML file, or the name of a shipped one, got {name!r}, which is neither"
        f"{did_you_mean(file.removesuffix('.toml'), names)}; shipped: {', '.join(names)}"
    )


def kind_of(path: Path | str) -> str:
    """Return "sweep" or "study"; raises like `read_grid`."""
    values, _ = read_grid(path, *TABLES)
    return next(kind for kind, tables in TABLES.items() if tables[0] in values)


def read_grid(path: Path | str, *kinds: str) -> tuple[dict[str, Any], str]:
    """Read a file of one of some kinds; return its values and the comment before its first key. Raises `UsageError`: a
    file that cannot be read, another key, a title that is no text, or no grid."""
    values, comment = read_toml(path, "TOML file or the name of a shipped one")
    check_keys(values, ("title", *(table for kind in kinds for table in TABLES[kind])), str(path))
    check_title(values.get("title", ""), str(path))
    grids = {TABLES[kind][0]: kind for kind in kinds}
    if not grids.keys() & values.keys():
        wanted = " or ".join(f"[{grid}], of a {kind}," for grid, kind in grids.items())
        raise UsageError(f"{path} must have a table {wanted} got none; write it, and keys below, such as batch = 16")
    return values, comment


def small_form(title: str, how_to_read: str, changed: Mapping[str, tuple[Sequence, Sequence]], *more: str) -> dict:
    """Return the fields by which a small form names its changes: title, how_to_read and left_out.

    `changed`: key of the grid -> its values before and now; `more`: what else is small.
    """
    texts = [
        f"{name} {', '.join(map(str, now))} in place of {', '.join(map(str, before))}"
        for name, (before, now) in changed.items()
        if before != now
    ]
    left_out = f"Small form (--quick), a check that it works: {'; '.join([*texts, *more]) or 'the same values'}."
    return {"title": f"{title}, small form", "how_to_read": f"{left_out} {how_to_read}".strip(), "left_out": left_out}


def check_table(table: Any, where: str) -> None:
    """Raise `UsageError` for what is no table."""
    if not isinstance(table, dict):
        raise UsageError(f"{where} must be a table, got {table!r:.60}; write its name in brackets above its keys")


def values_of(field: Field, value: Any, where: str) -> tuple:
    """Return the checked values of a key, each once. Raises `UsageError`: an empty list, or a value that the field
    refuses."""
    listed = value if isinstance(value, list) else [value]
    if field.kind is tuple and listed and not isinstance(listed[0], list | tuple):
        listed = [value]
    if not listed:
        raise UsageError(f"key {field.name!r} in {where} must have at least one value, got an empty list; leave it out")
    return tuple(dict.fromkeys(field.checked(v) for v in listed))
