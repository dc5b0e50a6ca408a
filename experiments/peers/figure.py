"""The figure of a comparison with other programs: their times over those of our models, one below the other."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from ...cython_src.errors import UsageError, check_choice
from ...cython_src.reading import decoding, read_regular
from ..analysis.estimates import EQUIVALENCE_BAND
from ..analysis.names import called, model_label, model_rank
from ..analysis.speeds import interval_columns
from ..report.figures.forest import MOST_ROWS, draw_rows
from ..report.figures.heading import write_lines
from ..report.figures.style import COLUMN_WIDTH_IN, FORMATS, figure_path, finish, in_style, model_styles, save_asked
from ..tables.numbers import plural
from ..tables.progress import say
from .files import NAMES
from .peers import about_text, as_text, ratios_of

FIGURE = "peers"


def rows_of(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each ratio of a peer's time to a model's, those of most threads first; it is usable if both
    times are."""
    usable = {(row["name"], row["threads"]): row["usable"] for row in result["rows"]}
    found = [
        {
            "peer": f"{peer}, {plural(row['threads'], 'thread')}",
            "model": row["name"],
            "threads": row["threads"],
            **interval_columns("ratio", ratio),
            "usable": row["usable"] and usable[peer, row["threads"]],
        }
        for row in result["rows"]
        for peer, ratio in ratios_of(row).items()
    ]
    return sorted(found, key=lambda row: (-row["threads"], row["peer"], model_rank(row["model"])))


def draw(
    result: Mapping[str, Any], column: str = "double", title: bool = True, models: Mapping[str, str] | None = None
) -> tuple[Figure, str]:
    """Return the figure of a result of `compare_with_torch` and the text beside it; arguments as for `figures.draw`.

    Raises
    ------
    UsageError
        An unknown column or model, or no ratio.
    """
    check_choice("the column", column, COLUMN_WIDTH_IN)
    measured = dict.fromkeys(row["model"] for row in rows_of(result))
    if not measured:
        raise UsageError("a figure of peers needs PyTorch or llm.c on as many threads as a model, got neither")
    for model in models or ():
        check_choice("a model of the figure", model, measured)
    with called({model: name or model_label(model) for model, name in (models or {}).items()}), in_style():
        rows = [row for row in rows_of(result) if not models or row["model"] in models]
        shown = [{**row, "label": model_label(row["model"])} for row in rows[:MOST_ROWS]]
        styles = model_styles([*measured])
        figure = draw_rows(shown, "peer", styles, "peer's time / ours", column, math.inf)
        peers = {row["peer"]: None for row in shown}
        write_lines(figure, [about_text(result), *(peers if len(peers) == 1 else ())], column)
        return finish(figure, title), _text_beside(result, shown, len(rows) - len(shown))


def _text_beside(result: Mapping[str, Any], shown: Sequence[Mapping[str, Any]], hidden: int) -> str:
    """Return the caption and, in a second part, what was measured."""
    said = [
        "Time of PyTorch's fastest mode, or of llm.c, over that of each model on as many threads, with 95 % intervals: "
        f"right of 1 the model is faster. Grey: ± {EQUIVALENCE_BAND:.0%}. Hollow: too few processes for an interval.",
        "Crossed out: not usable." if not all(row["usable"] for row in shown) else "",
        f"{hidden} more in peers.csv." if hidden else "",
    ]
    return f"{' '.join(filter(None, said))}\n\n{as_text(result)}\n"


def read_result(folder: str) -> dict[str, Any] | None:
    """Return the result that `forktask peers` has written to a folder; None where there is none.

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
    figure, text = draw(result, column, title, models)
    path = figure_path(folder, name, column, kind, out)
    save_asked(figure, path, text)
    return path


def draw_both(result: Mapping[str, Any], folder: Path) -> None:
    """Draw the figure in both widths, if there is a ratio, and say where."""
    for column in COLUMN_WIDTH_IN if rows_of(result) else ():
        say(f"wrote {draw_result(result, folder, column=column)}")
