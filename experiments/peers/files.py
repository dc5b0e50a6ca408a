"""Files of a comparison with other programs: peers.json (all of it), peers.csv (a row a contestant), peers.txt, and the
figure of their ratios."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...cython_src.errors import UsageError, check_choice
from ...cython_src.reading import decoding, read_regular
from ..report.figures.style import COLUMN_WIDTH_IN, FORMATS, figure_path, save_asked
from ..results.files import check_writable_folder, csv_text, output_folder, write_atomically
from ..tables.progress import say
from .figure import FIGURE, draw, rows_of
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
    """Write the result of `compare_with_torch` to a folder as JSON, as a table and as text, and draw its ratios."""
    folder = output_folder(path, NAMES[0])
    rows = [{**{name: result[name] for name in ABOUT}, **row} for row in result["rows"]]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    table = csv_text(columns, ([row.get(name) for name in columns] for row in rows))
    for name, text in zip(NAMES, (json.dumps(result, indent=1) + "\n", table, as_text(result) + "\n"), strict=True):
        write_atomically(folder / name, text)
    say(f"{folder}: {', '.join(NAMES)}")
    for column in COLUMN_WIDTH_IN if rows_of(result) else ():
        say(f"wrote {draw_result(result, folder, column=column)}")


def read_result(folder: str) -> dict[str, Any] | None:
    """Return the result that `write_files` has written to a folder; None where there is none.

    Raises
    ------
    UsageError
        A damaged file.
    """
    path, title = Path(folder) / NAMES[0], "result of `forktask peers`"
    if not path.exists():
        return None
    with decoding(path, title, "measure again, into another folder"):
        result = json.loads(read_regular(path, title))
        as_text(result)
        rows_of(result)
        return result


def draw_result(
    result: Mapping[str, Any],
    folder: Path,
    name: str = FIGURE,
    *,
    column: str = "double",
    kind: str = "pdf",
    out: str | None = None,
    title: bool = True,
    models: Mapping[str, str] | None = None,
) -> Path:
    """Draw the figure, with its caption beside it, and return its path; arguments as for `report.files.draw_folder`.

    Raises
    ------
    UsageError
        Another figure, an unknown column, format or model, no ratio to draw, or a file that cannot be written.
    """
    check_choice("the figure", name, [FIGURE])
    check_choice("--format", kind, FORMATS)
    path = figure_path(folder, name, column, kind, out)
    figure, text = draw(result, column, title, models)
    save_asked(figure, path, text)
    return path
