"""Files of a comparison with other programs: peers.json (all of it), peers.csv (a row a contestant), peers.txt."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...cython_src.errors import UsageError
from ..results.files import check_writable_folder, csv_text, output_folder, write_atomically
from ..tables.progress import say
from .peers import as_text

NAMES = ("peers.json", "peers.csv", "peers.txt")
ABOUT = ("network", "batch", "phase")  # of the result; before each row's own fields


def check_new_folder(path: str) -> None:
    """Raise `UsageError` unless the files can be written to a folder, which is new, empty, or without a comparison."""
    folder = Path(path)
    if not folder.exists():
        check_writable_folder(folder)
        return
    output_folder(folder, NAMES[0])
    if taken := [name for name in NAMES if (folder / name).exists()]:
        raise UsageError(f"--out must have no comparison yet, but {folder} holds {taken[0]}; name another folder")


def write_files(path: str, result: Mapping[str, Any]) -> None:
    """Write the result of `compare_with_torch` to a folder as JSON, as a table and as text."""
    folder = output_folder(path, NAMES[0])
    rows = [{**{name: result[name] for name in ABOUT}, **row} for row in result["rows"]]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    table = csv_text(columns, ([row.get(name) for name in columns] for row in rows))
    for name, text in zip(NAMES, (json.dumps(result, indent=1) + "\n", table, as_text(result) + "\n"), strict=True):
        write_atomically(folder / name, text)
    say(f"{folder}: {', '.join(NAMES)}")
