"""Costs of a GPU's models besides their kernels: launches, idle time, one-time costs."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from .estimates import NOTHING
from .speeds import interval_columns
from .sweep import Sweep, kept


def gpu_names(sweep: Sweep) -> list[str]:
    """Return the names of the GPUs that samples came from."""
    return sorted({gpu["name"] for gpu in sweep.samples.get("gpu", ()) if isinstance(gpu, dict)})


@kept
def gpu_table(sweep: Sweep) -> pd.DataFrame:
    """Return a row for each plan and model of a GPU.

    Columns: plan_id, model, threads, vs_stream, vs_stream_low, vs_stream_high (time of gpu_stream over this model's;
    above 1: faster), overhead_s (a step of empty kernels), busy_s (kernels of a step, one after the other), idle_share
    (1 - busy / step, below 0 where kernels overlap), context_s, compilation_s, prepare_s. NaN: not measured, or not of
    the device alone: a model that computes on the host too is not idle while the device is.
    """
    rows = []
    for point in sweep.points():
        if not point.model.is_gpu:
            continue
        stream, samples = (point.plan_id, "gpu_stream", 1), sweep.samples_of(point)
        compared = stream in sweep.turns and point != stream
        profiles = list(sweep.gpu_profiles_of(point).values())
        mixed = point.model.model.mixes_devices
        costs = [gpu["costs_s"] for gpu in samples["gpu"] if gpu is not None]  # another program states none
        busy = _middle([row.busy_s for row in profiles])
        rows.append(
            {
                **point._asdict(),
                **interval_columns("vs_stream", sweep.ratio(stream, point) if compared else NOTHING),
                "overhead_s": _middle([row.runtime_cost_s for row in profiles]),
                "busy_s": busy,
                "idle_share": math.nan if mixed else 1 - busy / sweep.typical_time(point).value,
                **{f"{name}_s": _middle([each.get(name) for each in costs]) for name in ONCE},
                "prepare_s": _middle(samples["prepare_s"].tolist()),
            }
        )
    return pd.DataFrame(rows)


ONCE = ("context", "compilation")


def _middle(values) -> float:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return float(np.median(known)) if known else math.nan
