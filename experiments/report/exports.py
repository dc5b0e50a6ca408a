"""Results in the formats of other tools: CSV, dashboards of continuous benchmarks."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from ...cython_src.errors import UsageError
from ..analysis.load import load
from ..analysis.speeds import is_usable
from ..analysis.sweep import Sweep, chosen
from ..results.files import write_atomically, write_table
from ..tables.numbers import interval, plural
from .sections import speed_rows

EXPORT_FOLDER = "exports"


def sample_frame(sweep: Sweep) -> pd.DataFrame:
    """Return the raw samples, a row each: whether their point is usable, the plan's options, then the scalar fields of
    the sample."""
    rows = []
    for row in sweep.samples.to_dict("records"):
        if not sweep.shows(row["model"]):
            continue
        usable = is_usable(sweep, (row["plan_id"], row["model"], row["threads"]))
        record = sweep.records[row["plan_id"]]
        options = {name: str(value) if isinstance(value, (tuple, list)) else value for name, value in record.items()}
        scalars = {name: value for name, value in row.items() if not isinstance(value, (list, dict, tuple, set))}
        rows.append({"usable": usable, **options, **scalars, "model": str(row["model"])})
    return pd.DataFrame(rows)


def _benchmarks(sweep: Sweep) -> dict[str, dict[str, Any]]:
    """Return the row of `speed_table` of each usable point by the name of its benchmark, which stays where a later
    commit cuts a plan into other blocks."""
    result = {}
    for plan_id in sweep.plan_ids():
        cut = [f"granularity {sweep.records[plan_id]['granularity']}"] if "granularity" in sweep.axes else []
        for row in speed_rows(sweep, plan_id):
            name = [sweep.label(row["model"]), plural(row["threads"], "thread"), sweep.problem_name(plan_id), *cut]
            if row["usable"] and math.isfinite(row["time_s"]):
                result[", ".join(name)] = row
    return result


def bencher(sweep: Sweep) -> dict[str, Any]:
    """Return step times as Bencher Metric Format, in nanoseconds, with the ends of their intervals."""
    ends = {"value": "time_s", "lower_value": "low_s", "upper_value": "high_s"}
    return {
        name: {"latency": {end: 1e9 * row[key] for end, key in ends.items() if math.isfinite(row[key])}}
        for name, row in _benchmarks(sweep).items()
    }


def github_action_benchmark(sweep: Sweep) -> list[dict[str, Any]]:
    """Return step times as `customSmallerIsBetter` of github-action-benchmark."""
    return [
        {
            "name": name,
            "unit": "ms",
            "value": 1e3 * row["time_s"],
            "range": interval(1e3 * row["low_s"], 1e3 * row["high_s"], 3),
            "extra": f"{plural(row['generations'], 'generation')}, {plural(row['sessions'], 'session')}",
        }
        for name, row in _benchmarks(sweep).items()
    ]


def _write_json(value: Mapping[str, Any] | Sequence[Any], path: Path) -> None:
    write_atomically(path, json.dumps(value, indent=1, allow_nan=False, default=str) + "\n")


EXPORTS = {
    "csv": ("samples.csv", lambda sweep, path: write_table(path, sample_frame(sweep))),
    "bmf": ("bmf.json", lambda sweep, path: _write_json(bencher(sweep), path)),
    "github-action-benchmark": (
        "github-action-benchmark.json",
        lambda sweep, path: _write_json(github_action_benchmark(sweep), path),
    ),
}


def export_folder(
    folder: str | os.PathLike, kinds: Sequence[str], models: Mapping[str, str] | None = None
) -> list[Path]:
    """Write some of `EXPORTS` of a results folder to its folder `exports`, and return their paths; `models` as for
    `figures.draw`. Raises `UsageError`: a folder that cannot be written."""
    sweep = load(folder)
    if not len(sweep.samples):
        raise UsageError(f"an export needs samples, got none in {str(folder)!r}; measure first")
    shown, place = chosen(sweep, models), Path(folder) / EXPORT_FOLDER
    try:
        place.mkdir(exist_ok=True)
        for name, write in (EXPORTS[kind] for kind in kinds):
            write(shown, place / name)
    except OSError as error:
        raise UsageError(
            f"exports must be writable to {str(folder)!r}, got: {error.strerror}; copy the folder"
        ) from None
    return [place / EXPORTS[kind][0] for kind in kinds]
