"""Figure `phases`: speedup and efficiency over threads of each phase of a step."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from ...analysis.names import model_label, model_rank
from ...analysis.phases import BUSY, WALL, phase_bound_table, phase_table, phases_of
from ...analysis.speeds import is_usable
from ...analysis.study import Study
from .axes import (
    dodged,
    log2_axis,
    mark_physical_cores,
    name_those_below,
    nested_size,
    power_ticks,
    series,
    speedup_limits,
    with_gaps,
    x_axis,
)
from .bound_lines import BoundLine, bound_handles, bound_lines, draw_bound
from .heading import plan_header
from .style import add_legend, model_handles, model_styles, new_figure, panel_title

RANK, ONE_FOR = 0.5, "plan"
# Phases below this part of the serial step are left out: their blocks take hardly longer than the log's entries.
SMALLEST_PHASE = 0.01


def _rows(study: Study, plan_id: str) -> pd.DataFrame:
    table = phase_table(study)
    if not len(table):
        return table
    own = table[table["plan_id"] == plan_id]
    return own.assign(usable=[is_usable(study, (plan_id, *p)) for p in zip(own["model"], own["threads"], strict=True)])


def missing(study: Study, plan_id: str) -> str:
    """Return why the figure cannot be drawn."""
    if not len(rows := _rows(study, plan_id)):
        return "a figure of phases needs profile rows, got none; measure with `forktask compare`"
    if rows[[f"{phase}_speedup" for phase in phases_of(study, plan_id)]].isna().all(axis=None):
        return "a figure of phases needs a profile of the serial run, got none; add `serial` to --models"
    if (rows["model"] == "serial").all():
        return "a figure of phases needs a model besides serial, got none; add it to --models"
    return ""


def shown_phases(study: Study, plan_id: str) -> tuple[list[str], list[str]]:
    """Return the phases that are shown, and those that are too short."""
    rows, phases = _rows(study, plan_id), phases_of(study, plan_id)
    # A serial time is the speedup times the time of any point.
    serial = {phase: float((rows[f"{phase}_s"] * rows[f"{phase}_speedup"]).median()) for phase in phases}
    large = [phase for phase in phases if serial[phase] >= SMALLEST_PHASE * sum(serial.values())]
    return large, [phase for phase in phases if phase not in large]


def _bounds(study: Study, plan_id: str, models: Iterable[str], phase: str) -> list[BoundLine]:
    table = phase_bound_table(study)
    return bound_lines(table[(table["plan_id"] == plan_id) & (table["phase"] == phase)], models, merged=False)


def _one_kind(study: Study, plan_id: str) -> pd.DataFrame:
    """Return the rows of models whose phases have wall times; where none has, those of busy times, never both."""
    rows = _rows(study, plan_id)
    rows = rows[rows["model"] != "serial"]
    walls = rows[rows["timed"] == WALL]
    return walls if len(walls) else rows


def _points(rows: pd.DataFrame, phase: str) -> pd.DataFrame:
    """Return the rows with a phase's columns under the names that a step has in `speed_table`."""
    columns = [f"{name}{end}" for name in ("speedup", "efficiency") for end in ("", "_low", "_high")]
    points = rows[["model", "threads", "usable", *(f"{phase}_{column}" for column in columns)]]
    return points.set_axis(["model", "threads", "usable", *columns], axis=1).sort_values("threads")


def draw(study: Study, plan_id: str, column: str) -> Figure:
    """Draw speedup, and below it efficiency, over threads: a panel for each phase, a curve for each model."""
    rows = _one_kind(study, plan_id)
    phases, _ = shown_phases(study, plan_id)
    styles = model_styles(study.samples["model"])
    models = sorted(rows["model"].unique(), key=model_rank)
    hollow = set(rows.loc[rows["timed"] == BUSY, "model"])
    counts = sorted({1, *rows["threads"]})
    beside = dodged(rows["threads"].tolist(), models)
    figure, panels = new_figure(column, 2 * len(phases), 1.8, rows=2)
    every = {phase: _points(rows, phase) for phase in phases}
    low, high = np.transpose([speedup_limits(points, max(counts)) for points in every.values()])
    low, high = min(low), max(high)
    top = max(min(2 * value.max(), upper.max()) for value, upper in _tops(every.values()))
    lines: dict[str, BoundLine] = {}
    for number, (phase, table) in enumerate(every.items()):
        speedup, efficiency = panels[number], panels[len(phases) + number]
        speedup.plot(counts, counts, color="0.2", linewidth=0.8, zorder=1)
        efficiency.axhline(1, color="0.2", linewidth=0.8, zorder=1)
        for line in _bounds(study, plan_id, models, phase):
            draw_bound(speedup, line)
            draw_bound(efficiency, line, line.x, beside)
            lines[line.label] = line
        for order, model in enumerate(models):
            points = with_gaps(table[table["model"] == model], "threads", study.asked_threads(plan_id))
            for panel, name, aside, size in (
                (speedup, "speedup", 1.0, nested_size(order, len(models))),
                (efficiency, "efficiency", beside[model], 4.0),
            ):
                values = (points[f"{name}{end}"] for end in ("", "_low", "_high"))
                label = model_label(model)
                x = points["threads"] * aside
                look = {"band": False, "size": size, "hollow": model in hollow, "usable": points["usable"]}
                series(panel, x, *values, styles[model], label, **look)
        log2_axis(speedup, "y", power_ticks(low, high), low, high)
        name_those_below(speedup, table, low, styles)
        efficiency.set_ylim(0, max(1.0, top) * 1.06)
        efficiency.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
        for panel, label in ((speedup, "speedup"), (efficiency, "efficiency")):
            x_axis(panel, counts, "threads")
            panel.set_ylabel(label)
            panel_title(panel, phase)
    mark_physical_cores(study, panels, counts)

    def label_with_time(model: str) -> str:
        return model_label(model) + (" (busy time)" if model in hollow else "")

    handles = [
        *model_handles(styles, models, label_with_time, hollow=hollow),
        Line2D([], [], color="0.2", linewidth=0.8, label="ideal"),
        *bound_handles(list(lines.values())),
    ]
    add_legend(figure, column, handles, 4 if column == "double" else 1)
    plan_header(figure, study, plan_id, column)
    return figure


def _tops(tables) -> list[tuple[pd.Series, pd.Series]]:
    return [(t["efficiency"], t[["efficiency", "efficiency_high"]].max(axis=1)) for t in tables]


def caption(study: Study, plan_id: str) -> list[str]:
    """Return the caption's sentences."""
    _, short = shown_phases(study, plan_id)
    walls = (_one_kind(study, plan_id)["timed"] == WALL).any()
    said = "of models that wait between phases" if walls else "by busy times, without waiting (hollow)"
    return [
        f"Speedup (above) and efficiency (below) of each phase over the same phase of the fastest serial run, {said}. "
        "Bars: 95 % intervals.",
        f"Left out, below {SMALLEST_PHASE:.0%} of the serial step: {', '.join(short)}." if short else "",
    ]
