"""Figure `overlay`: speedups with each value of a swept option, a panel for each model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pandas as pd

from ...analysis.limits import BOUND_NAMES, bound_of, bound_table, speedup_bound
from ...analysis.names import GRANULARITY, INTERFERENCE, NETWORK, axis_label, model_label, model_rank, value_text
from ...analysis.speeds import best_serial, estimate_of, interval_columns, is_usable, plans_by_value
from ...analysis.sweep import Point, Sweep
from ...subjects.models import ModelSpec
from ...tables.numbers import format_time, plural
from . import chart as charts
from .chart import Chart, Lacking, Panel, figure, reference_rows, value_rows
from .style import COLORS, GREY, LINES, ModelStyle, model_styles

MAX_MODELS = 3
# Values of these axes are different work: each is compared with its own serial run.
OTHER_WORK = ("phase", "sequence", "batch")
_MARKERS = "osD^vPX*"
BOUND = "bound"


def _models(sweep: Sweep, plans: Iterable[str]) -> list[ModelSpec]:
    """Return the models shown: the fastest form of each, fork-join first and then those with the shortest times.

    Threads of the host say little of models of a GPU, which are left out.
    """
    points = [(p, m, t) for p in plans for m, t in sweep.points_of(p)]
    points = [p for p in points if not (p[1].is_serial or p[1].is_gpu or p[1].is_peer or p[1].again)]
    widest = max((threads for _, _, threads in points), default=1)
    times: dict[ModelSpec, float] = {}
    for plan, model, threads in points:
        if threads == widest:
            time = sweep.typical_time((plan, model, threads)).value
            times[model] = min(times.get(model, time), time)
    fastest: dict[str, ModelSpec] = {}
    for model in sorted(times, key=lambda m: (times[m], model_rank(m))):
        fastest.setdefault(model.name, model)
    shown = sorted(fastest.values(), key=lambda m: (m.name != "forkjoin", times[m], model_rank(m)))
    return sorted(shown[:MAX_MODELS], key=model_rank)


def _rows(sweep: Sweep, plans: Mapping[str, str], model: ModelSpec, bases: Mapping[str, Point | None]) -> pd.DataFrame:
    """Return value (of the option), threads, and what a row of a panel has: speedups and bounds of each plan over its
    serial run."""
    result, name = [], bound_of(model)
    for value, plan in plans.items():
        for threads in sweep.asked_threads(plan):
            if (point := Point(plan, model, threads)) in sweep.turns:
                own = interval_columns("speedup", sweep.ratio(bases[plan], point))
                result.append(
                    {"option": value, "threads": threads, "model": model, **own, "usable": is_usable(sweep, point)}
                )
        limits, advantage = bound_table(sweep), sweep.ratio(bases[plan], best_serial(sweep, plan))
        for row in limits[limits["plan_id"] == plan].to_dict("records") if len(limits) else ():
            bound = speedup_bound(advantage, estimate_of(row, f"{name}_speedup").inverse())
            own = interval_columns("speedup", bound)
            result.append({"option": value, "threads": row["threads"], "model": BOUND, **own, "usable": True})
    return pd.DataFrame(result)


@figure(4.5, "network")
def overlay(sweep: Sweep, plan_id: str) -> Chart:
    """Return speedups: a panel for each model, a line for each value, or a row on a single number of threads."""
    swept = [a for a in sweep.axes if a not in (NETWORK, INTERFERENCE) and len(sweep.siblings(plan_id, a)) > 1]
    # Granularity, else another option, else one that changes the work.
    rank = {GRANULARITY: -1, **{axis: 1 + i for i, axis in enumerate(OTHER_WORK)}}
    if not (axis := min(swept, key=lambda axis: rank.get(axis, 0), default="")):
        raise Lacking(
            "an overlay needs at least two values of an option, got one; run a sweep such as gpt2_batch_subsize"
        )
    by_value = plans_by_value(sweep, sweep.siblings(plan_id, axis), axis)
    plans = {value_text(value): plan for value, plan in by_value.items()}
    own = {plan: best_serial(sweep, plan) for plan in plans.values()}
    fastest = min(filter(None, own.values()), key=lambda p: sweep.typical_time(p).value, default=None)
    # Each plan is compared with the fastest serial run of all, or with its own if the work differs.
    bases = own if axis in OTHER_WORK else dict.fromkeys(own, fastest)
    if not all(bases.values()):
        raise Lacking("an overlay needs serial runs of the same network and batch, got none; measure `serial` too")
    if not (models := _models(sweep, own)):
        raise Lacking("an overlay needs a model of the processor besides serial, got none; measure another one")
    result = {model: _rows(sweep, plans, model, bases) for model in models}
    counts = sorted({n for table in result.values() for n in table.loc[table["model"] != BOUND, "threads"]})
    tasks = {value: f"{value} ({sweep.plans[plan].num_tasks} tasks)" for value, plan in plans.items()}
    times = {value: format_time(sweep.typical_time(bases[plan]).value) for value, plan in plans.items()}
    if axis in OTHER_WORK:
        serial, text = "its own fastest serial run", ", ".join(f"{time} ({value})" for value, time in times.items())
    else:
        serial, text = "the fastest serial run at any of them", f"{next(iter(times.values()))}, the fastest serial run"
    bounds = ", ".join(dict.fromkeys(BOUND_NAMES[bound_of(model)] for model in models))
    caption = (
        f"Speedup with each value of {axis_label(axis)}, over {serial}; a panel for each model, in its fastest form. "
        f"Bars and bands: 95 % intervals. Grey marks or dotted lines: the bound of the panel's model ({bounds})."
    )
    facts = [sweep.problem_name(plan_id, axis), f"$T_1$ = {text}"]
    if in_rows := len(counts) < charts.FEWEST_PLACES:
        look = {"facts": [*facts, plural(max(counts), "thread")]}
        look["styles"] = {**model_styles(sweep.samples["model"]), BOUND: ModelStyle(GREY, "|", "none")}
    else:
        styles = dict(charts.REFERENCES)
        for number, value in enumerate(plans):
            color, line = COLORS[number % len(COLORS)], LINES[number % len(LINES)]
            styles[value] = ModelStyle(color, _MARKERS[number % len(_MARKERS)], line)
            styles[f"{BOUND}, {value}"] = ModelStyle(color, "", (0, (1, 2)))
        look = {"facts": facts, "styles": styles, "names": {f"{BOUND}, {value}": "" for value in plans} | tasks}
        label, marks = charts.thread_axis(sweep, counts)
        look |= {"x": label, "places": sweep.asked_threads(plan_id), "marks": marks}
    panels = []
    quantity = "speedup" if bases == own else "speedup, common $T_1$"  # over another serial run than in the tables
    for model, table in result.items():
        if in_rows:
            rows = table[table["threads"] == max(counts)]
            rows = value_rows(rows, "speedup", rows["option"].map(tasks))
        else:
            named = [f"{BOUND}, {v}" if m == BOUND else v for v, m in zip(table["option"], table["model"], strict=True)]
            ideal = reference_rows(charts.IDEAL, [1, *counts], [1, *counts])
            rows = pd.concat([ideal, value_rows(table.assign(model=named), "speedup")])
        panels.append(Panel(rows, quantity, model_label(model)))
    return Chart(panels, same_scale=True, caption=[caption], **look)
