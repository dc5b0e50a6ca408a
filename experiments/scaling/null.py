"""How often a machine would fail identical code: claims whose sides are the same."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..tables.numbers import plural
from ..tables.progress import say
from . import clock
from .bench import Bench, Side

MISSED = 0.05  # of the intervals


def run_null(claim: str, side: Side, limit: float, number: int, *, budget_s: float, bench: Bench) -> dict[str, Any]:
    """Test `number` times that a side takes at most `limit` times as long as itself; return a row of kind "null".

    A limit below 1, which identical code breaks by right, counts as 1. Raises `UsageError`, `SampleError`: as for
    `run_clock_test`."""
    limit, start, verdicts = max(limit, 1.0), bench.now(), []
    for done in range(1, number + 1):
        verdicts.append(clock.run_clock_test(claim, (side, side), limit, budget_s=budget_s, bench=bench).verdict)
        say(f"{claim}: {done} of {number} claims of identical code")
    counts = {verdict: verdicts.count(verdict) for verdict in (clock.FAIL, clock.INCONCLUSIVE)}
    return {
        "kind": "null",
        "claim": claim,
        "limit": limit,
        "claims": number,
        "elapsed_s": bench.now() - start,
        **counts,
    }


def describe_null(rows: Sequence[Mapping[str, Any]]) -> str:
    """Say how often identical code failed in all claims of some rows, with the exact binomial interval of the rate."""
    failed, undecided, claims = (sum(row[key] for row in rows) for key in (clock.FAIL, clock.INCONCLUSIVE, "claims"))
    low, high = binomial_interval(failed, claims)
    return (
        f"identical code failed in {failed} of {plural(claims, 'claim')}, so a rate of {100 * low:.2g} to "
        f"{100 * high:.2g} % (95 % interval); {undecided} ended inconclusive"
    )


def binomial_interval(count: int, number: int) -> tuple[float, float]:
    """Return the exact (Clopper-Pearson) interval of a probability from `count` hits in `number` tries."""

    def at_most(hits: int, p: float) -> float:
        return sum(math.comb(number, k) * p**k * (1 - p) ** (number - k) for k in range(hits + 1))

    def where(hits: int, value: float) -> float:
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if at_most(hits, middle) > value else (low, middle)
        return low

    low = where(count - 1, 1 - MISSED / 2) if count else 0.0
    return low, where(count, MISSED / 2) if count < number else 1.0
