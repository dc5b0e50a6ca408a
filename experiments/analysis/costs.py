"""One-time costs of a model, and after how many iterations they are earned back."""

from __future__ import annotations

import math
from functools import lru_cache

import pandas as pd

from .estimates import FASTER, SLOWER
from .names import base_model
from .speeds import better_forkjoin, judged
from .sweep import Point, Sweep


@lru_cache(maxsize=4)
def cost_table(sweep: Sweep) -> pd.DataFrame:
    """Return one-time costs, and after how many iterations they are earned back.

    Columns: plan_id, model, threads, prepare_s, record_s, close_s, first_replay_s (medians; NaN where a model has no
    such step), step_s, once_s = prepare + first iteration - a steady step, and break_even_tasks, break_even_forkjoin:
    the smallest number of iterations n with once + n * step <= that of eager `tasks` (of the better fork-join form)
    on the same threads; "never" if the step is slower, "undecided" if the step times do not differ clearly, "" where
    there is nothing to compare with.
    """
    rows = []
    for plan_id in sweep.plan_ids():
        of_plan = sweep.samples[sweep.samples["plan_id"] == plan_id]
        points = sweep.points_of(plan_id)
        once = {(m, t): _once(sweep, of_plan, (plan_id, m, t)) for m, t in points}
        for model, threads in points:
            here = of_plan[(of_plan["model"] == model) & (of_plan["threads"] == threads)]
            row = {"plan_id": plan_id, "model": model, "threads": threads}
            for column in ("prepare_s", "record_s", "close_s", "first_replay_s"):
                row[column] = _median(here, column)
            row["step_s"] = sweep.typical_time((plan_id, model, threads)).value
            row["once_s"] = once[model, threads]
            eager = [m for m, t in points if base_model(m) == "tasks" and t == threads]
            best_eager = min(eager, key=lambda m: sweep.typical_time((plan_id, m, threads)).value, default=None)
            join = better_forkjoin(sweep, plan_id, threads)
            for column, other in (("break_even_tasks", best_eager), ("break_even_forkjoin", join)):
                row[column] = ""
                if other and other != model and base_model(model) in ("taskgraph", "taskiter"):
                    row[column] = _break_even(sweep, plan_id, model, other, threads, once)
            rows.append(row)
    return pd.DataFrame(rows)


def _median(samples: pd.DataFrame, column: str) -> float:
    if column not in samples:
        return math.nan
    return float(pd.to_numeric(samples[column]).median())


def _once(sweep: Sweep, samples: pd.DataFrame, point: Point) -> float:
    here = samples[(samples["model"] == point[1]) & (samples["threads"] == point[2])]
    first, step = _median(here, "first_replay_s"), sweep.typical_time(point).value
    return _median(here, "prepare_s") + (max(0.0, first - step) if not math.isnan(first) else 0.0)


def _break_even(sweep: Sweep, plan_id: str, model: str, other: str, threads: int, once) -> int | str:
    mine, theirs = (plan_id, model, threads), (plan_id, other, threads)
    answer = judged(sweep, sweep.ratio(mine, theirs), mine, theirs)
    if answer == SLOWER:
        return "never"
    if answer != FASTER:
        return "undecided"
    gain = sweep.typical_time(theirs).value - sweep.typical_time(mine).value
    extra = once[model, threads] - once[other, threads]
    if math.isnan(extra) or gain <= 0:
        return "undecided"
    return max(1, math.ceil(extra / gain))
