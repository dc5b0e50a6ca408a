"""What the bounds promise that tasks without barriers can gain over fork-join, beside what they gain."""

from __future__ import annotations

import math
from functools import lru_cache

import pandas as pd

from .limits import bound_table
from .names import base_model
from .speeds import better_forkjoin, estimate_of, interval_columns
from .study import Study


@lru_cache(maxsize=4)
def gain_table(study: Study) -> pd.DataFrame:
    """Return promised and measured gains of `taskiter`, a row for each plan and number of threads above one.

    Columns: plan_id, threads, model (the fastest form of taskiter), reference (the better form of fork-join), promised
    (_low, _high) = fork-join bound / max(area, cycle mean), from serial block durations; gained (_low, _high) = time of
    fork-join / time of taskiter. A gain above the promise means that fork-join stays further above its bound.
    """
    limits, rows = bound_table(study), []
    for bound in limits.to_dict("records"):
        plan_id, threads = bound["plan_id"], int(bound["threads"])
        forms = [m for m, n in study.points_of(plan_id) if n == threads and base_model(m) == "taskiter"]
        join = better_forkjoin(study, plan_id, threads)
        if threads < 2 or not forms or join is None or not math.isfinite(bound["taskiter_s"]):
            continue
        model = min(forms, key=lambda m: study.typical_time((plan_id, m, threads)).value)
        joined, cyclic = (estimate_of(bound, f"{name}_s") for name in ("forkjoin", "taskiter"))
        rows.append(
            {
                "plan_id": plan_id,
                "threads": threads,
                "model": model,
                "reference": join,
                **interval_columns("promised", joined.over(cyclic)),
                **interval_columns("gained", study.ratio((plan_id, join, threads), (plan_id, model, threads))),
            }
        )
    return pd.DataFrame(rows)
