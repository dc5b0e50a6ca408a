"""What each model loses where other processes want the same cores, beyond the cores that they take.

`interference = [0, 1, 2]` in a configuration measures each point beside so many spinning processes, one on each of the last
CPUs. Such a hog takes its share of a CPU, as a rule half, in time slices of milliseconds. What is left is measured with
threads that only spin, one on each CPU, beside the same hogs: the capacity. A model that always had something to run on the
CPU time it got would take 1 / capacity times as long; what it takes longer than that is its loss.
"""

from __future__ import annotations

import math
from functools import lru_cache

import pandas as pd

from .statistics import Estimate, ratio_interval
from .study import Study, plan_beside


@lru_cache(maxsize=4)
def interference_table(study: Study) -> pd.DataFrame:
    """One row for each model and number of hogs, where the same point was measured without any.

    Columns: plan_id, threads, model, hogs, capacity (NaN where not measured), slowdown, slowdown_low, slowdown_high (step time
    over that without hogs, paired by repetition), loss, loss_low, loss_high (slowdown x capacity - 1).
    """
    capacity = study.machine.get("capacity_beside") or {}
    rows = []
    for plan_id, plan in study.plans.items():
        if plan.get("interference"):
            continue
        for hogs in sorted({p.get("interference", 0) for p in study.plans.values()}):
            for model, threads in study.points_of(plan_id):
                alone = study.step_times(plan_id, model, threads)
                beside = study.step_times(plan_beside(plan_id, hogs), model, threads)
                left = float((capacity.get(str(threads)) or {}).get(str(hogs), math.nan)) if hogs else 1.0
                slowdown = ratio_interval(beside, alone) if hogs else Estimate(1.0, 1.0, 1.0, len(alone))
                if not (set(alone) & set(beside)):
                    continue
                rows.append(
                    {
                        "plan_id": plan_id,
                        "threads": threads,
                        "model": model,
                        "hogs": hogs,
                        "capacity": left,
                        "slowdown": slowdown.value,
                        "slowdown_low": slowdown.low,
                        "slowdown_high": slowdown.high,
                        "loss": slowdown.value * left - 1,
                        "loss_low": slowdown.low * left - 1,
                        "loss_high": slowdown.high * left - 1,
                    }
                )
    table = pd.DataFrame(rows)
    return table[table.groupby("plan_id")["hogs"].transform("max") > 0] if len(table) else table
