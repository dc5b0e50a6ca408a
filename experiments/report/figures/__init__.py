"""Figures by name. A new one is a function of a file here, found by its decorator `chart.figure`."""

from __future__ import annotations

import pkgutil
import string
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ....cython_src.errors import check_choice
from ...analysis.names import with_texts
from ...analysis.speeds import is_usable, leading_plans, main_plan, scope
from ...analysis.sweep import Sweep, chosen, kept
from ..words import conditions, data_text
from .chart import Chart, FigureKind, Lacking, drawn
from .style import in_style


def find_figures() -> dict[str, FigureKind]:
    """Return the figures of this folder's files by name, in their order."""
    modules = [import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__)]
    result = [kind for module in modules for kind in vars(module).values() if isinstance(kind, FigureKind)]
    return {kind.chart.__name__: kind for kind in sorted(result, key=lambda kind: kind.rank)}


FIGURES = find_figures()
MOST_PLANS = 24  # of which a report draws all figures: some 1.5 s each


def available_figures(sweep: Sweep, plan_id: str) -> list[str]:
    """Return the figures that the rows of a plan allow."""
    leading = leading_plans(sweep)
    of_plans = plan_id in leading or not left_out(sweep)
    shown = {"plan": of_plans, "network": plan_id in leading, "sweep": plan_id == leading[0]}
    return [name for name, kind in FIGURES.items() if shown[kind.one_for] and not missing(sweep, name, plan_id)]


@kept
def chart_of(sweep: Sweep, figure: str, plan_id: str) -> Chart:
    """Return what a figure shows; raise `Lacking` where the rows of the models that are shown do not hold it."""
    with in_style():
        return FIGURES[figure].chart(sweep, plan_id)


def missing(sweep: Sweep, figure: str, plan_id: str) -> str:
    """Return why a figure cannot be drawn; empty: it can."""
    try:
        chart_of(sweep, figure, plan_id)
    except Lacking as error:
        return str(error)
    return ""


def first_figure(sweep: Sweep, plan_id: str) -> str:
    """Return the figure that is drawn where none is named: speedup, or the first that the rows of a plan allow."""
    return next((name for name in ("speedup", *FIGURES) if not missing(sweep, name, plan_id)), "speedup")


def left_out(sweep: Sweep) -> str:
    """Return a sentence on the figures that a report of many plans leaves out; empty: none."""
    count = len(sweep.plan_ids())
    if count <= MOST_PLANS:
        return ""
    return (
        f"Figures of single plans show one plan of each network, since there are {count} plans; `forktask "
        f"report DIR --figure NAME --plan ID` draws any other."
    )


def draw(
    sweep: Sweep,
    figure: str = "speedup",
    plan_id: str | None = None,
    column: str = "double",
    title: bool = True,
    models: Mapping[str, str] | None = None,
    ax: Axes | None = None,
    panels: Sequence[str] | None = None,
) -> Figure:
    """Draw one figure of a sweep, by default of the plan with most samples, whose name stands above the panels.

    Parameters
    ----------
    column : {"single", "double"}
        3.3 in wide and at most 6 in tall, or 7 in wide.
    models : mapping of str to str, optional
        Models that are drawn besides the serial run, in this order, by the names that they get ("": their own).
    ax : Axes, optional
        Where a figure of one panel is drawn, instead of in a new figure.
    panels : sequence of str, optional
        Letters of the panels that are drawn, in their order; default: all.

    Raises
    ------
    UsageError
        Unknown figure, column or model, axes for several panels, or rows that do not hold what the figure shows.
    """
    with in_style():
        shown, chart = _shown(sweep, figure, plan_id, models)
        facts = [*chart.facts, scope(shown), *([data_text(shown)] if shown.smoke_test else [])] if chart.facts else ()
        by_letter = dict(zip(string.ascii_lowercase, chart.panels, strict=False))
        for letter in panels or ():
            check_choice("the panel", letter, by_letter)
        asked = [panel for letter, panel in by_letter.items() if not panels or letter in panels]
        return drawn(replace(chart, facts=facts, panels=asked), column, title, ax)


def figure_data(
    sweep: Sweep, figure: str, plan_id: str | None = None, models: Mapping[str, str] | None = None
) -> pd.DataFrame:
    """Return the numbers behind a figure, a row for each value; see `Chart.data`. Arguments are those of `draw`."""
    return with_texts(_shown(sweep, figure, plan_id, models)[1].data())


def _shown(sweep: Sweep, figure: str, plan_id: str | None, models: Mapping[str, str] | None) -> tuple[Sweep, Chart]:
    """Return a sweep of some models, and what a figure of it shows."""
    check_choice("the figure", figure, FIGURES)
    shown = chosen(sweep, models)
    chart = chart_of(shown, figure, plan_id or main_plan(sweep))
    return shown, replace(chart, names={**shown.shown, **chart.names})


def caption_file(sweep: Sweep, figure: str, plan_id: str | None = None, models: Mapping[str, str] | None = None) -> str:
    """Return the text beside a figure: its caption, and in a second part how it was measured and what to be warned
    of."""
    plan_id = plan_id or main_plan(sweep)
    measured = [*conditions(sweep, plan_id), *sweep.warnings]
    if FIGURES[figure].one_for != "plan" and len(sweep.plan_ids()) > 1:
        measured.insert(0, f"Work and generations are those of one of {len(sweep.plan_ids())} plans.")
    return caption(sweep, figure, plan_id, models) + "\n\n" + "\n".join(measured) + "\n"


def caption(
    sweep: Sweep,
    figure: str,
    plan_id: str | None = None,
    models: Mapping[str, str] | None = None,
    *,
    alone: bool = False,
) -> str:
    """Return the caption, at most 60 words: what differs from the defaults; the page says how it was measured. Where
    there is neither page nor title, `alone`, it begins with what the figure is of, and where and when it was
    measured."""
    plan_id = plan_id or main_plan(sweep)
    sweep, chart = _shown(sweep, figure, plan_id, models)
    texts = [chart.text]
    if alone:
        networks = dict.fromkeys(record["network"] for record in sweep.records.values())
        facts = "; ".join(chart.facts).replace("$T_1$", "T1") or ", ".join(networks)
        texts = [f"{facts}. Measured on {sweep.environment['cpu']['model']}, {sweep.run.created[:10]}.", *texts]
    plans = [plan_id] if FIGURES[figure].one_for == "plan" else sweep.plan_ids()
    if "95 % interval" in " ".join(texts):
        texts.append(f"Intervals hold {scope(sweep)}.")
    if chart.has_unknown:
        texts.append("Hollow: too few generations for an interval.")
    wrong = any(not is_usable(sweep, (plan, *point)) for plan in plans for point in sweep.points_of(plan))
    return " ".join(dict.fromkeys(filter(None, [*texts, "Crossed out: not usable." if wrong else ""])))
