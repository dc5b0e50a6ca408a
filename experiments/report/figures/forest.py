"""Figure `forest`: the ratios of all contestants to fork-join with their intervals, one below the other."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from ...analysis.estimates import EQUIVALENCE_BAND
from ...analysis.speeds import scope
from ...analysis.sweep import Sweep
from ..verdicts import answers
from .axes import cross_out, log2_axis, mark_ratio, power_ticks, rows_of_ratios
from .style import GREY, TALLEST_IN, ModelStyle, blank_figure, model_styles

RANK, ONE_FOR = -1, "sweep"
MOST_ROWS = 24
ROW_IN = 0.2
WIDEST = 1.5  # ratios on the axis; what is farther from 1 is an arrow
LOGARITHMIC = 3.0


def _shown(sweep: Sweep) -> list[dict]:
    return [row for row in answers(sweep) if row["against"] == "forkjoin"][:MOST_ROWS]


def missing(sweep: Sweep, plan_id: str) -> str:
    """Return why the figure cannot be drawn."""
    return "" if _shown(sweep) else "a forest plot needs a fork-join form and another model on as many threads"


def draw(sweep: Sweep, plan_id: str, column: str) -> Figure:
    """Draw ratios and intervals under the titles of their plans."""
    rows, styles = _shown(sweep), model_styles(sweep.samples["model"])
    return draw_rows(rows, "plan", styles, f"time / better fork-join, {scope(sweep)}", column)


def draw_rows(
    rows: Sequence[Mapping[str, Any]],
    title: str,
    styles: Mapping[str, ModelStyle],
    label: str,
    column: str,
    widest: float = WIDEST,
) -> Figure:
    """Draw a figure of ratios with their intervals, one below the other.

    Parameters
    ----------
    rows : sequence of mapping
        With the keys model, label, ratio, ratio_low, ratio_high, usable and `title`.
    title : str
        Key of what stands above rows that share it, if not all do.
    label : str
        What the ratios are.
    widest : float
        Ratios farther from 1 are arrows; the axis is logarithmic if that leaves some beyond `LOGARITHMIC`.
    """
    groups = [(text, list(own)) for text, own in itertools.groupby(rows, key=lambda row: row[title])]
    height = len(rows) + (len(groups) if len(groups) > 1 else 0)
    tall = ROW_IN * height + 0.75
    figure = blank_figure(column, min(tall, TALLEST_IN) if column == "single" else tall)
    axis = figure.subplots()
    ends = [row[f"ratio{end}"] for row in rows for end in ("", "_low", "_high")]
    ends = [end for end in ends if 1 / widest <= end <= widest]
    near = 2 * EQUIVALENCE_BAND
    limits = min([1 - near, *ends]), max([1 + near, *ends])
    rows_of_ratios(axis, label)
    names, place = {}, 0
    for text, own in groups:
        if len(groups) > 1:
            _write_title(axis, text, place)
            place += 1
        for row in own:
            _draw_row(axis, row, place, limits, styles[row["model"]])
            names[place] = row["label"]
            place += 1
    axis.set_yticks(list(names), names.values())
    axis.set_ylim(height - 0.5, -0.5)
    if max(limits[1], 1 / limits[0]) > LOGARITHMIC:
        pad = (limits[1] / limits[0]) ** 0.03
        low, high = limits[0] / pad, limits[1] * pad
        log2_axis(axis, "x", power_ticks(low, high), low, high)
    else:
        pad = 0.03 * (limits[1] - limits[0])
        axis.set_xlim(limits[0] - pad, limits[1] + pad)
    return figure


def _write_title(axis, title: str, place: int) -> None:
    """Write a plan's title across the figure, in a row of its own: as a label it would take the room of the axis."""
    look = {"color": GREY, "fontstyle": "italic", "fontsize": 7, "va": "center", "annotation_clip": False}
    written = axis.annotate(title, (0.01, place), xycoords=("figure fraction", "data"), **look)
    written.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.5})
    written.set_in_layout(False)


def _draw_row(axis, row: Mapping[str, Any], place: int, limits: tuple[float, float], style) -> None:
    value, low, high = (row[f"ratio{end}"] for end in ("", "_low", "_high"))
    color = GREY if row["model"].again else style.color
    if not limits[0] <= value <= limits[1]:
        edge = limits[value > 1]
        if not row["usable"]:
            cross_out(axis, [edge], [place])
        inward = 0.12 * (limits[0] - limits[1]) * (1 if value > 1 else -1)
        axis.annotate(
            f"{value:.2f}",
            (edge, place),
            (edge + inward, place),
            arrowprops={"arrowstyle": "->", "color": color, "linewidth": 0.8},
            ha="right" if value > 1 else "left",
            va="center",
            fontsize=6.5,
            color=color,
        )
        return
    mark_ratio(axis, place, (value, low, high), color, style.marker, row["usable"])


def caption(sweep: Sweep, plan_id: str) -> list[str]:
    """Return the caption's sentences."""
    rows = _shown(sweep)
    again = any(row["model"].again for row in rows)
    hidden = sum(row["against"] == "forkjoin" for row in answers(sweep)) - len(rows)
    return [
        f"Time over that of the better fork-join form, on most threads, with 95 % intervals; grey: ± "
        f"{EQUIVALENCE_BAND:.0%}. Hollow: too few generations for an interval.",
        "Again (A/A): a model against itself." if again else "",
        f"{hidden} more in the table." if hidden else "",
    ]
