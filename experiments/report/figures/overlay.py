"""Figure `overlay`: speedup and efficiency over threads, a curve for each value of a swept option, a panel a model."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from ...analysis.estimates import NOTHING, Estimate
from ...analysis.limits import bound_of, bound_table, speedup_bound
from ...analysis.names import (
    GRANULARITY,
    INTERFERENCE,
    NETWORK,
    axis_label,
    base_model,
    is_gpu,
    model_label,
    model_rank,
    value_text,
)
from ...analysis.speeds import axis_values, best_serial, estimate_of, interval_columns, is_usable
from ...analysis.study import Point, Study
from ...tables.numbers import format_time
from .axes import dodged, log2_axis, power_ticks, series, x_axis
from .bound_lines import BoundLine, bound_handles, bound_lines, draw_bound
from .heading import header
from .style import COLORS, LINES, ModelStyle, add_legend, new_figure, panel_title

RANK, ONE_FOR = 4.5, "network"
MAX_MODELS = 3
# Values of these axes are different work: each is compared with its own serial run.
OTHER_WORK = ("phase", "sequence", "batch")
_MARKERS = "osD^vPX*"


def _axis(study: Study, plan_id: str) -> str:
    """Return the option whose values are overlaid: granularity, else another one, else one that changes the work."""
    swept = [a for a in study.axes if a not in (NETWORK, INTERFERENCE) and len(study.siblings(plan_id, a)) > 1]
    rank = {GRANULARITY: -1, **{axis: 1 + i for i, axis in enumerate(OTHER_WORK)}}
    return min(swept, key=lambda axis: rank.get(axis, 0), default="")


def _plans(study: Study, plan_id: str, axis: str) -> dict[str, str]:
    """Return the plans that differ in the axis, by the text of its value, in the sweep's order."""
    plans = study.siblings(plan_id, axis)
    of_value = {study.records[p][axis]: p for p in plans}
    return {value_text(value): of_value[value] for value in axis_values(study, plans, axis)}


def _baselines(study: Study, plans: dict[str, str], axis: str) -> dict[str, Point | None]:
    """Return the serial run that each plan is compared with: the fastest of all, or its own if the work differs."""
    own = {plan: best_serial(study, plan) for plan in plans.values()}
    if axis in OTHER_WORK:
        return own
    fastest = min(filter(None, own.values()), key=lambda p: study.typical_time(p).value, default=None)
    return dict.fromkeys(own, fastest)


def _models(study: Study, plans: dict[str, str]) -> list[str]:
    """Return the models shown: the fastest form of each, fork-join first and then those with the shortest times.

    Threads of the host say little of models of a GPU, which are left out.
    """
    times: dict[str, float] = {}
    points = [(p, m, t) for p in plans.values() for m, t in study.points_of(p) if m != "serial" and not is_gpu(m)]
    widest = max((threads for _, _, threads in points), default=1)
    for plan, model, threads in points:
        if threads == widest:
            times[model] = min(times.get(model, np.inf), study.typical_time((plan, model, threads)).value)
    fastest: dict[str, str] = {}
    for model in sorted(times, key=lambda m: (times[m], model_rank(m))):
        fastest.setdefault(base_model(model), model)
    shown = sorted(fastest.values(), key=lambda m: (base_model(m) != "forkjoin", times[m], model_rank(m)))
    return sorted(shown[:MAX_MODELS], key=model_rank)


def missing(study: Study, plan_id: str) -> str:
    """Return why the figure cannot be drawn."""
    axis = _axis(study, plan_id)
    if not axis:
        return "an overlay needs at least two values of an option, got one; run a sweep such as gpt2_batch_subsize"
    plans = _plans(study, plan_id, axis)
    if not all(_baselines(study, plans, axis).values()):
        return "an overlay needs serial runs of the same network and batch, got none; add `serial` to --models"
    return (
        ""
        if _models(study, plans)
        else ("an overlay needs a model of the processor besides serial, got none; add it to --models")
    )


def curves(study: Study, plan_id: str) -> dict[tuple[str, str], dict[int, Estimate]]:
    """Return the speedups that the figure shows: by (model, value of the option), and threads."""
    axis = _axis(study, plan_id)
    plans = _plans(study, plan_id, axis)
    bases = _baselines(study, plans, axis)
    return {
        (model, value): {
            threads: study.ratio(bases[plan], (plan, model, threads))
            for other, threads in study.points_of(plan)
            if other == model
        }
        for model in _models(study, plans)
        for value, plan in plans.items()
    }


def draw(study: Study, plan_id: str, column: str) -> Figure:
    """Draw speedup, and below it efficiency, over threads: a panel for each model, a curve for each value."""
    axis = _axis(study, plan_id)
    plans = _plans(study, plan_id, axis)
    found = curves(study, plan_id)
    models = list(dict.fromkeys(model for model, _ in found))
    styles = {
        value: ModelStyle(COLORS[i % len(COLORS)], _MARKERS[i % len(_MARKERS)], LINES[i % len(LINES)])
        for i, value in enumerate(plans)
    }
    counts = sorted({1, *(t for points in found.values() for t in points)})
    beside = dodged([t for points in found.values() for t in points], list(plans))
    figure, panels = new_figure(column, 2 * len(models), 1.8, rows=2)
    # Over another serial run than in the tables, it goes by another name.
    bases = _baselines(study, plans, axis)
    common = "" if all(bases[plan] == best_serial(study, plan) for plan in bases) else ", common $T_1$"
    everything = [s for points in found.values() for s in points.values()]
    known = [e for s in everything for e in (s.value, s.low, s.high) if np.isfinite(e)]
    low, high = min([1.0, *known]), max([max(counts), *known])
    room = 1.1 * (high / low) ** 0.03  # for the outermost markers
    low, high = low / room, high * room
    top = max(
        [1.0, *(e / t for points in found.values() for t, s in points.items() for e in (s.value, s.high) if e > 0)]
    )
    lines: dict[str, BoundLine] = {}
    for number, model in enumerate(models):
        speedup, efficiency = panels[number], panels[len(models) + number]
        speedup.plot(counts, counts, color="0.2", linewidth=0.8, zorder=1)
        efficiency.axhline(1, color="0.2", linewidth=0.8, zorder=1)
        for value in plans:
            points = found[model, value]
            asked = [t for t in study.asked_threads(plans[value]) if t in counts]
            threads = np.array(asked, dtype=float)
            columns = np.array(
                [(e.value, e.low, e.high) for e in (points.get(t, NOTHING) for t in asked)], dtype=float
            ).reshape(-1, 3)
            known = [(plans[value], model, t) for t in asked]
            usable = [point not in study.turns or is_usable(study, point) for point in known]
            series(speedup, threads, *columns.T, styles[value], value, usable=usable)
            shares = (columns / threads[:, None]).T
            series(efficiency, threads * beside[value], *shares, styles[value], value, usable=usable)
            for line in _bounds(study, plans[value], bases[plans[value]], model):
                draw_bound(speedup, line, color=styles[value].color)
                draw_bound(efficiency, line, line.x, beside, styles[value].color)
                lines[line.label] = line
        log2_axis(speedup, "y", power_ticks(low, high), low, high)
        efficiency.set_ylim(0, top * 1.06)
        efficiency.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
        for panel, label in ((speedup, "speedup"), (efficiency, "efficiency")):
            x_axis(panel, counts, "threads")
            panel.set_ylabel(label + common)
            panel_title(panel, model_label(model))
    tasks = {value: study.plans[plan].num_tasks for value, plan in plans.items()}
    handles = [
        Line2D(
            [],
            [],
            color=style.color,
            linestyle=style.line,
            marker=style.marker,
            markeredgecolor="white",
            markeredgewidth=0.4,
            label=f"{value} ({tasks[value]} tasks)",
        )
        for value, style in styles.items()
    ]
    handles.append(Line2D([], [], color="0.2", linewidth=0.8, label="ideal"))
    handles += bound_handles(list(lines.values()))
    add_legend(figure, column, handles, 3 if column == "double" else 1)
    header(
        figure,
        study,
        [_problem_text(study, plan_id, axis), f"along {axis_label(axis)}", _serial_text(study, plans, axis)],
        column,
    )
    return figure


def _bounds(study: Study, plan: str, base: Point, model: str) -> list[BoundLine]:
    """Return the binding bound of a model: that of a plan on the speedup over any serial run."""
    table, name = bound_table(study), bound_of(model)
    rows = table[table["plan_id"] == plan].to_dict("records")
    advantage = study.ratio(base, best_serial(study, plan))
    found = []
    for row in rows:
        bound = speedup_bound(advantage, estimate_of(row, f"{name}_speedup").inverse())
        found.append({"threads": row["threads"], **interval_columns(f"{name}_speedup", bound)})
    return bound_lines(pd.DataFrame(found), [model])


def _problem_text(study: Study, plan_id: str, axis: str) -> str:
    """Return the problem's name without the value of the axis."""
    own = f"{axis_label(axis)} {value_text(study.records[plan_id][axis])}"
    return ", ".join(word for word in study.problem_name(plan_id).split(", ") if word != own)


def _serial_text(study: Study, plans: dict[str, str], axis: str) -> str:
    """Return the serial times behind the speedups."""
    bases = _baselines(study, plans, axis)
    times = {value: format_time(study.typical_time(bases[plan]).value) for value, plan in plans.items()}
    if axis not in OTHER_WORK:
        return f"$T_1$ = {next(iter(times.values()))}, the fastest serial run"
    return "$T_1$ = " + ", ".join(f"{time} ({value})" for value, time in times.items())


def caption(study: Study, plan_id: str) -> list[str]:
    """Return the caption's sentences."""
    axis = _axis(study, plan_id)
    serial = "its own fastest serial run" if axis in OTHER_WORK else "the fastest serial run at any of them"
    return [
        f"Speedup and efficiency over threads: a curve for each value of {axis_label(axis)}, over "
        f"{serial}; a panel for each model, in its fastest form. Bars and bands: 95 % intervals. Thin lines: the bound "
        "of the panel's model."
    ]
