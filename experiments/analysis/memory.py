"""Peak memory of measuring processes, split into what the plan needs and the rest."""

from __future__ import annotations

import pandas as pd

from ..sampling.memory import KINDS
from .study import Study

REST = "libraries, Python and graph"


def memory_table(study: Study) -> pd.DataFrame:
    """Return the peak memory of each point.

    Columns: plan_id, model, threads, peak_bytes (median over the samples of the most memory that was resident in the
    process), the bytes of the plan's buffers by kind (the values of `KINDS`), and `REST`: the difference. Samples
    without that figure, as of older versions, give no row.
    """
    rows = []
    for plan_id in study.plan_ids() if "max_resident_bytes" in study.samples else ():
        of_plan = study.samples[study.samples["plan_id"] == plan_id]
        buffers: dict[str, int] = {}
        for role, size in study.plans[plan_id].get("memory_bytes", {}).items():
            buffers[KINDS[role]] = buffers.get(KINDS[role], 0) + size
        for model, threads in study.points_of(plan_id):
            here = of_plan[(of_plan["model"] == model) & (of_plan["threads"] == threads)]
            peak = here["max_resident_bytes"].median()
            if pd.notna(peak):
                point = {"plan_id": plan_id, "model": model, "threads": threads, "peak_bytes": float(peak)}
                rows.append({**point, **buffers, REST: float(peak) - sum(buffers.values())})
    return pd.DataFrame(rows)
