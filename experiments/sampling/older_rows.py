"""Rows that older versions of forktask wrote, in the form in which this version writes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

# Options of plans that had another name.
FORMER_OPTIONS = {"seed": "dropout_seed"}


def present_rows(rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield rows in file order under the names of this version; what cannot be derived stays missing.

    Notes
    -----
    Profiles had the time of a step and not that of a pass through the plan, which is as many steps long as the plan is
    unrolled. They had no `floors`: these need the mean durations of the same run's blocks, which nobody wrote down.
    """
    strides: dict[str, int] = {}
    for row in rows:
        new = dict(row)
        if row["kind"] == "plan":
            strides[row.get("plan_id", "")] = row.get("iteration_stride", 1)
            new["options"] = {FORMER_OPTIONS.get(k, k): value for k, value in row.get("options", {}).items()}
        elif row["kind"] == "profile" and "pass_time_s" not in row and "step_time_s" in row:
            new["pass_time_s"] = row["step_time_s"] * strides.get(row.get("plan_id", ""), 1)
        yield new
