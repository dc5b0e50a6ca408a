"""The share of a time that others took, by the counts of the kernel that rows keep."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

TICK_S = 0.01
# An epoch or a machine was disturbed if a runnable thread waited for others, or its CPU was stolen or throttled, for a
# larger share of the time.
DISTURBED_SHARE = 0.05


def disturbed_share(disturbance: Mapping[str, Any], seconds: float) -> float:
    """Return the share of `seconds` lost to others: the largest of the kernel's counts; NaN without any.

    Waiting counts as far as others had the CPU meanwhile: threads of one process wait for each other too.
    """
    waited, others = disturbance.get("pressure_some_us"), disturbance.get("others_us")
    lost = [
        (waited if waited is None or others is None else min(waited, max(others, 0)), 1e-6),
        (disturbance.get("throttled_us"), 1e-6),
        (disturbance.get("steal_ticks"), TICK_S),
    ]
    known = [value * unit for value, unit in lost if value is not None]
    return max(known) / seconds if known and seconds > 0 else math.nan
