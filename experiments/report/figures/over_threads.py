"""Speedup and efficiency over threads in a pair of panels, for the figures `speedup`, `phases` and `overlay`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from .axes import SLOWEST_SPEEDUP, dodged, log2_axis, model_lines, power_ticks, speedup_limits, x_axis
from .bound_lines import BoundLine, draw_bound
from .style import ModelStyle

COLUMNS = [f"{name}{end}" for name in ("speedup", "efficiency") for end in ("", "_low", "_high")]
IDEAL = {"color": "0.2", "linewidth": 0.8}


def draw_pair(
    pair: Sequence,
    rows: pd.DataFrame,
    names: Sequence[str],
    styles: Mapping[str, ModelStyle],
    counts: Sequence[int],
    bounds: Iterable[tuple[BoundLine, object]] = (),
    hollow: Collection[str] = (),
    band: bool = False,
    places: Sequence[float] = (),
) -> dict[str, float]:
    """Draw speedups in the first panel and efficiencies in the second, with the ideal and with bounds in their colours.

    Rows have the columns model, of which `names` are drawn, threads, usable, and `COLUMNS`; lines end at those of the
    `places` that they lack. Speedups stand at their true x: moved along it, they would seem to lie above or below the
    ideal line. Returns how far efficiencies were moved, see `dodged`.
    """
    speedup, efficiency = pair
    beside = dodged(rows.loc[rows["model"].isin(names) & rows["speedup"].notna(), "threads"].tolist(), names)
    speedup.plot(counts, counts, zorder=1, **IDEAL)
    efficiency.axhline(1, zorder=1, **IDEAL)
    for line, color in bounds:
        draw_bound(speedup, line, color=color)
        draw_bound(efficiency, line, line.x, beside, color)
    for axis, label, aside in ((speedup, "speedup", None), (efficiency, "efficiency", beside)):
        look = {"aside": aside, "places": places, "hollow": hollow, "band": band}
        model_lines(axis, rows, names, styles, "threads", label, **look)
        x_axis(axis, counts, "threads")
        axis.set_ylabel(label)
    return beside


def limit_pairs(
    pairs: Iterable[Sequence], points: pd.DataFrame, counts: Sequence[int], slowest: float = SLOWEST_SPEEDUP
) -> float:
    """Give all pairs the limits that the points need, not below `slowest`, and return the lowest speedup."""
    low, high = speedup_limits(points, max(counts), slowest)
    top = max([1.0, *points["efficiency"].dropna()])
    top = min(max([top, *points["efficiency_high"].dropna()]), 2 * top)
    for speedup, efficiency in pairs:
        log2_axis(speedup, "y", power_ticks(low, high), low, high)
        efficiency.set_ylim(0, top * 1.06)
        efficiency.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    return low


def ideal_handle() -> Line2D:
    """Return the entry of a legend."""
    return Line2D([], [], label="ideal", **IDEAL)
