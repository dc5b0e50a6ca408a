"""The share of a time that others took, by the counts of the kernel that rows keep."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ...cython_src.typed_text import rounded

TICK_S = 0.01
# An epoch or a machine was disturbed if a runnable thread waited for others, or its CPU was stolen or throttled, for a
# larger share of the time.
DISTURBED_SHARE = 0.05
# The CPU time of others rests on the kernel's ticks: it errs by some 2 % of a second, but by 4 to 8 % of 0.2 s.
SPAN_S = 1.0


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


def stopped_text(disturbances: Iterable[Mapping[str, Any]]) -> str:
    """Say for how long the CPU quota stopped a container in all; nothing where it did not."""
    stopped_s = 1e-6 * sum(lost.get("throttled_us") or 0 for lost in disturbances)
    text = f"The CPU quota stopped this container for {rounded(stopped_s)} s in all, so that its times are too long; "
    return f"{text}raise the quota, or use fewer threads." if stopped_s else ""


def undisturbed(times_s: Sequence[float], disturbances: Sequence[Mapping[str, Any]]) -> list[bool]:
    """Return for each of some times that follow each other whether others left it undisturbed.

    Threads that are measured wait for each other's CPUs too, so no more of their waiting counts than others can have
    caused: the CPU time that these took in a span of times that is long enough for the kernel's ticks.
    """
    result = []
    for first, end in _spans(times_s):
        span_s, others = sum(times_s[first:end]), [lost.get("others_us") for lost in disturbances[first:end]]
        for time_s, lost in zip(times_s[first:end], disturbances[first:end], strict=True):
            part = None if None in others else sum(others) * time_s / span_s
            result.append(not disturbed_share({**lost, "others_us": part}, time_s) > DISTURBED_SHARE)
    return result


def _spans(times_s: Sequence[float]) -> Iterator[tuple[int, int]]:
    """Divide times after each `SPAN_S` seconds; a shorter rest belongs to the last span."""
    first, spent_s = 0, 0.0
    for end, time_s in enumerate(times_s, 1):
        spent_s += time_s
        if spent_s >= SPAN_S and sum(times_s[end:]) >= SPAN_S:
            yield first, end
            first, spent_s = end, 0.0
    if first < len(times_s):
        yield first, len(times_s)
