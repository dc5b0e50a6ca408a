"""Contribution of each switch of the task models: creation x barrier x placement, as a factorial.

    creation   eager: tasks made anew each iteration; replayed: recorded once
    barrier    after each loop, after each iteration, none
    placement  stealing: deques; partitioned: a program compiled for each thread

Tasks that are made anew cannot be placed by a program compiled from them, so three of the twelve cells do not exist.
The attribution switches one factor after the other, from (eager, loop, stealing) to (replayed, none, partitioned), and
takes the mean over every order that exists (the Shapley value over these orders), so that its parts multiply up to the
whole.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import pandas as pd

from ..subjects.models import CREATIONS, PLACEMENTS, model_of_factors
from .speeds import interval_columns, is_usable, verdict_columns
from .sweep import Point, Sweep, kept

FACTORS = {"creation": CREATIONS, "barrier": ("loop", "iteration", "none"), "placement": PLACEMENTS}
WHOLE = "all three"
Cell = tuple[str, str, str]
FIRST: Cell = ("eager", "loop", "stealing")
LAST: Cell = ("replayed", "none", "partitioned")
EXISTING: tuple[Cell, ...] = tuple(
    cell for cell in itertools.product(*FACTORS.values()) if cell[0] == "replayed" or cell[2] == "stealing"
)


def attribution() -> dict[str, dict[Cell, float]]:
    """Return the part of each factor, and the whole, as weights of the cells' log times, which sum to zero."""
    places = {name: place for place, name in enumerate(FACTORS)}
    steps: dict[str, list[tuple[Cell, Cell]]] = {name: [] for name in FACTORS}
    for order in itertools.permutations(FACTORS):
        cell, path = FIRST, []
        for factor in order:
            after = tuple(LAST[i] if i == places[factor] else value for i, value in enumerate(cell))
            path.append((factor, after, cell))
            cell = after
        if all(after in EXISTING for _, after, _ in path):
            for factor, after, before in path:
                steps[factor].append((after, before))
    result: dict[str, dict[Cell, float]] = {}
    for name, pairs in {**steps, WHOLE: [(LAST, FIRST)]}.items():
        weights = result.setdefault(name, {})
        for sign, cell in ((s, c) for after, before in pairs for s, c in ((1, after), (-1, before))):
            weights[cell] = weights.get(cell, 0.0) + sign / len(pairs)
    return result


def _complete(sweep: Sweep) -> Iterator[tuple[str, int, dict[Cell, Point]]]:
    """Yield (plan_id, threads, points of the existing cells) where all cells have a repetition block in common."""
    for plan_id in sweep.plan_ids():
        for threads in sorted({threads for _, threads in sweep.points_of(plan_id)}):
            points = {cell: Point(plan_id, model_of_factors(*cell), threads) for cell in EXISTING}
            if sweep.times.generations(*points.values()):
                yield plan_id, threads, points


@kept
def factorial_table(sweep: Sweep) -> pd.DataFrame:
    """Return one row per cell.

    Columns: plan_id, threads, creation, barrier, placement, model, time_s, low_s, high_s, ratio, ratio_low,
    ratio_high (time over that of the first cell, paired by repetition).
    """
    rows = []
    for plan_id, threads, of_cell in _complete(sweep):
        for cell, point in of_cell.items():
            value = sweep.times.time(point)
            rows.append(
                {
                    "plan_id": plan_id,
                    "threads": threads,
                    **dict(zip(FACTORS, cell, strict=True)),
                    "model": point.model,
                    "time_s": value.value,
                    "low_s": value.low,
                    "high_s": value.high,
                    **interval_columns("ratio", sweep.times.ratio(point, of_cell[FIRST])),
                }
            )
    return pd.DataFrame(rows)


@kept
def effect_table(sweep: Sweep) -> pd.DataFrame:
    """Return the attribution as ratios of times, below 1 where the switch gains.

    Columns: plan_id, threads, effect, ratio, low, high, share (of the whole gain, in logarithms), verdict, lacks,
    usable (whether all of its cells are).
    """
    rows = []
    for plan_id, threads, of_cell in _complete(sweep):
        whole = math.log(sweep.times.ratio(of_cell[LAST], of_cell[FIRST]).value)
        for name, weights in attribution().items():
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

    parts = ", ".join(f"{name} {text(of[name])}" for name in FACTORS)
    return (
        f"From eager tasks with a barrier after each loop to a replayed, compiled graph without barriers the time of "
        f"a step on {threads} threads changes by a factor of {text(of[WHOLE])}; its parts, which multiply up to "
        f"it: {parts}."
    )
