"""Hardware counters of the timed runs, by model and number of threads."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import pandas as pd

from .study import Study

COUNTERS = ("cycles", "instructions", "llc_misses")


@lru_cache(maxsize=4)
def counter_table(study: Study) -> pd.DataFrame:
    """Return counts of a step, medians over the samples, a row for each point that has any.

    Columns: plan_id, model, threads, each of `COUNTERS` (NaN where the machine has it not), and per_cycle, instructions
    a cycle.
    """
    rows: dict[tuple, list] = {}
    for row in study.samples.to_dict("records"):
        counts = row.get("counters")
        steps = sum(row.get("run_lengths") or ())
        if isinstance(counts, dict) and steps and any(counts.get(name) is not None for name in COUNTERS):
            each = [math.nan if counts.get(name) is None else counts[name] / steps for name in COUNTERS]
            rows.setdefault((row["plan_id"], row["model"], int(row["threads"])), []).append(each)
    found = []
    for (plan_id, model, threads), values in rows.items():
        middle = dict(zip(COUNTERS, np.median(values, axis=0).tolist(), strict=True))
        per_cycle = middle["instructions"] / middle["cycles"] if middle["cycles"] else math.nan
        found.append({"plan_id": plan_id, "model": model, "threads": threads, **middle, "per_cycle": per_cycle})
    return pd.DataFrame(found)


def counter_sentence(study: Study) -> str:
    """Say that counters are not available, or only in part, and why; empty if all are, or none were asked for."""
    if "counters" not in study.samples:
        return ""
    asked = [counts for counts in study.samples["counters"] if isinstance(counts, dict)]
    missing = [name for name in COUNTERS if asked and all(counts.get(name) is None for counts in asked)]
    if not missing:
        return ""
    reason = next((counts["error"] for counts in asked if counts.get("error")), "no reason given")
    return f"Hardware counters not available on this machine: {', '.join(missing)} ({reason})."
