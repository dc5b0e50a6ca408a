"""Axes and marks that several figures share: logarithmic ticks, series with intervals, the band of equivalence."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from ...analysis.estimates import EQUIVALENCE_BAND
from .style import CROSS, CROSSED, GREY, ModelStyle, marker_look

DIGIT_IN, BETWEEN_IN = 0.055, 0.01  # of a label on an axis along x, and between two
BAND = "0.88"  # colour of the band of equivalence
FAR = 2.0  # ratios farther apart have a logarithmic axis


def power_ticks(low: float, high: float) -> list[float]:
    """Return ticks for a logarithmic axis: powers of two, or short decimal ones where fewer than three fit."""
    low, high = low * 0.999, high * 1.001
    for base, mantissas in ((2, (1,)), (10, (1, 1.5, 2, 3, 4, 6, 8))):
        exponents = range(math.floor(math.log(low, base)) - 1, math.ceil(math.log(high, base)) + 1)
        ticks = [m * float(base) ** e for e in exponents for m in mantissas if low <= m * float(base) ** e <= high]
        if len(ticks) >= 3:
            break
    else:
        ticks = [t for t in MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(low, high) if low <= t <= high]
    while len(ticks) > 7:
        ticks = ticks[::-2][::-1]
    return ticks


def decimal_ticks(low: float, high: float) -> list[float]:
    """Return ticks with one digit for a logarithmic axis over several powers of ten, else those of `power_ticks`."""
    for mantissas in ((1,), (1, 3), (1, 2, 5)):
        exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        ticks = [m * 10.0**e for e in exponents for m in mantissas if low <= m * 10.0**e <= high]
        if len(ticks) >= 3:
            return ticks
    return power_ticks(low, high)


def log2_axis(axis, which: str, ticks: Sequence[float], low: float, high: float) -> None:
    getattr(axis, f"set_{which}scale")("log", base=2)
    one = getattr(axis, f"{which}axis")
    one.set_major_locator(FixedLocator(list(ticks)))
    one.set_minor_locator(NullLocator())
    one.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}" if v >= 1 else f"{v:.3g}"))
    getattr(axis, f"set_{which}lim")(low, high)


def _labelled(values: Sequence[int], most: int) -> list[int]:
    """Return the values whose labels fit on a logarithmic axis, some `most`: powers of two and the ends first."""
    values = sorted(set(values))
    smallest_gap = math.log2(values[-1] / values[0]) / most if len(values) > 1 else 0
    order = sorted(values, key=lambda v: (v not in (values[0], values[-1]), v & (v - 1) != 0, v))
    kept: list[int] = []
    for value in order:
        if all(abs(math.log2(value / other)) >= smallest_gap * 0.999 for other in kept):
            kept.append(value)
    return sorted(kept)


def x_axis(axis, values: Sequence[int], label: str) -> None:
    """Make an axis with ticks at those of the values whose labels fit beside each other, in eight gaps at most."""
    low, high, width_in = min(values), max(values), axis.get_position().width * axis.figure.get_figwidth()
    most = max(1, min(8, round(width_in / (DIGIT_IN * len(str(high)) + BETWEEN_IN))))
    pad = 2 ** (0.3 if high > low else 0.6) if high <= 4 * low else 2 ** (0.06 * math.log2(high / low) + 0.12)
    log2_axis(axis, "x", _labelled(values, most), low / pad, high * pad)
    axis.set_xlabel(label)


def series(
    axis,
    x,
    value,
    low,
    high,
    style: ModelStyle,
    band: bool = False,
    size: float = 4.5,
    hollow: bool = False,
    usable=None,
    places: Iterable[float] = (),
) -> None:
    """Draw a median line with markers, its interval as bars and, if asked, as a band; where `usable` is false the
    marker is crossed out, and no line leads to it. At those of `places` where nothing was measured the line ends, in
    place of joining its neighbours as if something lay between them."""
    x, value, low, high = (np.asarray(v, dtype=float) for v in (x, value, low, high))
    wrong = np.zeros(len(x), bool) if usable is None else ~np.asarray(usable, bool)
    gaps = [*({*places} - {*x})]
    order = np.argsort([*x, *gaps], kind="stable")
    x, wrong = np.append(x, gaps)[order], np.append(wrong, np.zeros(len(gaps), bool))[order]
    value, low, high = (np.append(v, np.full(len(gaps), np.nan))[order] for v in (value, low, high))
    known = np.isfinite(low) & np.isfinite(high)
    if band and known.sum() > 1:
        axis.fill_between(x, low, high, where=known, color=style.color, alpha=0.15, linewidth=0, zorder=2)
    if known.any():
        axis.errorbar(
            x[known],
            value[known],
            [value[known] - low[known], high[known] - value[known]],
            fmt="none",
            ecolor=style.color,
            elinewidth=0.9,
            capsize=0,
            zorder=4,
        )
    look = {"color": style.color, "markersize": size, "zorder": 5, **marker_look(style, hollow)}
    axis.plot(x, np.where(wrong, np.nan, value), linestyle=style.line, **look)
    if wrong.any():
        axis.plot(x[wrong], value[wrong], linestyle="none", **look)
        cross_out(axis, x[wrong], value[wrong], size)


def cross_out(axis, x, value, size: float = 4.5) -> None:
    """Mark points that must not be used."""
    axis.plot(x, value, linestyle="none", zorder=6, gid=CROSSED, **CROSS | {"markersize": 1.6 * size})


def equivalence_band(axis, which: str = "y") -> None:
    """Draw the band in which ratios along an axis are the same."""
    span, line = (axis.axhspan, axis.axhline) if which == "y" else (axis.axvspan, axis.axvline)
    span(1 / (1 + EQUIVALENCE_BAND), 1 + EQUIVALENCE_BAND, color=BAND, linewidth=0, zorder=0)
    line(1, color=GREY, linewidth=0.7, zorder=1)


def rows_of_bars(axis, names: Sequence[str], label: str) -> None:
    """Name the bars of an axis, from the first row down, and what they show."""
    axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()
    axis.tick_params(axis="y", length=0)
    axis.set_xlabel(label)


def value_axis(axis, which: str, scale: str, low: float, high: float, most: int) -> None:
    """Make an axis of values from `low` to `high`, of a scale of `chart.Panel`, with `most` ticks at most."""
    one = getattr(axis, f"{which}axis")
    if scale == "log" or (scale == "ratio" and high / low > FAR):
        pad = max(1.06, (high / low) ** 0.05)  # room for the outermost markers
        low, high = low / pad, high * pad
        ticks = (decimal_ticks if scale == "log" else power_ticks)(low, high)
        # Every second, third, ... tick, so that there are at most `most`; a ratio of 1 stays.
        step = math.ceil(len(ticks) / max(most, 1))
        log2_axis(axis, which, ticks[(ticks.index(1) % step if 1 in ticks else 0) :: step], low, high)
        return
    if scale == "share":
        low, high = 0.0, 1.05 * max(1.0, high)
    elif scale == "linear":
        low = min(low, 0.0)
    pad = 0.04 * (high - low)
    getattr(axis, f"set_{which}lim")(low - (pad if scale != "share" and low else 0), high + pad)
    one.set_major_locator(MaxNLocator(most, steps=[1, 2, 2.5, 5, 10], min_n_ticks=2))
    one.set_major_formatter(FuncFormatter(lambda v, _: f"{v:.0%}" if scale == "share" else f"{v:g}"))
