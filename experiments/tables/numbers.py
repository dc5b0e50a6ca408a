"""Numbers as text; of what is not known, nothing."""

from __future__ import annotations

import math
from collections.abc import Collection
from statistics import median
from typing import Any

from ...cython_src.typed_text import rounded

EQUIVALENCE_BAND = 0.02  # of a ratio of times: smaller differences do not matter
# Limits on either side of which a ratio means something else.
JUDGED_AT = (1 / (1 + EQUIVALENCE_BAND), 1.0, 1 + EQUIVALENCE_BAND)


def format_time(seconds: float, unit: str = "s") -> str:
    """Format a time, or an energy with the unit J, with three significant digits: "6.41 ms"."""
    if not math.isfinite(seconds):
        return "n/a"
    for prefix, scale in (("", 1.0), ("m", 1e-3), ("µ", 1e-6), ("n", 1e-9)):
        if abs(seconds) >= scale or prefix == "n":
            return f"{rounded(seconds / scale)} {prefix}{unit}"
    raise AssertionError


def plural(count: int, word: str, words: str = "") -> str:
    """Return a count with its noun: "1 thread", "2 threads"; `words` is the plural that takes no s."""
    return f"{count} {word if count == 1 else words or word + 's'}"


def moved_text(moved: Collection[tuple[float, float]], takes: int, count: int) -> str:
    """Say how many of `count` generations are left out; `moved`: seconds of a hand-over in each, and the usual ones."""
    there, usual = (format_time(median(seconds)) for seconds in zip(*moved, strict=True))
    return (
        f"{takes} of {plural(count, 'generation')} found the CPUs elsewhere than the median one did and "
        f"{'is' if takes == 1 else 'are'} left out: a hand-over through a cache line took {there} in place of {usual}, "
        f"as where the host of a virtual machine has moved its CPUs."
    )


def known(value: Any) -> bool:
    """Return whether a value is a number at all, neither None nor NaN nor infinite."""
    return value is not None and math.isfinite(value)


def number(value: Any, digits: int = 2) -> str:
    """Format a number."""
    return f"{value:.{digits}f}" if known(value) else ""


def count(value: Any) -> str:
    """Format a whole number."""
    return f"{int(value)}" if known(value) else ""


def time(value: float | None, unit: str = "s") -> str:
    """Format a time like `format_time`."""
    return format_time(value, unit) if known(value) else ""


def percent(value: float | None, digits: int = 0) -> str:
    """Format a share as a percentage."""
    return f"{value:.{digits}%}" if known(value) else ""


def interval(low: float, high: float, digits: int = 2, limits: Collection[float] = ()) -> str:
    """Format an interval, each end with as many more decimals as show on which side of the limits it lies."""
    return f"[{', '.join(beside(end, digits, limits) for end in (low, high))}]" if known(low) and known(high) else ""


def beside(value: float, digits: int, limits: Collection[float]) -> str:
    """Format a number with `digits` decimals, or up to six more that show on which side of the limits it lies."""
    for more in range(7):
        text = f"{value:.{digits + more}f}"
        if all((float(text) > limit, float(text) < limit) == (value > limit, value < limit) for limit in limits):
            break
    return text


def percent_interval(low: float, high: float) -> str:
    """Format an interval of shares."""
    return f"[{low:.1%}, {high:.1%}]" if known(low) and known(high) else ""


def digits_of(value: float, digits: int = 2) -> int:
    """Return how many decimals show a number and its interval: `digits`, or more for two significant ones."""
    return max(digits, 1 - math.floor(math.log10(value))) if known(value) and value > 0 else digits
