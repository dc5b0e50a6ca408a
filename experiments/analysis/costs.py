"""One-time costs of a model, and after how many iterations they are earned back."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pandas as pd

from .estimates import exceeds
from .speeds import better_forkjoin, is_usable
from .sweep import Point, Sweep, kept

ONCE = ("prepare_s", "record_s", "close_s", "first_replay_s")


@kept
def cost_table(sweep: Sweep) -> pd.DataFrame:
    """Return one-time costs, and after how many iterations they are earned back.

    Columns: plan_id, model, threads, prepare_s, record_s, close_s, first_replay_s (medians; NaN where a model has no
    such step), step_s, once_s = prepare + first iteration - a steady step, and break_even_tasks, break_even_forkjoin:
    the smallest number of iterations n with once + n * step <= that of eager `tasks` (of the better fork-join form)
    on the same threads; "never" if the step is slower, "undecided" if the step times do not differ clearly, "" where
    there is nothing to compare with.
    """
    rows = []
    once = {point: _once(sweep, point) for point in sweep.points()}
    for point in once:
        row = point._asdict() | {column: _median(sweep, point, column) for column in ONCE}
        row |= {"step_s": sweep.typical_time(point).value, "once_s": once[point]}
        beside = [other for other in once if (other.plan_id, other.threads) == (point.plan_id, point.threads)]
        eager = [other for other in beside if other.model.name == "tasks"]
        best_eager = min(eager, key=lambda other: sweep.typical_time(other).value, default=None)
        join = better_forkjoin(sweep, point.plan_id, point.threads)
        for column, other in (("tasks", best_eager), ("forkjoin", join and point._replace(model=join))):
            compared = other and other != point and point.model.name in ("taskgraph", "taskiter")
            row[f"break_even_{column}"] = _break_even(sweep, point, other, once) if compared else ""
        rows.append(row)
    return pd.DataFrame(rows)


def _median(sweep: Sweep, point: Point, column: str) -> float:
    return float(pd.to_numeric(sweep.samples_of(point)[column]).median())


def _once(sweep: Sweep, point: Point) -> float:
    first, step = _median(sweep, point, "first_replay_s"), sweep.typical_time(point).value
    return _median(sweep, point, "prepare_s") + (max(0.0, first - step) if not math.isnan(first) else 0.0)


def _break_even(sweep: Sweep, mine: Point, theirs: Point, once: Mapping[Point, float]) -> int | str:
    slower = exceeds(sweep.ratio(mine, theirs), 1.0)
    if slower is None or not (is_usable(sweep, mine) and is_usable(sweep, theirs)):
        return "undecided"
    if slower:
        return "never"
    gain = sweep.typical_time(theirs).value - sweep.typical_time(mine).value
    extra = once[mine] - once[theirs]
    if math.isnan(extra) or gain <= 0:
        return "undecided"
    return max(1, math.ceil(extra / gain))
