"""Contribution of each switch of the task models: creation x barrier x placement, as a factorial.

    creation   eager: tasks made anew each iteration; replayed: recorded once
    barrier    after each loop, after each iteration, none
    placement  stealing: deques; partitioned: a program compiled for each thread

Tasks that are made anew cannot be placed by a program compiled from them, so three of the twelve cells do not exist.
All effects are contrasts of the times of `Sweep`, so that effects and cells agree to the last digit: the effect of a
switch between two cells has the value and the interval of these cells' ratio. The attribution switches one factor after
the other, from (eager, loop, stealing) to (replayed, none, partitioned), and takes the mean over every order that
exists (the Shapley value over these orders), so that its parts multiply up to the whole.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import pandas as pd

from ..subjects.models import CREATIONS, PLACEMENTS, model_of_factors
from .estimates import NOTHING
from .speeds import interval_columns, is_usable, verdict_columns
from .sweep import Point, Sweep, kept

FACTORS = {"creation": CREATIONS, "barrier": ("loop", "iteration", "none"), "placement": PLACEMENTS}
IMPOSSIBLE = "cannot exist: a program needs a graph that was recorded"
Cell = tuple[str, str, str]
FIRST: Cell = ("eager", "loop", "stealing")
LAST: Cell = ("replayed", "none", "partitioned")
CELLS: tuple[Cell, ...] = tuple(itertools.product(*FACTORS.values()))
EXISTING: tuple[Cell, ...] = tuple(cell for cell in CELLS if cell[0] == "replayed" or cell[2] == "stealing")


def contrasts() -> dict[tuple[str, str], dict[Cell, float]]:
    """Return each effect as weights of the cells' log times: {(kind, name): {cell: weight}}; weights sum to zero."""
    result: dict[tuple[str, str], dict[Cell, float]] = {}

    def mean(kind, name, pairs):
        weights: dict[Cell, float] = {}
        for sign, cell in ((s, c) for after, before in pairs for s, c in ((1, after), (-1, before))):
            weights[cell] = weights.get(cell, 0.0) + sign / len(pairs)
        result[kind, name] = weights

    for factor, levels in FACTORS.items():
        place = [*FACTORS].index(factor)
        for before, after in itertools.pairwise(levels):
            cells = [cell for cell in EXISTING if cell[place] == before]
            both = [((*cell[:place], after, *cell[place + 1 :]), cell) for cell in cells]
            pairs = [pair for pair in both if pair[0] in EXISTING]
            mean("main effect", f"{factor}: {before} to {after}", pairs)
    for name, a, b in (
        ("creation x barrier", ("eager", "stealing"), ("replayed", "stealing")),
        ("barrier x placement", ("replayed", "stealing"), ("replayed", "partitioned")),
    ):
        # The weights give the second factor's effect without barriers over its effect with a barrier after each loop.
        signs = {(b, "none"): 1, (a, "none"): -1, (b, "loop"): -1, (a, "loop"): 1}
        result["interaction", name] = {(kind[0], bar, kind[1]): sign for (kind, bar), sign in signs.items()}

    steps: list[list[tuple[Cell, Cell]]] = [[], [], []]
    for order in itertools.permutations(range(3)):
        cell, path = FIRST, []
        for factor in order:
            after = tuple(LAST[i] if i == factor else value for i, value in enumerate(cell))
            path.append((factor, after, cell))
            cell = after
        if all(after in EXISTING for _, after, _ in path):
            for factor, after, before in path:
                steps[factor].append((after, before))
    for name, pairs in zip(FACTORS, steps, strict=True):
        mean("attribution", name, pairs)
    mean("attribution", "all three", [(LAST, FIRST)])
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
    """Return one row per cell, also for those that cannot exist.

    Columns: plan_id, threads, creation, barrier, placement, model, time_s, low_s, high_s, ratio, ratio_low,
    ratio_high (time over that of the first cell, paired by repetition), note.
    """
    rows = []
    for plan_id, threads, of_cell in _complete(sweep):
        for cell in CELLS:
            point = of_cell.get(cell)
            value = sweep.times.time(point) if point else NOTHING
            rows.append(
                {
                    "plan_id": plan_id,
                    "threads": threads,
                    **dict(zip(FACTORS, cell, strict=True)),
                    "model": point.model if point else "",
                    "time_s": value.value,
                    "low_s": value.low,
                    "high_s": value.high,
                    **interval_columns("ratio", sweep.times.ratio(point, of_cell[FIRST]) if point else NOTHING),
                    "note": "" if point else IMPOSSIBLE,
                }
            )
    return pd.DataFrame(rows)


@kept
def effect_table(sweep: Sweep) -> pd.DataFrame:
    """Return effects as ratios of times, below 1 where the switch gains.

    Columns: plan_id, threads, kind ("main effect", "interaction", "attribution"), effect, ratio, low, high, share (of
    the whole gain, in logarithms; NaN but for attributions), verdict, usable (whether all of its cells are), note.
    """
    effects = contrasts() | {("interaction", "creation x placement"): {}}
    rows = []
    for plan_id, threads, of_cell in _complete(sweep):
        whole = math.log(sweep.times.ratio(of_cell[LAST], of_cell[FIRST]).value)
        for kind, name in sorted(effects, key=lambda effect: KINDS.index(effect[0])):
            of_point = {of_cell[cell]: weight for cell, weight in effects[kind, name].items() if weight}
            estimate = sweep.times.contrast(of_point) if of_point else NOTHING
            rows.append(
                {
                    "plan_id": plan_id,
                    "threads": threads,
                    "kind": kind,
                    "effect": name,
                    "ratio": estimate.value,
                    "low": estimate.low,
                    "high": estimate.high,
                    "share": math.log(estimate.value) / whole if kind == "attribution" and whole else math.nan,
                    **verdict_columns(sweep, estimate, *of_point),
                    "usable": all(is_usable(sweep, point) for point in of_point),
                    "note": "" if of_point else "cannot be told: eager x partitioned cannot exist",
                }
            )
    return pd.DataFrame(rows)


KINDS = ("attribution", "main effect", "interaction")


def answer(sweep: Sweep, plan_id: str) -> str:
    """State the attribution in one sentence for the most threads; empty if the factorial was not measured."""
    effects = effect_table(sweep)
    if not len(effects) or plan_id not in set(effects["plan_id"]):
        return ""
    effects = effects[(effects["plan_id"] == plan_id) & (effects["kind"] == "attribution")]
    threads = effects["threads"].max()
    of = {row["effect"]: row for row in effects[effects["threads"] == threads].to_dict("records")}

    def text(row):
        interval = f" [{row['low']:.3f}, {row['high']:.3f}]" if math.isfinite(row["low"]) else ""
        return f"{row['ratio']:.3f}{interval}"

    parts = ", ".join(f"{name} {text(of[name])}" for name in FACTORS)
    return (
        f"From eager tasks with a barrier after each loop to a replayed, compiled graph without barriers the time of "
        f"a step on {threads} threads changes by a factor of {text(of['all three'])}; its parts, which multiply up to "
        f"it: {parts}."
    )
