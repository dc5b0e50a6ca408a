"""Figure `phases`: speedup and efficiency over threads of each phase of a step."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd
from matplotlib.figure import Figure

from ...analysis.names import model_label, model_rank
from ...analysis.phases import BUSY, WALL, phase_bound_table, phase_table, phases_of
from ...analysis.speeds import is_usable
from ...analysis.sweep import Sweep
from ...subjects.models import SERIAL, ModelSpec
from .axes import mark_places, name_those_below
from .bound_lines import BoundLine, bound_handles, bound_lines
from .heading import plan_header
from .over_threads import COLUMNS, draw_pair, ideal_handle, limit_pairs
from .style import GREY, add_legend, model_handles, model_styles, new_figure, panel_title

RANK, ONE_FOR = 0.5, "plan"
# Phases below this part of the serial step are left out: their blocks take hardly longer than the log's entries.
SMALLEST_PHASE = 0.01


def _rows(sweep: Sweep, plan_id: str) -> pd.DataFrame:
    table = phase_table(sweep)
    if not len(table):
        return table
    own = table[table["plan_id"] == plan_id]
    return own.assign(usable=[is_usable(sweep, (plan_id, *p)) for p in zip(own["model"], own["threads"], strict=True)])


def missing(sweep: Sweep, plan_id: str) -> str:
    """Return why the figure cannot be drawn."""
    if not len(rows := _rows(sweep, plan_id)):
        return "a figure of phases needs profile rows, got none; measure with `forktask compare`"
    if rows[[f"{phase}_speedup" for phase in phases_of(sweep, plan_id)]].isna().all(axis=None):
        return "a figure of phases needs a profile of the serial run, got none; measure `serial` too, with profiles"
    if (rows["model"] == SERIAL).all():
        return "a figure of phases needs a model besides serial, got none; measure another one, or leave --models out"
    return ""


def shown_phases(sweep: Sweep, plan_id: str) -> tuple[list[str], list[str]]:
    """Return the phases that are shown, and those that are too short."""
    rows, phases = _rows(sweep, plan_id), phases_of(sweep, plan_id)
    # A serial time is the speedup times the time of any point; without a serial run times say which phases are short.
    serial = {phase: float((rows[f"{phase}_s"] * rows[f"{phase}_speedup"].fillna(1)).median()) for phase in phases}
    large = [phase for phase in phases if serial[phase] >= SMALLEST_PHASE * sum(serial.values())]
    return large, [phase for phase in phases if phase not in large]


def _bounds(sweep: Sweep, plan_id: str, models: Iterable[ModelSpec], phase: str) -> list[BoundLine]:
    table = phase_bound_table(sweep)
    return bound_lines(table[(table["plan_id"] == plan_id) & (table["phase"] == phase)], models, merged=False)


def _one_kind(sweep: Sweep, plan_id: str) -> pd.DataFrame:
    """Return the rows of models whose phases have wall times; where none has, those of busy times, never both."""
    rows = _rows(sweep, plan_id)
    rows = rows[rows["model"] != SERIAL]
    walls = rows[rows["timed"] == WALL]
    return walls if len(walls) else rows


def _points(rows: pd.DataFrame, phase: str) -> pd.DataFrame:
    """Return the rows with a phase's columns under the names that a step has in `speed_table`."""
    points = rows[["model", "threads", "usable", *(f"{phase}_{column}" for column in COLUMNS)]]
    return points.set_axis(["model", "threads", "usable", *COLUMNS], axis=1).sort_values("threads")


def draw(sweep: Sweep, plan_id: str, column: str) -> Figure:
    """Draw speedup, and below it efficiency, over threads: a panel for each phase, a curve for each model."""
    rows, (phases, _) = _one_kind(sweep, plan_id), shown_phases(sweep, plan_id)
    styles = model_styles(sweep.samples["model"])
    models = sorted(rows["model"].unique(), key=model_rank)
    hollow = set(rows.loc[rows["timed"] == BUSY, "model"])
    counts, asked = sorted({1, *rows["threads"]}), sweep.asked_threads(plan_id)
    figure, panels = new_figure(column, 2 * len(phases), 1.8, rows=2)
    every = {phase: _points(rows, phase) for phase in phases}
    pairs = list(zip(panels[: len(phases)], panels[len(phases) :], strict=True))
    lines: dict[str, BoundLine] = {}
    low = limit_pairs(pairs, pd.concat(every.values()), counts)
    for pair, (phase, table) in zip(pairs, every.items(), strict=True):
        bounds = _bounds(sweep, plan_id, models, phase)
        draw_pair(pair, table, models, styles, counts, [(line, GREY) for line in bounds], hollow, places=asked)
        lines |= {line.label: line for line in bounds}
        name_those_below(pair[0], table, low, styles)
        for panel in pair:
            panel_title(panel, phase)
    mark_places(sweep, panels, counts)

    def label_with_time(model: ModelSpec) -> str:
        return model_label(model) + (" (busy time)" if model in hollow else "")

    handles = [*model_handles(styles, models, label_with_time, hollow=hollow), ideal_handle()]
    add_legend(figure, column, [*handles, *bound_handles(list(lines.values()))], 4 if column == "double" else 1)
    plan_header(figure, sweep, plan_id, column)
    return figure


def caption(sweep: Sweep, plan_id: str) -> list[str]:
    """Return the caption's sentences."""
    _, short = shown_phases(sweep, plan_id)
    walls = (_one_kind(sweep, plan_id)["timed"] == WALL).any()
    said = "of models that wait between phases" if walls else "by busy times, without waiting (hollow)"
    return [
        f"Speedup (above) and efficiency (below) of each phase over the same phase of the fastest serial run, {said}. "
        "Bars: 95 % intervals.",
        f"Left out, below {SMALLEST_PHASE:.0%} of the serial step: {', '.join(short)}." if short else "",
    ]
