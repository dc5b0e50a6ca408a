"""Contribution of each switch of the task models: creation x barrier x placement x order, as a factorial.

    creation   eager: tasks made anew each iteration; replayed: recorded once
    barrier    after each loop, after each iteration, none
    placement  stealing: deques; partitioned: a program compiled for each thread
    order      newest: the ready block whose data were written last; auto: the longest path to the end of the next
               iteration where a simulated run is shorter then, which programs alone do

Tasks that are made anew cannot be placed by a program compiled from them, and deques take the newest, so twelve of the
24 cells exist. Without those of `order` it is a factorial of three switches. The attribution switches one factor after
the other, from the first value of each to the last, and takes the mean over every order that exists (the Shapley value
over these orders), so that its parts multiply up to the whole.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import pandas as pd

from ..subjects.models import CREATIONS, PLACEMENTS, ModelSpec, model_of_factors, parse_model
from .speeds import interval_columns, is_usable, verdict_columns
from .sweep import Point, Sweep, kept

FACTORS = {
    "creation": CREATIONS,
    "barrier": ("loop", "iteration", "none"),
    "placement": PLACEMENTS,
    "order": ("newest", "auto"),
}
WHOLE = "all"
Cell = tuple[str, ...]  # values of the first three factors, or of all
FACTORIALS = (tuple(FACTORS), tuple(FACTORS)[:3])  # the larger one first


def ends_of(names: Sequence[str]) -> tuple[Cell, Cell]:
    """Return the cells from which and to which all factors are switched."""
    return tuple(FACTORS[name][0] for name in names), tuple(FACTORS[name][-1] for name in names)


def cells_of(names: Sequence[str]) -> dict[Cell, ModelSpec]:
    """Return the model of each cell that exists."""
    result = {}
    for cell in itertools.product(*(FACTORS[name] for name in names)):
        creation, barrier, placement, *order = cell
        if placement == "stealing" and order != ["auto"]:
            result[cell] = model_of_factors(creation, barrier, placement)
        elif placement != "stealing" and creation != "eager":
            spec = model_of_factors(creation, barrier, placement)
            result[cell] = parse_model(f"{spec}:priority=newest") if order == ["newest"] else spec
    return result


def attribution(names: Sequence[str]) -> dict[str, dict[Cell, float]]:
    """Return the part of each factor, and the whole, as weights of the cells' log times, which sum to zero."""
    (first, last), existing = ends_of(names), cells_of(names)
    steps: dict[str, list[tuple[Cell, Cell]]] = {name: [] for name in names}
    for order in itertools.permutations(names):
        cell, path = first, []
        for factor in order:
            place = names.index(factor)
            after = (*cell[:place], last[place], *cell[place + 1 :])
            path.append((factor, after, cell))
            cell = after
        if all(after in existing for _, after, _ in path):
            for factor, after, before in path:
                steps[factor].append((after, before))
    result: dict[str, dict[Cell, float]] = {}
    for name, pairs in {**steps, WHOLE: [(last, first)]}.items():
        weights = result.setdefault(name, {})
        for sign, cell in ((s, c) for after, before in pairs for s, c in ((1, after), (-1, before))):
            weights[cell] = weights.get(cell, 0.0) + sign / len(pairs)
    return result


def _complete(sweep: Sweep) -> Iterator[tuple[str, int, Sequence[str], dict[Cell, Point]]]:
    """Yield (plan_id, threads, factors, points of the existing cells) where all cells of these factors have a
    repetition block in common; the factorial of more factors if there are two."""
    for plan_id in sweep.plan_ids():
        for threads in sorted({threads for _, threads in sweep.points_of(plan_id)}):
            for names in FACTORIALS:
                points = {cell: Point(plan_id, model, threads) for cell, model in cells_of(names).items()}
                if sweep.times.generations(*points.values()):
                    yield plan_id, threads, names, points
                    break


@kept
def factorial_table(sweep: Sweep) -> pd.DataFrame:
    """Return one row per cell.

    Columns: plan_id, threads, creation, barrier, placement, order (empty where it is no factor), model, time_s, low_s,
    high_s, ratio, ratio_low, ratio_high (time over that of the first cell, paired by repetition).
    """
    rows = []
    for plan_id, threads, names, of_cell in _complete(sweep):
        first, _ = ends_of(names)
        for cell, point in of_cell.items():
            value = sweep.times.time(point)
            about = {"plan_id": plan_id, "threads": threads, **dict(itertools.zip_longest(FACTORS, cell, fillvalue=""))}
            times = {"time_s": value.value, "low_s": value.low, "high_s": value.high}
            ratio = interval_columns("ratio", sweep.times.ratio(point, of_cell[first]))
            rows.append({**about, "model": point.model, **times, **ratio})
    return pd.DataFrame(rows)


@kept
def effect_table(sweep: Sweep) -> pd.DataFrame:
    """Return the attribution as ratios of times, below 1 where the switch gains.

    Columns: plan_id, threads, effect, ratio, low, high, share (of the whole gain, in logarithms), verdict, lacks,
    usable (whether all of its cells are).
    """
    rows = []
    for plan_id, threads, names, of_cell in _complete(sweep):
        first, last = ends_of(names)
        whole = math.log(sweep.times.ratio(of_cell[last], of_cell[first]).value)
        for name, weights in attribution(names).items():
            of_point = {of_cell[cell]: weight for cell, weight in weights.items() if weight}
            estimate = sweep.times.contrast(of_point)
            rows.append(
                {
                    "plan_id": plan_id,
                    "threads": threads,
                    "effect": name,
                    "ratio": estimate.value,
                    "low": estimate.low,
                    "high": estimate.high,
                    "share": math.log(estimate.value) / whole if whole else math.nan,
                    **verdict_columns(sweep, estimate, *of_point),
                    "usable": all(is_usable(sweep, point) for point in of_point),
                }
            )
    return pd.DataFrame(rows)


def answer(sweep: Sweep, plan_id: str) -> str:
    """State the attribution in one sentence for the most threads; empty if the factorial was not measured."""
    effects = effect_table(sweep)
    if not len(effects) or plan_id not in set(effects["plan_id"]):
        return ""
    effects = effects[effects["plan_id"] == plan_id]
    threads = effects["threads"].max()
    of = {row["effect"]: row for row in effects[effects["threads"] == threads].to_dict("records")}

    def text(row):
        interval = f" [{row['low']:.3f}, {row['high']:.3f}]" if math.isfinite(row["low"]) else ""
        return f"{row['ratio']:.3f}{interval}"

    parts = ", ".join(f"{name} {text(of[name])}" for name in FACTORS if name in of)
    return (
        f"From eager tasks with a barrier after each loop to a replayed, compiled graph without barriers the time of "
        f"a step on {threads} threads changes by a factor of {text(of[WHOLE])}; its parts, which multiply up to "
        f"it: {parts}."
    )
