"""Figure `overlay`: speedup and efficiency over threads, a curve for each value of a swept option, a panel a model."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ...analysis.estimates import NOTHING
from ...analysis.limits import BOUND_NAMES, bound_of, bound_table, speedup_bound
from ...analysis.names import GRANULARITY, INTERFERENCE, NETWORK, axis_label, model_label, model_rank, value_text
from ...analysis.speeds import best_serial, estimate_of, interval_columns, is_usable, plans_by_value
from ...analysis.sweep import Point, Sweep
from ...subjects.models import ModelSpec
from ...tables.numbers import format_time
from .axes import mark_places
from .bound_lines import BoundLine, bound_lines
from .heading import header
from .over_threads import draw_pair, ideal_handle, limit_pairs
from .style import COLORS, GREY, LINES, ModelStyle, add_legend, model_handles, new_figure, panel_title

RANK, ONE_FOR = 4.5, "network"
MAX_MODELS = 3
NARROW = 16  # characters of a value that a legend in a single column has room for
# Values of these axes are different work: each is compared with its own serial run.
OTHER_WORK = ("phase", "sequence", "batch")
_MARKERS = "osD^vPX*"


def _axis(sweep: Sweep, plan_id: str) -> str:
    """Return the option whose values are overlaid: granularity, else another one, else one that changes the work."""
    swept = [a for a in sweep.axes if a not in (NETWORK, INTERFERENCE) and len(sweep.siblings(plan_id, a)) > 1]
    rank = {GRANULARITY: -1, **{axis: 1 + i for i, axis in enumerate(OTHER_WORK)}}
    return min(swept, key=lambda axis: rank.get(axis, 0), default="")


def _plans(sweep: Sweep, plan_id: str, axis: str) -> dict[str, str]:
    """Return the plans that differ in the axis, by the text of its value, in the sweep's order."""
    plans = plans_by_value(sweep, sweep.siblings(plan_id, axis), axis)
    return {value_text(value): plan for value, plan in plans.items()}


def _baselines(sweep: Sweep, plans: dict[str, str], axis: str) -> dict[str, Point | None]:
    """Return the serial run that each plan is compared with: the fastest of all, or its own if the work differs."""
    own = {plan: best_serial(sweep, plan) for plan in plans.values()}
    if axis in OTHER_WORK:
        return own
    fastest = min(filter(None, own.values()), key=lambda p: sweep.typical_time(p).value, default=None)
    return dict.fromkeys(own, fastest)


def _is_shown(model: ModelSpec) -> bool:
    return not model.is_serial and not (model.is_gpu or model.is_peer or model.again)


def _models(sweep: Sweep, plans: dict[str, str]) -> list[str]:
    """Return the models shown: the fastest form of each, fork-join first and then those with the shortest times.

    Threads of the host say little of models of a GPU, which are left out.
    """
    times: dict[str, float] = {}
    points = [(p, m, t) for p in plans.values() for m, t in sweep.points_of(p) if _is_shown(m)]
    widest = max((threads for _, _, threads in points), default=1)
    for plan, model, threads in points:
        if threads == widest:
            times[model] = min(times.get(model, np.inf), sweep.typical_time((plan, model, threads)).value)
    fastest: dict[str, str] = {}
    for model in sorted(times, key=lambda m: (times[m], model_rank(m))):
        fastest.setdefault(model.name, model)
    shown = sorted(fastest.values(), key=lambda m: (m.name != "forkjoin", times[m], model_rank(m)))
    return sorted(shown[:MAX_MODELS], key=model_rank)


def missing(sweep: Sweep, plan_id: str) -> str:
    """Return why the figure cannot be drawn."""
    axis = _axis(sweep, plan_id)
    if not axis:
        return "an overlay needs at least two values of an option, got one; run a sweep such as gpt2_batch_subsize"
    plans = _plans(sweep, plan_id, axis)
    if not all(_baselines(sweep, plans, axis).values()):
        return "an overlay needs serial runs of the same network and batch, got none; measure `serial` too"
    return (
        ""
        if _models(sweep, plans)
        else ("an overlay needs a model of the processor besides serial, got none; measure another one")
    )


def _points(sweep: Sweep, plans: dict[str, str], model: ModelSpec, bases: dict[str, Point | None]) -> pd.DataFrame:
    """Return the points of a panel, with the text of the value as "model": speedups of each plan over its serial run,
    on each number of threads that was asked for."""
    rows = []
    for value, plan in plans.items():
        for threads in sweep.asked_threads(plan):
            point = (plan, model, threads)
            known = point in sweep.turns
            ratio = sweep.ratio(bases[plan], point) if known else NOTHING
            shares = interval_columns("efficiency", ratio.divided_by(threads))
            own = {"usable": not known or is_usable(sweep, point), **interval_columns("speedup", ratio)}
            rows.append({"model": value, "threads": threads, **own, **shares})
    return pd.DataFrame(rows)


def draw(sweep: Sweep, plan_id: str, column: str) -> Figure:
    """Draw speedup, and below it efficiency, over threads: a panel for each model, a curve for each value."""
    axis = _axis(sweep, plan_id)
    plans = _plans(sweep, plan_id, axis)
    models, bases = _models(sweep, plans), _baselines(sweep, plans, axis)
    styles = {
        value: ModelStyle(COLORS[i % len(COLORS)], _MARKERS[i % len(_MARKERS)], LINES[i % len(LINES)])
        for i, value in enumerate(plans)
    }
    found = {model: _points(sweep, plans, model, bases) for model in models}
    every = pd.concat(found.values())
    counts = sorted({1, *every.loc[every["speedup"].notna(), "threads"]})
    # Over another serial run than in the tables, it goes by another name.
    common = "" if all(bases[plan] == best_serial(sweep, plan) for plan in bases) else ", common $T_1$"
    figure, panels = new_figure(column, 2 * len(models), 1.8, rows=2)
    pairs = list(zip(panels[: len(models)], panels[len(models) :], strict=True))
    bounds = {
        model: [
            (line, styles[value].color)
            for value, plan in plans.items()
            for line in _bounds(sweep, plan, bases[plan], model)
        ]
        for model in models
    }
    shown = [pd.DataFrame({"speedup": line.value}) for lines in bounds.values() for line, _ in lines]
    limit_pairs(pairs, pd.concat([every, *shown]), counts, slowest=0.0)
    for (speedup, efficiency), (model, points) in zip(pairs, found.items(), strict=True):
        draw_pair((speedup, efficiency), points, list(plans), styles, counts, bounds[model], band=True)
        speedup.set_ylabel(f"speedup{common}")
        efficiency.set_ylabel(f"efficiency{common}")
        panel_title(speedup, model_label(model))
        if column == "double":  # in a single one it stands beside
            panel_title(efficiency, model_label(model))
    mark_places(sweep, panels, counts)
    names, letters = _legend_names(list(plans), column)
    tasks = {value: sweep.plans[plan].num_tasks for value, plan in plans.items()}
    handles = [*model_handles(styles, list(styles), lambda value: f"{names[value]} ({tasks[value]})"), ideal_handle()]
    if any(bounds.values()):
        handles.append(Line2D([], [], color=GREY, linewidth=0.8, linestyle="--", label="bound"))
    add_legend(figure, column, handles, 4 if column == "double" else None, f"{axis_label(axis)} (tasks){letters}")
    serial = _serial_text(sweep, plans, axis)
    header(figure, sweep, [sweep.problem_name(plan_id, axis), f"along {axis_label(axis)}", serial], column)
    return figure


def _legend_names(values: Sequence[str], column: str) -> tuple[dict[str, str], str]:
    """Return the names of values in the legend, and what their letters stand for: in a single column long ones, such as
    `images=4,rows=16`, have the first letters of their keys, where these differ."""
    keys = dict.fromkeys(key for value in values for key in re.findall(r"(\w+)=", value))
    fit = column == "double" or max(map(len, values)) <= NARROW
    if fit or not keys or len({key[0] for key in keys}) < len(keys):
        return dict(zip(values, values, strict=True)), ""
    short = {value: re.sub(r"(\w)\w*=", r"\1", value).replace(",", " ") for value in values}
    return short, f"; {', '.join(f'{key[0]} {key}' for key in keys)}"


def _bounds(sweep: Sweep, plan: str, base: Point, model: ModelSpec) -> list[BoundLine]:
    """Return the binding bound of a model: that of a plan on the speedup over any serial run."""
    table, name = bound_table(sweep), bound_of(model)
    rows = table[table["plan_id"] == plan].to_dict("records")
    advantage = sweep.ratio(base, best_serial(sweep, plan))
    found = []
    for row in rows:
        bound = speedup_bound(advantage, estimate_of(row, f"{name}_speedup").inverse())
        found.append({"threads": row["threads"], **interval_columns(f"{name}_speedup", bound)})
    return bound_lines(pd.DataFrame(found), [model])


def _serial_text(sweep: Sweep, plans: dict[str, str], axis: str) -> str:
    """Return the serial times behind the speedups."""
    bases = _baselines(sweep, plans, axis)
    times = {value: format_time(sweep.typical_time(bases[plan]).value) for value, plan in plans.items()}
    if axis not in OTHER_WORK:
        return f"$T_1$ = {next(iter(times.values()))}, the fastest serial run"
    return "$T_1$ = " + ", ".join(f"{time} ({value})" for value, time in times.items())


def caption(sweep: Sweep, plan_id: str) -> list[str]:
    """Return the caption's sentences."""
    axis = _axis(sweep, plan_id)
    serial = "its own fastest serial run" if axis in OTHER_WORK else "the fastest serial run at any of them"
    models = _models(sweep, _plans(sweep, plan_id, axis))
    bounds = ", ".join(dict.fromkeys(BOUND_NAMES[bound_of(model)] for model in models))
    return [
        f"Speedup and efficiency over threads: a curve for each value of {axis_label(axis)}, over "
        f"{serial}; a panel for each model, in its fastest form. Bars and bands: 95 % intervals. Thin lines: the bound "
        f"of the panel's model ({bounds})."
    ]
