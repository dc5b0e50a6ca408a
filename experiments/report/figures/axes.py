"""Axes and marks that several figures share: logarithmic ticks, series with intervals, the band of equivalence."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from ...analysis.estimates import EQUIVALENCE_BAND, NOT_USABLE
from ...analysis.names import model_label
from ...analysis.sweep import Sweep
from ...subjects.models import ModelSpec
from .style import COLUMN_WIDTH_IN, CROSS, CROSSED, GREY, ModelStyle, marker_look, panel_title

# The axis of speedups never goes below this fraction of one serial thread.
SLOWEST_SPEEDUP = 0.4
DIGIT_IN, BETWEEN_IN = 0.055, 0.01  # of a label on an axis along x, and between two
NARROW_IN = 1.4  # panels below this width name their axis in two lines
# So many lines of text name models below it.
MOST_BELOW = 4


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


def x_axis(axis, values: Sequence[int], label: str, most: int = 8) -> None:
    """Make an axis with ticks at those of the values whose labels fit beside each other, at `most` so many gaps."""
    low, high = min(values), max(values)
    most = max(1, min(most, round(_width_in(axis) / (DIGIT_IN * len(str(high)) + BETWEEN_IN))))
    pad = 2 ** (0.3 if high > low else 0.6) if high <= 4 * low else 2 ** (0.06 * math.log2(high / low) + 0.12)
    log2_axis(axis, "x", _labelled(values, most), low / pad, high * pad)
    axis.set_xlabel(label)


def _width_in(axis) -> float:
    return axis.get_position().width * axis.figure.get_figwidth()


def dodged(values: Sequence[int], models: Sequence[ModelSpec]) -> dict[str, float]:
    """Return the factor by which each model's points are moved along x, so that they do not hide each other: 1 where
    lines join several places, for a line joins true ones."""
    n = len(models)
    if n < 2 or len(set(values)) > 1:
        return dict.fromkeys(models, 1.0)
    return {m: 2 ** (0.34 * (i / (n - 1) - 0.5)) for i, m in enumerate(models)}


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


def model_lines(
    axis,
    rows: pd.DataFrame,
    models: Sequence[ModelSpec],
    styles: Mapping[str, ModelStyle],
    x: str,
    value: str,
    scale: float = 1.0,
    aside: Mapping[str, float] | None = None,
    places: Iterable[float] = (),
    size: float | None = None,
    hollow: Collection[str] = (),
    band: bool = False,
) -> None:
    """Draw a value over an axis, a line for each model.

    Parameters
    ----------
    rows : DataFrame
        With the columns model, usable, `x`, `value`, and `value` with _low and _high: the ends of its interval.
    scale : float
        Factor of the values.
    aside : mapping of str to float, optional
        Factors by which the points of models are moved along x, see `dodged`.
    places : iterable of float
        What was asked for of `x`: lines end at those of which a model has no row.
    size : float, optional
        Of the markers; default: nested, or alike where they are moved.
    hollow : collection of str
        Models whose markers are not filled.
    band : bool
        Draw intervals as bands too.
    """
    for number, model in enumerate(models):
        own, by = rows[rows["model"] == model], aside[model] if aside else 1.0
        columns = (scale * own[f"{value}{end}"] for end in ("", "_low", "_high"))
        look = {"size": size or (nested_size(number, len(models)) if by == 1 else 4.5), "usable": own["usable"]}
        look |= {"hollow": model in hollow, "places": [place * by for place in places]}
        series(axis, own[x] * by, *columns, styles[model], band, **look)


def cross_out(axis, x, value, size: float = 4.5) -> None:
    """Mark points that must not be used."""
    axis.plot(x, value, linestyle="none", zorder=6, gid=CROSSED, **CROSS | {"markersize": 1.6 * size})


def nested_size(number: int, count: int) -> float:
    """Return marker sizes from large to small, so that coinciding points can all be seen."""
    return 6.5 - 3.3 * number / max(1, count - 1)


def raw_dots(axis, x: float, values: np.ndarray, color) -> None:
    """Draw every repetition as a small dot, spread a little in a fixed way."""
    n = len(values)
    aside = 2 ** (0.012 * (((np.arange(n) * 7) % max(n, 1)) / max(n - 1, 1) - 0.5))
    axis.scatter(x * aside, values, s=3.0, color=[color], alpha=0.4, linewidths=0, zorder=3)


def equivalence_band(axis) -> None:
    axis.axhspan(1 / (1 + EQUIVALENCE_BAND), 1 + EQUIVALENCE_BAND, color="0.88", linewidth=0, zorder=0)
    axis.axhline(1, color=GREY, linewidth=0.7, zorder=1)


def rows_of_ratios(axis, label: str, **look) -> None:
    """Make an axis of ratios along x, for rows one below the other: with the band of equivalence, without a frame."""
    axis.axvspan(1 / (1 + EQUIVALENCE_BAND), 1 + EQUIVALENCE_BAND, color="0.88", linewidth=0, zorder=0)
    axis.axvline(1, color=GREY, linewidth=0.7, zorder=1)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.tick_params(axis="y", length=0)
    axis.set_xlabel(label, **look)


def rows_of_bars(axis, names: Sequence[str], label: str, title: str) -> None:
    """Name the bars of an axis, from the first row down, and what they show."""
    axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()
    axis.tick_params(axis="y", length=0)
    axis.set_xlabel(label)
    panel_title(axis, title)


def mark_ratio(axis, place: float, ratio: Sequence[float], color, marker: str = "o", usable: bool = True) -> None:
    """Draw a ratio with the ends of its interval in a row, hollow without one, crossed out where it is not usable."""
    value, low, high = ratio
    known = math.isfinite(low)
    if known:
        axis.plot([low, high], [place, place], color=color, linewidth=1.4, solid_capstyle="butt", zorder=3)
    look = {"color": color, "markerfacecolor": color if known else "white", "markersize": 3.5}
    axis.plot([value], [place], marker, zorder=4, **look)
    if not usable:
        cross_out(axis, [value], [place])


def band_handle() -> Patch:
    """Return the entry of a legend."""
    return Patch(color="0.88", label=f"± {EQUIVALENCE_BAND:.0%}")


def ratio_axis(axis, values: np.ndarray) -> None:
    values = values[np.isfinite(values)]
    low = min([0.97, *values]) / 1.015
    high = max([1.03, *values]) * 1.015
    if high / low > 2:
        low, high = low / (high / low) ** 0.04, high * (high / low) ** 0.04  # room for the outermost markers
        ticks = power_ticks(low, high)
        log2_axis(axis, "y", ticks, min(low, *ticks), max(high, *ticks))  # a tick on the edge is inside
    else:
        axis.set_ylim(low, high)
        axis.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
        axis.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))


def draw_across(axis, rows: pd.DataFrame, column: str, styles: Mapping[str, ModelStyle]) -> None:
    """Draw a value of each row, with its interval, as a line across the axis."""
    columns = ["model", column, f"{column}_low", f"{column}_high"]
    for model, value, low, high in rows[columns].itertuples(index=False):
        look = styles[model]
        axis.axhline(value, color=look.color, linestyle=look.line, linewidth=0.9, zorder=2)
        if np.isfinite(low):
            axis.axhspan(low, high, color=look.color, alpha=0.15, linewidth=0)


def ratio_panel(
    axis,
    table: pd.DataFrame,
    models: Sequence[ModelSpec],
    styles: Mapping[str, ModelStyle],
    x: str,
    places: Sequence[float],
    across: pd.DataFrame | None = None,
) -> bool:
    """Draw the ratio of each task model to the better fork-join form, with its interval, over the column `x`, whose
    lines end at those of the places where nothing was measured; the rows `across` as lines across.

    Returns whether there was any ratio.
    """
    equivalence_band(axis)
    # A GPU's models are compared with its own fork-join form.
    compared = [m for m in models if m.takes_tasks or m.is_gpu]
    part = table[table["model"].isin(compared) & table["ratio"].notna()]
    part = part.assign(usable=part["usable"] & (part["verdict"] != NOT_USABLE))  # nor is what it is compared with
    compared = [m for m in compared if m in set(part["model"])]
    aside = dodged(table[x].tolist(), compared)
    model_lines(axis, part, compared, styles, x, "ratio", aside=aside, places=places)
    lines = part[:0] if across is None else across[across["ratio"].notna()]
    draw_across(axis, lines, "ratio", styles)
    part = pd.concat([part, lines])
    if not len(part):
        say_why_empty(axis, "no task model and fork-join form\nwere measured together")
    ratio_axis(axis, part[["ratio", "ratio_low", "ratio_high"]].to_numpy(dtype=float).ravel())
    axis.set_ylabel("time / better fork-join")
    panel_title(axis, "below 1: faster")
    return len(part) > 0


def say_why_empty(axis, reason: str) -> None:
    """Write why a panel shows nothing."""
    axis.text(0.5, 0.5, reason, ha="center", va="center", transform=axis.transAxes, fontsize=7, color=GREY)


def speedup_limits(points, highest: float, slowest: float) -> tuple[float, float]:
    """Return limits of a speedup axis: 1, all medians, and intervals as far as a factor of two beyond them; never below
    the slowest."""
    known = points["speedup"].dropna()
    low, high = min([1.0, *known]), max([highest, *known])
    low = max(min([low, *points["speedup_low"].dropna()]), low / 2)
    high = min(max([high, *points["speedup_high"].dropna()]), high * 2)
    return max(low / 1.15, slowest), high * 1.12


def name_those_below(axis, points, low: float, styles: dict[str, ModelStyle]) -> None:
    """Write the values of models too slow for the axis at its lower edge; showing them would squeeze the others.

    Of many, the fastest are named, and none in a single column: more names would lie over what is drawn.
    """
    most = MOST_BELOW if axis.figure.get_figwidth() > COLUMN_WIDTH_IN["single"] else 0
    below = points[points["speedup"] < low].sort_values("speedup")
    for threads, group in below.groupby("threads"):
        named = [
            (f"{model_label(p['model'])} {p['speedup']:.2g} \u2193", styles[p["model"]].color)
            for p in group.to_dict("records")
        ]
        if len(named) > most:
            others = len(named) - max(most - 1, 0)
            word = "others, at most" if most else "below:"
            named = [(f"{others} {word} {group['speedup'].iloc[others - 1]:.2g} \u2193", GREY), *named[others:]]
        for row, (text, color) in enumerate(named):
            axis.annotate(
                text,
                (threads, 0.03 + 0.09 * row),
                xycoords=("data", "axes fraction"),
                xytext=(-5 if threads > 1 else 5, 0),  # beside the markers of those that are shown
                textcoords="offset points",
                ha="right" if threads > 1 else "left",
                fontsize=6.5,
                color=color,
            )


def mark_places(sweep: Sweep, axes, counts: Sequence[int]) -> None:
    """Draw a thin line where slower cores, a further cache, node or socket, or SMT siblings begin, if the axis of
    threads reaches so far; name it in the first panel, and the placement on the axes where it is of interest."""
    marks = {n: name for n, name in sweep.next_places.items() if min(counts) < n <= max(counts)}
    for number, axis in enumerate(axes):
        for n, name in marks.items():
            x = (n - 1) * 2**0.25 if n - 1 in counts else n - 1
            axis.axvline(x, color="0.8", linewidth=0.6, zorder=0)
            if not number:
                axis.annotate(
                    name, (x, 0.98), xycoords=("data", "axes fraction"), rotation=90, ha="right", va="top", fontsize=5
                )
        places, bind = sweep.placement.values()
        if axis.get_xlabel() == "threads" and (marks or (places, bind) != ("cores", "close")):
            shown = places if len(places) < 12 else f"{places[:9]}..."
            line = "\n" if _width_in(axis) < NARROW_IN else " "
            axis.set_xlabel(f"threads{line}{'(not pinned)' if bind == 'none' else f'({shown}, {bind})'}")
