"""Loss of each model to competing processes, beyond the CPU time that they take.

`interference = [0, 1, 2]` in a configuration measures each point with so many competing processes that spin, one on
each of the last CPUs. Such a hog takes its share of a CPU, as a rule half, in time slices of milliseconds. The rest is
measured with threads that only spin, one on each CPU, beside the same hogs: the capacity. A model that always had a
block to run in the CPU time it got would take 1 / capacity times as long; the time beyond that is its loss.
"""

from __future__ import annotations

import math

import pandas as pd

from .names import plan_beside
from .speeds import interval_columns
from .sweep import Sweep, kept


@kept
def interference_table(sweep: Sweep) -> pd.DataFrame:
    """Return a row for each model and number of hogs whose point was also measured without hogs.

    Columns: plan_id, threads, model, hogs, capacity (NaN where not measured), slowdown, slowdown_low, slowdown_high
    (step time over that without hogs, paired by repetition), loss, loss_low, loss_high (slowdown x capacity - 1).
    """
    capacity = sweep.machine.capacity_beside
    rows = []
    for plan_id, plan in sweep.plans.items():
        if plan.interference:
            continue
        for hogs in sorted({p.interference for p in sweep.plans.values()}):
            for model, threads in sweep.points_of(plan_id):
                alone, beside = (plan_id, model, threads), (plan_beside(plan_id, hogs), model, threads)
                if not set(sweep.step_times(*alone)) & set(sweep.step_times(*beside)):
                    continue
                left = capacity.get(str(threads), {}).get(str(hogs), math.nan) if hogs else 1.0
                slowdown = sweep.ratio(beside, alone)
                rows.append(
                    {
                        "plan_id": plan_id,
                        "threads": threads,
                        "model": model,
                        "hogs": hogs,
                        "capacity": left,
                        **interval_columns("slowdown", slowdown),
                        "loss": slowdown.value * left - 1,
                        "loss_low": slowdown.low * left - 1,
                        "loss_high": slowdown.high * left - 1,
                    }
                )
    table = pd.DataFrame(rows)
    return table[table.groupby("plan_id")["hogs"].transform("max") > 0] if len(table) else table
