"""Figure `options`: the time with each value of a swept option over that with its first value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ...analysis.estimates import EQUIVALENCE_BAND
from ...analysis.names import GRANULARITY, axis_label, model_rank
from ...analysis.speeds import PER, axis_table, row_is_usable
from ...analysis.sweep import Sweep
from ...tables.numbers import plural
from ..words import blocks_text
from .axes import band_handle, equivalence_band, model_lines, ratio_axis
from .heading import LINE, header
from .style import add_legend, model_handles, model_styles, new_figure, panel_title

RANK, ONE_FOR = 5, "network"
MAX_PANELS = 3
MANY = 8  # groups of a panel, whose names are in small letters
# These axes have figures of their own.
ELSEWHERE = ("batch", GRANULARITY)


def _ratios(sweep: Sweep, plan_id: str) -> pd.DataFrame:
    """Return the ratios between this plan and those that differ from it in one option."""
    table = axis_table(sweep)
    if not len(table):
        return table
    near = {axis: set(sweep.siblings(plan_id, axis)) for axis in sweep.axes if axis not in ELSEWHERE}
    return table[[p in near.get(a, ()) for a, p in zip(table["axis"], table["plan_id"], strict=True)]]


def missing(sweep: Sweep, plan_id: str) -> str:
    """Return why the figure cannot be drawn."""
    if len(_ratios(sweep, plan_id)):
        return ""
    return "a figure over options needs at least two values of one, got one; run a sweep such as checkerboard"


def _groups(rows: pd.DataFrame) -> list[tuple[str, int]]:
    """Return the values of an option with their numbers of threads, in the sweep's order."""
    values = list(dict.fromkeys(rows["value"]))
    return [(v, t) for v in values for t in sorted(set(rows.loc[rows["value"] == v, "threads"]))]


def _is_upright(groups: Sequence[tuple[str, int]], panels: int, column: str) -> bool:
    """Return whether the names of groups need more room than a line of small letters has."""
    across = panels if column == "double" else 1 + (panels > 2)
    return across * len(groups) * max(len(value) + 1 for value, _ in groups) > 1.1 * LINE[column]


def draw(sweep: Sweep, plan_id: str, column: str) -> Figure:
    """Draw a panel for each swept option: ratios of times to its first value, by value and number of threads."""
    table = _ratios(sweep, plan_id)
    axes = list(dict.fromkeys(table["axis"]))[:MAX_PANELS]
    models = sorted(set(table["model"]), key=model_rank)
    styles = model_styles(sweep.samples["model"])
    marks = {model: replace(look, line="none") for model, look in styles.items()}
    groups_of = {axis: _groups(table[table["axis"] == axis]) for axis in axes}
    upright = any(_is_upright(groups, len(axes), column) for groups in groups_of.values())
    figure, panels = new_figure(column, len(axes), 3.0 if upright else 2.1)
    for panel, (axis, groups) in zip(panels, groups_of.items(), strict=True):
        rows = table[table["axis"] == axis]
        step = 0.6 / max(1, len(models))
        asides = [step * (models.index(model) - (len(models) - 1) / 2) for model in rows["model"]]
        at = [groups.index(group) for group in zip(rows["value"], rows["threads"], strict=True)]
        rows = rows.assign(x=np.add(at, asides), usable=[row_is_usable(sweep, row) for row in rows.to_dict("records")])
        equivalence_band(panel)
        model_lines(panel, rows, models, marks, "x", "ratio", size=4.5)
        for x in range(1, len(groups)):
            panel.axvline(x - 0.5, color="0.92", linewidth=0.6, zorder=0)
        ratio_axis(panel, rows[["ratio", "ratio_low", "ratio_high"]].to_numpy(dtype=float).ravel())
        if _is_upright(groups, len(axes), column):
            panel.set_xticks(range(len(groups)), [f"{v}, {t} thr." for v, t in groups], rotation=90, fontsize=6)
        else:
            names = [f"{v}\n{plural(t, 'thread')}" for v, t in groups]
            panel.set_xticks(range(len(groups)), names, fontsize=6 if len(groups) > MANY else 7)
        panel.set_xlim(-0.5, len(groups) - 0.5)
        panel.set_ylabel(f"time{f' a {PER[axis]}' if axis in PER else ''} / with {rows['baseline'].iloc[0]}")
        panel_title(panel, axis_label(axis))
    handles = [*model_handles(styles, models, line=False), band_handle()]
    add_legend(figure, column, handles)
    swept = f"along {' and '.join(map(axis_label, axes))}"
    problem = sweep.problem_name(plan_id, axes[0] if len(axes) == 1 else "")
    shown = sorted({p for axis in axes for p in sweep.siblings(plan_id, axis)})
    header(figure, sweep, [problem, swept, blocks_text(*(sweep.plans[p] for p in shown))], column)
    return figure


def caption(sweep: Sweep, plan_id: str) -> list[str]:
    """Return the caption's sentences."""
    table = _ratios(sweep, plan_id)
    axes = dict(zip(table["axis"], table["baseline"], strict=True))
    panels = ", ".join(
        f"({letter}) {axis_label(axis)}, over {baseline}" + (f", per {PER[axis]}" if axis in PER else "")
        for letter, (axis, baseline) in zip("abc", list(axes.items())[:MAX_PANELS], strict=False)
    )
    return [
        f"Time with one value of an option over that with its first, all else equal: {panels}. Bars: 95 % intervals; "
        f"grey: ± {EQUIVALENCE_BAND:.0%}. Weights are bit-identical within each plan."
    ]
