"""The answer of a sweep over several plans, for readers who know none of its words: what its axes change."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..analysis import factorial
from ..analysis.gains import gain_table
from ..analysis.interference import interference_table, label_with_preemption
from ..analysis.names import INTERFERENCE, LOOP_MODELS, NETWORK, TASK_MODELS, axis_label, base_model, value_text
from ..analysis.speeds import PER, axis_values, leading_plans, main_plan
from ..analysis.statistics import FASTER, SLOWER, verdict
from ..analysis.study import Point, Study
from .columns import digits_of, number
from .words import axes_text, format_time

SIDES = (("fork-join", LOOP_MODELS), ("tasks", TASK_MODELS))
MOST_PROBLEMS = 3  # that are named one by one


def over_sweep(study: Study) -> list[str]:
    """Return sentences about all plans of a sweep; none for a single one."""
    plans = [plan_id for plan_id in study.plan_ids() if not study.records[plan_id][INTERFERENCE]]
    told = [*_gains(study, plans), *_promises(study), *_along(study), *_beside(study)]
    if switched := factorial.answer(study, main_plan(study)):
        told.append(switched)
    if causes := study.config.get("inject"):
        told.append(
            f"Each way was traced with causes of slow pieces that were injected: {', '.join(causes)}. Typical times do "
            "not show them; `forktask diagnose` on this folder names the cause of each."
        )
    if len(plans) < 2:
        return told
    return [f"All this is one of {len(plans)} plans that were measured: {_named(study, main_plan(study))}.", *told]


def _named(study: Study, plan_id: str) -> str:
    return axes_text(study, plan_id, but=(INTERFERENCE,))


def _points(study: Study, plan_id: str, models: Sequence[str]) -> list[Point]:
    """Return the points of a plan's models on the largest number of threads that any of them was measured on."""
    points = study.points_of(plan_id)
    threads = max((n for model, n in points if base_model(model) in models), default=0)
    return [(plan_id, model, n) for model, n in points if n == threads and base_model(model) in models]


def _gains(study: Study, plan_ids: Sequence[str]) -> list[str]:
    """Say over all plans what tasks in place of fork-join change."""
    ratios = {}
    for plan_id in plan_ids:
        joins, tasks = (_points(study, plan_id, models) for models in (("forkjoin",), TASK_MODELS))
        if joins and tasks and joins[0][2] == tasks[0][2] > 1:
            ratios[plan_id] = study.ratio_to_fastest(study.times.fastest(tasks), joins)
    if len(ratios) < 2:
        return []
    least, most = (choose(ratios, key=lambda plan_id: ratios[plan_id].value) for choose in (min, max))
    verdicts = [verdict(ratio) for ratio in ratios.values()]
    faster, slower = verdicts.count(FASTER), verdicts.count(SLOWER)
    known = f"more than chance in {faster + slower or 'none'} of {len(ratios)}"
    known += f" (faster in {faster}, slower in {slower})" * bool(faster + slower)
    low, high = (number(ratios[end].value, digits_of(ratios[end].value, 3)) for end in (least, most))
    return [
        f"The fastest task model takes {low} ({_named(study, least)}) to {high} times ({_named(study, most)}) as long "
        f"as the fastest fork-join; the difference is {known}."
    ]


def _promises(study: Study) -> list[str]:
    """Say over all plans what the bounds promise from fork-join to taskiter, and what was gained."""
    table = gain_table(study)
    table = table[table["threads"] == table["threads"].max()] if len(table) else table
    if len(table) < 2:
        return []
    promised, gained = (f"{table[name].min():.2f} to {table[name].max():.2f}" for name in ("promised", "gained"))
    return [
        f"The durations of the pieces alone promise that taskiter is {promised} times as fast as fork-join "
        f"placed at best; measured were {gained} times as fast."
    ]


def _along(study: Study) -> list[str]:
    """Say for each axis with which of its values a step, sample or token takes least and most, all else equal."""
    told = []
    leading = [plan_id for plan_id in leading_plans(study) if not study.records[plan_id][INTERFERENCE]]
    for axis in (axis for axis in study.axes if axis not in (NETWORK, INTERFERENCE, "phase")):
        for plan_id in leading if len(leading) <= MOST_PROBLEMS else leading[:1]:
            times = {side: _fastest(study, study.siblings(plan_id, axis), axis, models) for side, models in SIDES}
            sides = [f"{_range(found)} with {side}" for side, found in times.items() if len(found) > 1]
            if sides:
                of = f" of {study.records[plan_id][NETWORK]}" if len(leading) > 1 else ""
                others = [name for name in study.axes if name not in (axis, NETWORK, INTERFERENCE)]
                equal = ", ".join(f"{axis_label(name)} {value_text(study.records[plan_id][name])}" for name in others)
                where = f" ({equal})" if equal else ""
                unit = PER.get(axis, "step")
                told.append(f"Along {axis_label(axis)}{where} a {unit}{of} takes {' and '.join(sides)}.")
    return told


def _range(times: Mapping[Any, float]) -> str:
    """Return the least and the greatest time, with their values of an axis."""
    ends = (choose(times.items(), key=lambda item: item[1]) for choose in (min, max))
    return " to ".join(f"{format_time(seconds)} ({value_text(value)})" for value, seconds in ends)


def _fastest(study: Study, plans: Sequence[str], axis: str, models: Sequence[str]) -> dict[Any, float]:
    """Return the typical time of the fastest of some models with each value of an axis, of a sample or token where the
    work grows along the axis."""
    found = {}
    of_value = {study.records[plan][axis]: plan for plan in plans}
    for value in axis_values(study, plans, axis):
        points = _points(study, of_value[value], models)
        if points:
            found[value] = study.typical_time(study.times.fastest(points)).value / (value if axis in PER else 1)
    return found


def _beside(study: Study) -> list[str]:
    """Say how long steps take beside most spinning processes, under the model that loses least and most."""
    table = interference_table(study)
    table = table[table["plan_id"] == main_plan(study)] if len(table) else table
    if not len(table):
        return []
    table = table[(table["hogs"] == table["hogs"].max()) & (table["threads"] == table["threads"].max())]
    least, most = (table.loc[at] for at in (table["slowdown"].idxmin(), table["slowdown"].idxmax()))
    hogs, left, threads = int(least["hogs"]), least["capacity"], int(least["threads"])
    leave = f", which leave{'s' * (hogs == 1)} {left:.0%} of the CPU time," if math.isfinite(left) else ""
    return [
        f"Beside {hogs} spinning process{'es' * (hogs > 1)}{leave} a step on {threads} threads takes "
        f"{least['slowdown']:.2f} ({label_with_preemption(least['model'])}) to {most['slowdown']:.2f} times "
        f"({label_with_preemption(most['model'])}) as long as without."
    ]
