"""Figures: a file each. A new figure is a new file here, found by its functions.

A figure's file has `missing(study, plan_id)`, which says why it cannot be drawn (empty: it can),
`draw(study, plan_id, column)`, and `caption(study, plan_id)`, the caption's sentences. `RANK` orders figures in lists;
`ONE_FOR` says for what a report shows one: "plan", "network" (it is about plans of one network, and shown for one of
`leading_plans`), or "study" (it is about all plans, and shown for the main one).
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from types import ModuleType

import matplotlib
from matplotlib.figure import Figure

from ....cython_src.errors import UsageError, check_choice
from ...analysis.names import called, model_label
from ...analysis.speeds import is_usable, leading_plans, main_plan
from ...analysis.study import Study
from ..words import conditions
from .style import COLUMN_WIDTH_IN, finish, style_parameters


def find_figures() -> dict[str, ModuleType]:
    """Return the modules of this folder that draw a figure, by name, in their order."""
    modules = [import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__)]
    drawing = [module for module in modules if hasattr(module, "missing")]
    return {module.__name__.rpartition(".")[2]: module for module in sorted(drawing, key=lambda module: module.RANK)}


FIGURES = find_figures()


def available_figures(study: Study, plan_id: str) -> list[str]:
    """Return the figures that the rows of a plan allow."""
    leading = leading_plans(study)
    kinds = ["plan", *["network"] * (plan_id in leading), *["study"] * (plan_id == leading[0])]
    return [name for name, m in FIGURES.items() if m.ONE_FOR in kinds and not m.missing(study, plan_id)]


def draw(
    study: Study,
    figure: str = "speedup",
    plan_id: str | None = None,
    column: str = "double",
    title: bool = True,
    models: Mapping[str, str] | None = None,
) -> Figure:
    """Draw one figure of a study.

    Parameters
    ----------
    study : Study
    figure : str
        One of `FIGURES`.
    plan_id : str, optional
        Default: the plan with most samples.
    column : {"single", "double"}
        3.3 in wide and at most 4 in tall, or 7 in wide.
    title : bool
        Whether the plan stands above the panels.
    models : mapping of str to str, optional
        Models that are drawn besides the serial run, in this order, by the names that they get ("": their own);
        default: all.

    Raises
    ------
    UsageError
        Unknown figure, column or model, or rows that do not hold what the figure shows.
    """
    check_choice("the figure", figure, FIGURES)
    check_choice("the column", column, COLUMN_WIDTH_IN)
    plan_id = plan_id or main_plan(study)
    if reason := FIGURES[figure].missing(study, plan_id):
        raise UsageError(reason)
    with matplotlib.rc_context(style_parameters()), _chosen(study, models) as study:
        return finish(FIGURES[figure].draw(study, plan_id, column), title)


@contextmanager
def _chosen(study: Study, models: Mapping[str, str] | None) -> Iterator[Study]:
    """Yield a study that shows some models only, which go by other names inside."""
    if not models:
        yield study
        return
    measured = dict.fromkeys(model for _, model, _ in study.turns)
    for model in models:
        check_choice("a model of the figure", model, measured)
    with called({model: name or model_label(model) for model, name in models.items()}):
        yield replace(study, shown=tuple(models))


def caption_file(study: Study, figure: str, plan_id: str | None = None, models: Mapping[str, str] | None = None) -> str:
    """Return the text beside a figure: its caption, and in a second part how it was measured and what to be warned
    of."""
    plan_id = plan_id or main_plan(study)
    return (
        "\n\n".join(
            [caption(study, figure, plan_id, models), "\n".join([*conditions(study, plan_id), *study.warnings])]
        )
        + "\n"
    )


def caption(study: Study, figure: str, plan_id: str | None = None, models: Mapping[str, str] | None = None) -> str:
    """Return the caption, at most 60 words: what differs from the defaults; the page says how it was measured."""
    check_choice("the figure", figure, FIGURES)
    plan_id = plan_id or main_plan(study)
    with _chosen(study, models) as study:
        said = FIGURES[figure].caption(study, plan_id)
        plans = [plan_id] if FIGURES[figure].ONE_FOR == "plan" else study.plan_ids()
        wrong = any(not is_usable(study, (plan, *point)) for plan in plans for point in study.points_of(plan))
    return " ".join(dict.fromkeys(filter(None, [*said, "Crossed out: not usable." if wrong else ""])))
