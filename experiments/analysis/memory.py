"""Peak memory of measuring processes, split into what the plan needs and the rest."""

from __future__ import annotations

import pandas as pd

from ..subjects.memory import GRAPH, KINDS
from .sweep import Sweep, kept

LIBRARIES = "Python and libraries"
REST = "rest"
# Parts of a process's memory besides the buffers -> their fields in samples.
_FIELDS = {LIBRARIES: "libraries_bytes", GRAPH: "graph_bytes"}


@kept
def memory_table(sweep: Sweep) -> pd.DataFrame:
    """Return the peak memory of each point.

    Columns: plan_id, model, threads, peak_bytes (median over the samples of the most memory that was resident in the
    process), planned_bytes (all but the rest, below), the bytes of the plan's buffers by kind (the values of `KINDS`),
    `LIBRARIES`: what was resident before the plan was made, `GRAPH`: about what plan and task graph take, and `REST`:
    the difference, none where planned buffers were never touched, and so are not resident.
    """
    rows = []
    for point in sweep.points():
        here, parts = sweep.samples_of(point), {}
        for role, size in sweep.plans[point.plan_id].memory_bytes.items():
            parts[KINDS[role]] = parts.get(KINDS[role], 0) + size
        parts |= {part: float(here[field].median()) for part, field in _FIELDS.items()}
        peak, planned = float(here["max_resident_bytes"].median()), sum(parts.values())
        parts |= {REST: max(peak - planned, 0.0)}
        rows.append({**point._asdict(), "peak_bytes": peak, "planned_bytes": planned, **parts})
    return pd.DataFrame(rows)
