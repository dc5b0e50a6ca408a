"""The gain of tasks without barriers over fork-join: as the bounds promise it, and as measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import pandas as pd

from ..bounds.bounds import predicted_times
from .estimates import Estimate, estimate
from .limits import Profile, bound_table, serial_profiles
from .names import base_model
from .speeds import better_forkjoin, interval_columns
from .sweep import Sweep


@lru_cache(maxsize=4)
def gain_table(sweep: Sweep) -> pd.DataFrame:
    """Return promised and measured gains of `taskiter`, a row for each plan and number of threads above one.

    Columns: plan_id, threads, model (the fastest form of taskiter), reference (the better form of fork-join), promised
    (_low, _high) = fork-join bound / max(area, cycle mean), from serial block durations; gained (_low, _high) = time of
    fork-join / time of taskiter. A gain above the promise means that fork-join stays further above its bound.
    """
    limits, rows = bound_table(sweep), []
    for bound in limits.to_dict("records"):
        plan_id, threads = bound["plan_id"], int(bound["threads"])
        forms = [m for m, n in sweep.points_of(plan_id) if n == threads and base_model(m) == "taskiter"]
        join = better_forkjoin(sweep, plan_id, threads)
        if threads < 2 or not forms or join is None or not math.isfinite(bound["taskiter_s"]):
            continue
        model = min(forms, key=lambda m: sweep.typical_time((plan_id, m, threads)).value)
        promised = promise(serial_profiles(sweep, plan_id), threads, sweep.capacity(threads))
        rows.append(
            {
                "plan_id": plan_id,
                "threads": threads,
                "model": model,
                "reference": join,
                **interval_columns("promised", promised),
                **interval_columns("gained", sweep.ratio((plan_id, join, threads), (plan_id, model, threads))),
            }
        )
    return pd.DataFrame(rows)


def promise(profiles: Sequence[Profile], threads: int, capacity: Estimate) -> Estimate:
    """Return the fork-join bound over max(area, cycle mean), of the same blocks on the same threads.

    Both bounds hold at one capacity and are parts of one serial time, so the quotient is taken at each capacity and in
    each profile: dividing the interval of one bound by that of the other would count the capacity's interval and the
    serial time's twice. With the capacity the quotient rises while the area binds `taskiter`, and falls once the cycle
    mean does: where that changes is looked at beside the ends of the capacity's interval.
    """
    capacities = [capacity.value]
    if math.isfinite(capacity.low):
        turns = [sum(map(sum, loops)) / graph.cycle_mean_s for loops, graph in profiles if graph and graph.cycle_mean_s]
        capacities += [capacity.low, capacity.high, *(c for c in turns if capacity.low < c < capacity.high)]
    found = []
    for c in capacities:
        times = [predicted_times(loops, threads, c, graph) for loops, graph in profiles]
        found.append(estimate(t["forkjoin"] / t["taskiter"] for t in times))
    known = [v for e in found for v in (e.value, e.low, e.high) if math.isfinite(v)]
    low, high = (min(known), max(known)) if len(known) > 1 else (math.nan, math.nan)
    return Estimate(found[0].value, low, high, found[0].count)
