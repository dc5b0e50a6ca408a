"""Charts: panels of values with their intervals, a line for each model over numbers, or dots in named rows.

A figure says what it shows as a `Chart`, whose panels hold tidy rows; `drawn` draws any of them. So each figure has its
data, looks like the others, and goes into axes of the user's own. `figure` makes a function that returns a chart a
figure of the report.
"""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ....cython_src.errors import UsageError, check_choice
from ...analysis.estimates import EQUIVALENCE_BAND
from ...analysis.names import model_label
from ...analysis.sweep import Sweep
from ...subjects.models import ModelSpec
from ...tables.numbers import plural
from . import style
from .axes import BAND, cross_out, equivalence_band, series, value_axis, x_axis
from .style import GREY, ModelStyle

FEWEST_PLACES = 2  # numbers of threads over which lines are drawn; of fewer the largest is shown, in rows
ROW_IN, LINES_IN = 0.16, 1.9  # heights of a row, and of a panel of lines
AXIS_IN, LEAST_IN = 0.45, 0.8  # widths of numbers and a name along y, and the least one of a panel beside others
TICK_IN = 0.36  # width of a label of values
NAME_IN = {"double": 0.056, "single": 0.048}  # width of a letter of a row's name
NEAR = 1.5 * EQUIVALENCE_BAND  # of 1, which an axis of ratios holds in any case
MOST_BANDS = 7  # lines of a panel, of which intervals are bands too
IDEAL = "ideal"
REFERENCES = {IDEAL: ModelStyle("0.2", "", "-")}


@dataclass(frozen=True, eq=False)
class Panel:
    """A panel of a chart."""

    # model (a `ModelSpec`, or the name of what else is drawn), x (a number, or the name of a row; NaN: all across),
    # value, low, high (NaN: not known); as need be usable, hollow, and group, whose name stands above its rows
    rows: pd.DataFrame
    # label, title: what the values are, and what stands above the panel
    label: str
    title: str = ""
    # {"log", "ratio", "share", "linear"}; "ratio": around 1, with the band of equivalence; "share": from 0, in
    # percent
    scale: str = "log"
    limits: tuple[float, float] = (0.0, math.inf)  # values beyond them are arrows at the edge
    paint: Callable[[Any, str], None] | None = None  # draws the rows in place of lines or dots: `paint(axis, column)`


@dataclass(frozen=True, eq=False)
class Chart:
    """What a figure shows."""

    panels: Sequence[Panel]
    facts: Sequence[str] = ()  # what stands above the panels
    styles: Mapping[Any, ModelStyle] = field(default_factory=dict)  # look of each model, and of what else is drawn
    x: str = ""  # what stands along x; empty: rows have names
    names: Mapping[Any, str] = field(default_factory=dict)  # what the legend calls a model, if not by its label
    places: Sequence[float] = ()  # numbers along x that were asked for: lines end at those where nothing was measured
    marks: Mapping[float, str] = field(default_factory=dict)  # names of places along x
    across: int = 0  # panels beside each other in a double column; 0: all
    height: float = 0.0  # inches of a panel; 0: by its rows
    widths: Sequence[float] | None = None  # relative widths of panels side by side
    same_scale: bool = False  # whether all panels have the same axis of values
    # dodged, hollow_unknown: whether models that share a row stand below each other; whether marks without an
    # interval are hollow
    dodged: bool = True
    hollow_unknown: bool = True
    handles: Sequence[Any] = ()  # further entries of the legend
    caption: Sequence[str] = ()  # its sentences

    @property
    def has_unknown(self) -> bool:
        """Whether some marks are hollow, since they have no interval."""
        rows = [p.rows for p in self.panels if not (p.paint or self.x) and self.hollow_unknown]
        return any(math.isnan(r["low"]) and _is_mark(self, r["model"]) for t in rows for r in t.to_dict("records"))

    @property
    def text(self) -> str:
        """The caption."""
        return " ".join(filter(None, self.caption))

    def data(self) -> pd.DataFrame:
        """Return the rows of all panels, each with the panel's name and what its values are."""
        tables = [p.rows.assign(panel=p.title, quantity=p.label) for p in self.panels]
        return pd.concat(tables, ignore_index=True)


class Lacking(UsageError):
    """Rows do not hold what a figure shows."""


@dataclass(frozen=True)
class FigureKind:
    """A figure of the report."""

    # `chart(sweep, plan_id)` returns what it shows, or raises `Lacking`; its name is the figure's
    chart: Callable[[Sweep, str], Chart]
    rank: float  # its place in lists
    # {"plan", "network", "sweep"}; for what a report shows one: "plan" (of many plans, for `leading_plans` alone),
    # "network" (it is about plans of one network, and shown for one of `leading_plans`), or "sweep" (it is about all
    # plans, and shown for the main one)
    one_for: str = "plan"


def figure(rank: float, one_for: str = "plan") -> Callable[[Callable[[Sweep, str], Chart]], FigureKind]:
    """Return a decorator that makes a function a `FigureKind`."""
    return partial(FigureKind, rank=rank, one_for=one_for)


def value_rows(table: pd.DataFrame, name: str, x: str | Sequence = "threads", scale: float = 1.0) -> pd.DataFrame:
    """Return rows of a panel from a table with the columns model, <name>, <name>_low, <name>_high, or time_s, low_s,
    high_s, and perhaps usable."""
    low, high = ("low_s", "high_s") if name == "time_s" else (f"{name}_low", f"{name}_high")
    places = table[x] if isinstance(x, str) else x
    values = {
        end: scale * table[column].astype(float) for end, column in (("value", name), ("low", low), ("high", high))
    }
    kept = {flag: table[flag] for flag in ("usable", "hollow", "group") if flag in table}
    return pd.DataFrame({"model": table["model"], "x": places, **values, **kept})


def reference_rows(model: Any, x: Sequence, value: Sequence[float] | float) -> pd.DataFrame:
    """Return rows of something that has no interval."""
    return pd.DataFrame({"model": model, "x": x, "value": value, "low": math.nan, "high": math.nan})


def over_threads(sweep: Sweep, chart: Chart) -> Chart:
    """Return a chart over threads: lines, with places of the machine; of fewer than `FEWEST_PLACES` numbers rows of
    models on the most threads, with references across."""
    points = [point for p in chart.panels for point in zip(p.rows["model"], p.rows["x"], strict=True)]
    counts = sorted({int(n) for model, n in points if isinstance(model, ModelSpec) and not model.is_serial and n == n})
    if len(counts) >= FEWEST_PLACES:
        label, marks = thread_axis(sweep, sorted({1, *counts}))
        return replace(chart, x=label, marks=marks)
    most = max(counts, default=1)
    panels = [replace(p, rows=_rows_of_models(sweep, p.rows, most)) for p in chart.panels if p.scale != "share"]
    return replace(chart, panels=panels, x="", facts=[*chart.facts, plural(most, "thread")])


def _rows_of_models(sweep: Sweep, rows: pd.DataFrame, most: int) -> pd.DataFrame:
    """Return the rows on most threads, named by their models; what is no model goes all across."""
    rows = rows[(rows["x"] == most) | rows["x"].isna()]
    is_named = [isinstance(m, ModelSpec) and place == most for m, place in zip(rows["model"], rows["x"], strict=True)]
    x = [sweep.label(model) if named else math.nan for model, named in zip(rows["model"], is_named, strict=True)]
    return rows.assign(x=np.array(x, dtype=object))


def thread_axis(sweep: Sweep, counts: Sequence[int]) -> tuple[str, dict[float, str]]:
    """Return the name of an axis of threads, with the placement where it is of interest, and where slower cores, a
    further cache, node or socket, or SMT siblings begin, if the axis reaches so far."""
    result = {n: name for n, name in sweep.next_places.items() if min(counts) < n <= max(counts)}
    marks = {(n - 1) * 2**0.25 if n - 1 in counts else n - 1: name for n, name in result.items()}
    places, bind = sweep.placement.values()
    if not marks and (places, bind) == ("cores", "close"):
        return "threads", {}
    shown = places if len(places) < 12 else f"{places[:9]}..."
    return f"threads {'(not pinned)' if bind == 'none' else f'({shown}, {bind})'}", marks


def drawn(chart: Chart, column: str = "double", title: bool = True, ax: Any = None) -> Figure:
    """Draw a chart as a figure, or a chart of one panel into axes. Raises `UsageError`: another column, or axes for a
    chart of several panels."""
    check_choice("the column", column, style.COLUMN_WIDTH_IN)
    chart = replace(chart, panels=[replace(panel, rows=_complete(panel.rows)) for panel in chart.panels])
    count, in_rows = len(chart.panels), not chart.x
    if ax is not None and count > 1:
        raise UsageError(f"ax must be given for a figure of one panel, got it for one of {count}; leave it out")
    lists = [row_list(panel.rows) for panel in chart.panels] if in_rows else []
    longest_list = max(lists, key=len, default=[])
    shared = count > 1 and bool(longest_list) and all({*one} <= {*longest_list} and one for one in lists)
    lists = [longest_list] * count if shared else lists
    same = shared or (chart.same_scale and not in_rows)
    dodge = max((_marks_in_row(chart, panel) for panel in chart.panels), default=1) if in_rows else 1
    lines = [_shown_name(name, column).split("\n") for _, name in itertools.chain(*lists)]
    longest = max((len(line) for line in itertools.chain(*lines)), default=0)
    names_in = min(NAME_IN[column] * longest, 0.42 * style.COLUMN_WIDTH_IN[column]) if in_rows else AXIS_IN

    def room_in(across: int) -> float:
        return (style.COLUMN_WIDTH_IN[column] - names_in * (1 if shared else across)) / across - 0.1

    across = min(chart.across or count, count)
    if column == "single":
        most = 1 if count < 4 and not (chart.across or in_rows) else 2 if not shared else across
        painted = any(panel.paint for panel in chart.panels) and not chart.across
        across = next((n for n in range(min(across, most), 1, -1) if room_in(n) > LEAST_IN and not painted), 1)
    room = room_in(across)
    lines_in = LINES_IN if column == "double" or across == count else LINES_IN - 0.5
    rows_in = [0.45 + ROW_IN * len(one) * (1 + 0.45 * (dodge - 1)) for one in lists]
    height = chart.height or max(rows_in, default=lines_in)
    handles = [*_handles(chart, in_rows), *chart.handles]
    if ax is None:
        share = "all" if same else "none"
        figure, axes = style.new_figure(column, count, height, across, share, chart.widths)
    else:
        figure, axes = ax.figure, [ax]
    ends = _ends(chart.panels) if chart.same_scale else None
    for number, (axis, panel) in enumerate(zip(axes, chart.panels, strict=True)):
        if panel.title:
            style.panel_title(axis, _wrapped(panel.title, int(room / 0.065) - 4))
        if panel.paint:
            panel.paint(axis, column)
            continue
        limits = ends or _ends([panel])
        most = max(2, int(room / TICK_IN))
        if in_rows:
            value_axis(axis, "x", panel.scale, *limits, most)
            _draw_rows(axis, chart, panel, lists[number], column)
            axis.set_xlabel(_wrapped(panel.label, int(room / 0.055)), fontsize=8 if column == "double" else 6.5)
        else:
            _draw_lines(axis, chart, panel, number)
            if panel.label and axis.get_ylabel():
                axis.set_ylabel(_wrapped(panel.label, int(height / 0.075)))
            value_axis(axis, "y", panel.scale, *limits, 6)
        if panel.scale == "ratio":
            equivalence_band(axis, "x" if in_rows else "y")
    if same:
        for axis in axes:
            axis.tick_params(axis="y", labelleft=axis.get_subplotspec().is_first_col())
    if ax is not None:
        ax.legend(handles=handles, fontsize=6.5) if handles else None
        return figure
    if handles or any(line.get_gid() == style.CROSSED for axis in axes for line in axis.lines):
        style.add_legend(figure, column, handles)
    style.write_lines(figure, ["; ".join(filter(None, chart.facts))] if title and chart.facts else [], column)
    return style.finish(figure)


def _complete(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows with the columns that need not be there."""
    left_out = {"usable": True, "hollow": False, "group": ""}
    given = {name: rows.get(name, pd.Series(value, rows.index)).fillna(value) for name, value in left_out.items()}
    return rows.assign(**{**given, **{name: given[name].astype(bool) for name in ("usable", "hollow")}})


def _wrapped(text: str, width: int) -> str:
    """Return a text in lines of `width` letters, of eight at least; a longer word stays whole."""
    return textwrap.fill(text, max(8, width), break_long_words=False, break_on_hyphens=False)


def row_list(rows: pd.DataFrame) -> list[tuple[str, str]]:
    """Return group and name of each row, and of each group of several a row with its name alone, from the top down."""
    named = rows[rows["x"].notna()]
    result = list(dict.fromkeys(zip(named["group"], named["x"], strict=True)))
    if len({group for group, _ in result}) < 2:
        return result
    heads: dict[str, list[tuple[str, str]]] = {}
    for group, name in result:
        heads.setdefault(group, [(group, "")]).append((group, name))
    return [*itertools.chain(*heads.values())]


def _shown_name(name: str, column: str) -> str:
    """Return a row's name; in a single column of two lines the last, and long ones wrapped."""
    return name if column == "double" else textwrap.fill(name.rpartition("\n")[2], 28)


def _is_mark(chart: Chart, model: Any) -> bool:
    """Whether a model's values are marks of their own, in contrast to what they are compared with."""
    return chart.styles[model].marker not in ("", "|")


def _marks_in_row(chart: Chart, panel: Panel) -> int:
    """Return the most models that share a row of a panel, where these stand below each other."""
    if panel.paint or not chart.dodged:
        return 1
    marks = panel.rows["model"].map(lambda model: _is_mark(chart, model)).astype(bool)
    rows = panel.rows[panel.rows["x"].notna() & marks]
    return int(rows.groupby(["group", "x"], sort=False)["model"].nunique().max()) if len(rows) else 1


def _ends(panels: Sequence[Panel]) -> tuple[float, float]:
    """Return the least and the largest value of panels; intervals reach a factor of two beyond them at most."""
    rows, limits = pd.concat([panel.rows for panel in panels]), panels[0].limits
    values = rows["value"].clip(*limits).dropna()
    low, high = (values.min(), values.max()) if len(values) else (1.0, 1.0)
    if "ratio" in {panel.scale for panel in panels}:
        low, high = min(low, 1 - NEAR), max(high, 1 + NEAR)
    below, above = min([low, *rows["low"].dropna()]), max([high, *rows["high"].dropna()])
    return max(below, low / 2 if low > 0 else below, limits[0]), min(above, 2 * high if high > 0 else above, limits[1])


def _draw_lines(axis, chart: Chart, panel: Panel, number: int) -> None:
    """Draw a line for each model over x, and lines across for what has no x."""
    models = [model for model in chart.styles if (panel.rows["model"] == model).any()]
    marked = [model for model in models if _is_mark(chart, model)]
    for model in models:
        rows, look = panel.rows[panel.rows["model"] == model], chart.styles[model]
        for row in rows[rows["x"].isna()].to_dict("records"):
            _draw_across(axis, row, look, "y")
        rows = rows[rows["x"].notna()].sort_values("x")
        if model not in marked and look.line != "none":
            axis.plot(rows["x"], rows["value"], color=look.color, linestyle=look.line, linewidth=0.8, zorder=1)
            low, high = (rows[end].astype(float) for end in ("low", "high"))  # None where an end is not known
            if np.isfinite(low).all():
                axis.fill_between(rows["x"], low, high, color=look.color, alpha=0.18, linewidth=0)
            continue
        size = 6.0 - 2.6 * marked.index(model) / max(1, len(marked) - 1) if model in marked else 0  # all are seen
        band = len(models) < MOST_BANDS
        outside = rows["value"] < panel.limits[0]
        axis.plot(rows["x"][outside], [1.06 * panel.limits[0]] * outside.sum(), "v", color=look.color, markersize=4)
        rows, places = rows[~outside], chart.places if model in marked else ()
        for hollow, part in rows.groupby("hollow"):
            columns = (part[name] for name in ("x", "value", "low", "high"))
            usable = part["usable"]
            series(axis, *columns, look, band=band, size=size, hollow=hollow, usable=usable, places=places)
    places = sorted({*panel.rows["x"].dropna()})
    if not places:
        axis.text(0.5, 0.5, "nothing was measured", ha="center", va="center", transform=axis.transAxes, color=GREY)
    elif places[0] <= 0:  # no axis of logarithms
        axis.set_xticks(places)
        axis.set_xlabel(chart.x)
    elif all(place == int(place) for place in places):
        x_axis(axis, [int(place) for place in places], chart.x)
    else:
        value_axis(axis, "x", "log", places[0], places[-1], 6)
        axis.set_xlabel(chart.x)
    for place, name in chart.marks.items():
        axis.axvline(place, color="0.8", linewidth=0.6, zorder=0)
        if not number:
            look = {"xycoords": ("data", "axes fraction"), "rotation": 90, "ha": "right", "va": "top", "fontsize": 6}
            axis.annotate(name, (place, 0.98), **look)
    axis.set_ylabel(panel.label)
    if chart.same_scale and not axis.get_subplotspec().is_first_col():
        axis.set_ylabel("")


def _draw_across(axis, row: Mapping[str, Any], look: ModelStyle, which: str) -> None:
    line, span = (axis.axhline, axis.axhspan) if which == "y" else (axis.axvline, axis.axvspan)
    line(row["value"], color=look.color, linestyle=look.line, linewidth=0.9, zorder=2)
    if np.isfinite(row["low"]):
        span(row["low"], row["high"], color=look.color, alpha=0.18, linewidth=0, zorder=0)


def _draw_rows(axis, chart: Chart, panel: Panel, places: Sequence[tuple[str, str]], column: str) -> None:
    """Draw a row for each name, with a mark and an interval for each model, and lines across for what has no x."""
    models = [m for m in chart.styles if (panel.rows["model"] == m).any() and _is_mark(chart, m)]
    at, dodge = {key: place for place, key in enumerate(places)}, _marks_in_row(chart, panel)
    several = len({group for group, _ in places}) > 1
    for row in panel.rows.to_dict("records"):
        look, ends = chart.styles[row["model"]], (row["low"], row["high"])
        if row["x"] != row["x"]:
            _draw_across(axis, row, look, "x")
            continue
        place = float(at[row["group"], row["x"]])
        if dodge > 1 and row["model"] in models and len(models) > 1:
            place += 0.7 * (models.index(row["model"]) / (len(models) - 1) - 0.5)
        low, high = panel.limits
        if not low <= row["value"] <= high and math.isfinite(row["value"]):
            _draw_arrow(axis, row["value"], place, row["value"] > high, look.color)
            if not row["usable"]:
                cross_out(axis, [min(max(row["value"], low), high)], [place])
            continue
        if math.isfinite(ends[0]):
            axis.plot(ends, [place, place], color=look.color, linewidth=1.4, solid_capstyle="butt", zorder=3)
        hollow = row["hollow"] or (chart.hollow_unknown and not math.isfinite(ends[0]))
        axis.plot([row["value"]], [place], color=look.color, linestyle="none", zorder=4, **_mark(look, hollow))
        if not row["usable"]:
            cross_out(axis, [row["value"]], [place])
    for place, (group, name) in enumerate(places):
        if several and not name:
            look = {"color": GREY, "fontstyle": "italic", "fontsize": 7, "va": "center", "annotation_clip": False}
            written = axis.annotate(group, (0.01, place), xycoords=("figure fraction", "data"), **look)
            written.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.5})
            written.set_in_layout(False)
        if dodge > 1 and place:
            axis.axhline(place - 0.5, color="0.92", linewidth=0.6, zorder=0)
    named = [(place, _shown_name(name, column)) for place, (_, name) in enumerate(places) if name]
    size = 7 if column == "double" and not any("\n" in name for _, name in named) else 6
    axis.set_yticks([place for place, _ in named], [name for _, name in named], fontsize=size, linespacing=0.95)
    axis.set_ylim(len(places) - 0.4, -0.6)
    axis.tick_params(axis="y", length=0)
    axis.spines["left"].set_visible(False)


def _mark(look: ModelStyle, hollow: bool = False) -> dict[str, Any]:
    """Return how a mark looks, also one that is a stroke."""
    if look.marker == "|":
        return {"marker": "|", "markersize": 9}
    return {"markersize": 4, **style.marker_look(look, hollow)}


def _draw_arrow(axis, value: float, place: float, above: bool, color: object) -> None:
    """Write a value beyond the limits at its edge, with an arrow that leads there."""
    edge, text = (1, 0.86) if above else (0, 0.14)
    across = axis.get_yaxis_transform()
    look = {"arrowprops": {"arrowstyle": "->", "color": color, "linewidth": 0.8}, "fontsize": 6.5, "va": "center"}
    where = {"xycoords": across, "textcoords": across, "ha": "right" if above else "left"}
    axis.annotate(f"{value:.2f}", (edge, place), (text, place), **where, **look)


def _handles(chart: Chart, in_rows: bool) -> list[Any]:
    """Return an entry for each model whose name stands in no row, and for what models are compared with."""
    shown: dict[Any, bool] = {}
    for panel in (panel for panel in chart.panels if not panel.paint):
        alone = in_rows and chart.dodged and _marks_in_row(chart, panel) == 1
        rows = panel.rows[panel.rows["value"].notna()]
        for model, x in zip(rows["model"], rows["x"], strict=True):
            if not (alone and _is_mark(chart, model) and x == x):
                shown[model] = shown.get(model, False) or x == x
    handles = []
    for model, look in chart.styles.items():
        label = chart.names.get(model, model_label(model) if isinstance(model, ModelSpec) else model)
        if model not in shown or not label:
            continue
        line = look.line if not in_rows or not shown[model] else "none"
        marks = _mark(look) if shown[model] else {}
        handles.append(Line2D([], [], color=look.color, linestyle=line, label=label, **marks))
    if any(panel.scale == "ratio" for panel in chart.panels):
        handles.append(Patch(color=BAND, label=f"± {EQUIVALENCE_BAND:.0%}"))
    return handles
