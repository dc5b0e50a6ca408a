"""The table of a sweep with GPU models: step times, launch overhead, idle share, one-time costs.

CPU and GPU sum in other orders, so that their weights agree within rounding only; a `Study` compares bits and refuses
such a folder.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ...cython_src.errors import UsageError
from ..sampling.models import parse_model
from ..sampling.results import Results
from .answers import LOSS_TOLERANCES, disagreement
from .statistics import ratio_interval, spread

EPOCH_IMAGES = 50_000
COLUMNS = (
    "network",
    "batch",
    "model",
    "threads",
    "samples",
    "step_time_s",
    "iqr_s",
    "epoch_s",
    "vs_forkjoin",
    "vs_forkjoin_low",
    "vs_forkjoin_high",
    "vs_stream",
    "vs_stream_low",
    "vs_stream_high",
    "overhead_s",
    "busy_s",
    "idle_share",
    "context_s",
    "compilation_s",
    "prepare_s",
    "first_replay_s",
)


def gpu_table(results: Results) -> list[dict[str, Any]]:
    """Return a row for each plan, model and thread count.

    Returns
    -------
    list of dict
        `COLUMNS`; vs_...: time of gpu_forkjoin or gpu_stream over this model's (above 1: faster); overhead_s: a step
        of empty kernels; busy_s: kernels of a step, one after the other; idle_share: 1 - busy / step, below 0 where
        kernels overlap. Values that were not measured are None.

    Raises
    ------
    UsageError
        Answers of two models for one plan differ by more than rounding: then no time is reported.
    """
    plans = {row["plan_id"]: row for row in results.of_kind("plan")}
    samples: dict[tuple[str, str, int], dict[int, Mapping]] = {}
    for row in results.of_kind("sample"):
        samples.setdefault((row["plan_id"], row["model"], row["threads"]), {})[row["repetition"]] = row
    profiles = {(row["plan_id"], row["model"], row["threads"]): row for row in results.of_kind("profile")}
    _check_answers(samples)
    table = []
    for (plan_id, model, threads), rows in samples.items():
        times = {r: row["step_time_s"] for r, row in rows.items()}
        middle, first = spread(list(times.values())), next(iter(rows.values()))
        entry: dict[str, Any] = dict.fromkeys(COLUMNS)
        batch = plans[plan_id]["options"]["batch"]
        entry |= {
            "network": plans[plan_id]["network"],
            "batch": batch,
            "model": model,
            "threads": threads,
            "samples": middle.count,
            "step_time_s": middle.median,
            "iqr_s": middle.iqr,
            "epoch_s": middle.median * EPOCH_IMAGES / batch,
            "prepare_s": spread([row["prepare_s"] for row in rows.values()]).median,
            "first_replay_s": spread([row["first_replay_s"] for row in rows.values()]).median,
        }
        for name in ("forkjoin", "stream"):
            reference = samples.get((plan_id, f"gpu_{name}", 1))
            if reference and model != f"gpu_{name}":
                ratio = ratio_interval({r: row["step_time_s"] for r, row in reference.items()}, times)
                numbers = (ratio.value, ratio.low, ratio.high)
                for suffix, number in zip(("", "_low", "_high"), numbers, strict=True):
                    entry[f"vs_{name}{suffix}"] = None if math.isnan(number) else number
        if first.get("gpu"):
            costs = [row["gpu"]["costs_s"] for row in rows.values()]
            for name in ("context", "compilation"):
                if all(name in cost for cost in costs):
                    entry[f"{name}_s"] = spread([cost[name] for cost in costs]).median
            profile = profiles.get((plan_id, model, threads))
            if profile is not None:
                entry |= {
                    "overhead_s": profile["runtime_cost_s"],
                    "busy_s": profile["busy_s"],
                    "idle_share": 1 - profile["busy_s"] / middle.median,
                }
        table.append(entry)
    table.sort(key=lambda e: (e["network"], e["batch"], parse_model(e["model"]).model.device, e["model"], e["threads"]))
    return table


def _check_answers(samples: Mapping[tuple[str, str, int], Mapping[int, Mapping]]) -> None:
    """Check that devices agree within rounding; each device's models were compared bit for bit when measured."""
    first: dict[str, tuple[str, list[float]]] = {}
    for (plan_id, model, _), rows in samples.items():
        for row in rows.values():
            name, answer = first.setdefault(plan_id, (model, row["answer"]))
            count = len(LOSS_TOLERANCES)
            if wrong := disagreement(answer[:count], row["answer"][:count]):
                raise UsageError(
                    f"answers must agree before times are compared, but beside {name}'s that of {model} {wrong}; "
                    f"this is a fault of the program"
                )
