"""Figures from tables, fit for a paper as they are: 8 pt, vector, colour-blind palette, a caption beside each.

The same rows give the same bytes: no dates, no random ids, and only the font that comes with matplotlib. Nothing here
touches pyplot's global state.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from ...cython_src.errors import UsageError
from ..analysis import factorial, interference
from ..analysis import study as analysis
from ..analysis.statistics import CONFIDENCE, EQUIVALENCE_BAND, MIN_PAIRS
from ..analysis.study import Study, base_model, model_label, model_rank

COLUMN_WIDTH_IN = {"double": 7.0, "single": 3.3}
FORMATS = ("pdf", "svg", "png")
# Layers that bars show by name; the others are summed up.
MAX_LAYERS = 9
SMALLEST_LAYER = 0.015
# Segments wide enough for a number, as a fraction of the longest bar.
SMALLEST_LABEL = {"double": 0.075, "single": 0.12}

# Where the speedup axis ends at the latest, below: a fraction of one serial thread.
SLOWEST_SPEEDUP = 0.4

_COLORS = sns.color_palette("colorblind")
_GREY = "0.45"
# Colour, marker and line of each model; variants of one model cycle through the markers behind the first.
_FAMILY_STYLES = {
    "serial": ("0.2", "."),
    "forkjoin": (_COLORS[0], "osph8"),
    "joblib": ("0.55", "XP"),
    "tasks": (_COLORS[1], "^>"),
    "taskgraph": (_COLORS[2], "Dd"),
    "taskiter": (_COLORS[3], "v<"),
    "openmp_tasks": (_COLORS[5], "*"),
    "tbb": (_COLORS[4], "P"),
}
_SECOND_COLOR = {"forkjoin": _COLORS[9]}
_BOUND_DASHES = {"area": (4, 2), "forkjoin": (1, 1.2)}
_LINES = ("-", "--", "-.", ":")


def style_parameters() -> dict:
    """Settings of every figure, for `matplotlib.rc_context`."""
    parameters = {**sns.plotting_context("paper"), **sns.axes_style("ticks")}
    parameters.update(
        {
            "font.family": "sans-serif",
            "font.sans-serif": ["DejaVu Sans"],
            "mathtext.fontset": "dejavusans",
            "font.size": 8,
            "axes.labelsize": 8,
            "axes.titlesize": 8,
            "figure.titlesize": 8,
            "legend.fontsize": 7,
            "legend.title_fontsize": 7,
            "xtick.labelsize": 7,
            "ytick.labelsize": 7,
            "axes.linewidth": 0.6,
            "xtick.major.width": 0.6,
            "ytick.major.width": 0.6,
            "xtick.major.size": 3,
            "ytick.major.size": 3,
            "lines.linewidth": 1.1,
            "lines.markersize": 4.5,
            "grid.linewidth": 0.4,
            "grid.color": "0.9",
            "axes.titlelocation": "left",
            "axes.titlepad": 4,
            "legend.frameon": False,
            "pdf.fonttype": 42,
            "ps.fonttype": 42,
            "svg.fonttype": "path",
            "svg.hashsalt": "forktask",
            "figure.constrained_layout.use": False,
            "savefig.dpi": 300,
            "figure.dpi": 100,
            "axes.unicode_minus": True,
        }
    )
    return parameters


@dataclass(frozen=True)
class ModelStyle:
    """How a model is drawn, the same in every figure of a study."""

    color: object
    marker: str
    line: str


def model_styles(models: Sequence[str]) -> dict[str, ModelStyle]:
    """Colour by family, marker and line by variant, in the models' fixed order."""
    styles: dict[str, ModelStyle] = {}
    seen: dict[str, int] = {}
    for model in sorted(set(models), key=model_rank):
        base = base_model(model)
        variant = seen.get(base, 0)
        seen[base] = variant + 1
        color, markers = _FAMILY_STYLES.get(base, (_COLORS[8], "*P"))
        if variant % 2:
            color = _SECOND_COLOR.get(base, color)
        styles[model] = ModelStyle(color, markers[variant % len(markers)], _LINES[variant % len(_LINES)])
    return styles


def format_time(seconds: float) -> str:
    """Three significant digits with a unit: "6.41 ms"."""
    if not math.isfinite(seconds):
        return "n/a"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9)):
        if abs(seconds) >= scale or unit == "ns":
            value = seconds / scale
            digits = max(0, 2 - int(math.floor(math.log10(abs(value))))) if value else 0
            return f"{value:.{digits}f} {unit}"
    raise AssertionError


# --- axes helpers ---------------------------------------------------------------------------------------------------


def new_figure(column: str, panels: int, panel_height: float = 2.0, widths: Sequence[float] | None = None):
    """A figure with panels side by side (double column) or stacked (single column)."""
    width = COLUMN_WIDTH_IN[column]
    if column == "double":
        figure = Figure(figsize=(width, panel_height + 0.95), layout="constrained")
        axes = figure.subplots(1, panels, width_ratios=widths, squeeze=False)[0]
    else:
        figure = Figure(figsize=(width, panels * (panel_height - 0.15) + 1.05), layout="constrained")
        axes = figure.subplots(panels, 1, squeeze=False)[:, 0]
    figure.get_layout_engine().set(w_pad=0.03, h_pad=0.03, wspace=0.04, hspace=0.04)
    for axis, letter in zip(axes, "abcdef", strict=False):
        axis.set_title(f"({letter})", fontweight="bold")
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def panel_title(axis, text: str) -> None:
    """The panel's letter stays bold, its title follows in normal weight."""
    letter = axis.get_title(loc="left") or axis.get_title()
    axis.set_title(f"$\\bf{{{letter}}}$ {text}", fontweight="normal")


def _power_ticks(low: float, high: float) -> list[float]:
    """Ticks for a logarithmic axis: powers of two, with values between them where there is room."""
    low, high = low * 0.999, high * 1.001
    exponents = range(math.floor(math.log2(low)) - 1, math.ceil(math.log2(high)) + 1)
    for mantissas in ((1,), (1, 1.5), (1, 1.25, 1.5, 1.75)):
        ticks = [m * 2.0**e for e in exponents for m in mantissas if low <= m * 2.0**e <= high]
        if len(ticks) >= 3:
            break
    while len(ticks) > 7:
        ticks = ticks[::-2][::-1]
    return ticks


def _log2_axis(axis, which: str, ticks: Sequence[float], low: float, high: float) -> None:
    getattr(axis, f"set_{which}scale")("log", base=2)
    one = getattr(axis, f"{which}axis")
    one.set_major_locator(FixedLocator(list(ticks)))
    one.set_minor_locator(NullLocator())
    one.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    getattr(axis, f"set_{which}lim")(low, high)


def _labelled(values: Sequence[int], room: int = 8) -> list[int]:
    """Those of the values whose labels fit on a logarithmic axis: powers of two and the ends first."""
    values = sorted(set(values))
    smallest_gap = math.log2(values[-1] / values[0]) / room if len(values) > 1 else 0
    order = sorted(values, key=lambda v: (v not in (values[0], values[-1]), v & (v - 1) != 0, v))
    kept: list[int] = []
    for value in order:
        if all(abs(math.log2(value / other)) >= smallest_gap * 0.999 for other in kept):
            kept.append(value)
    return sorted(kept)


def _x_axis(axis, values: Sequence[int], label: str) -> None:
    low, high = min(values), max(values)
    pad = 2 ** (0.3 if high > low else 0.6) if high <= 4 * low else 2 ** (0.06 * math.log2(high / low) + 0.12)
    _log2_axis(axis, "x", _labelled(values), low / pad, high * pad)
    axis.set_xlabel(label)


def _dodged(values: Sequence[int], models: Sequence[str]) -> dict[str, float]:
    """Factor by which each model's points stand aside of their x, so that they do not hide each other."""
    distinct = sorted(set(values))
    gap = min((math.log2(b / a) for a, b in zip(distinct, distinct[1:], strict=False)), default=1.0)
    width = min(0.34, 0.55 * gap)
    n = len(models)
    return {m: 2 ** (width * (i / (n - 1) - 0.5)) if n > 1 else 1.0 for i, m in enumerate(models)}


def _series(axis, x, value, low, high, style: ModelStyle, label: str, band: bool = True, size: float = 4.5) -> None:
    """A median line with markers, its interval as bars and, if asked, as a band."""
    x, value, low, high = (np.asarray(v, dtype=float) for v in (x, value, low, high))
    known = np.isfinite(low) & np.isfinite(high)
    if band and known.sum() > 1:
        axis.fill_between(x[known], low[known], high[known], color=style.color, alpha=0.15, linewidth=0, zorder=2)
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
    axis.plot(
        x,
        value,
        style.line,
        color=style.color,
        marker=style.marker,
        markersize=size,
        markeredgecolor="white",
        markeredgewidth=0.4,
        zorder=5,
        label=label,
    )


def _nested_size(number: int, count: int) -> float:
    """Marker sizes from large to small: where points lie on each other, all can be seen."""
    return 6.5 - 3.3 * number / max(1, count - 1)


def _raw_dots(axis, x: float, values: np.ndarray, color) -> None:
    """Every repetition as a small dot, spread a little in a fixed way."""
    n = len(values)
    aside = 2 ** (0.012 * (((np.arange(n) * 7) % max(n, 1)) / max(n - 1, 1) - 0.5))
    axis.scatter(x * aside, values, s=3.0, color=[color], alpha=0.4, linewidths=0, zorder=3)


def _equivalence_band(axis) -> None:
    axis.axhspan(1 / (1 + EQUIVALENCE_BAND), 1 + EQUIVALENCE_BAND, color="0.88", linewidth=0, zorder=0)
    axis.axhline(1, color=_GREY, linewidth=0.7, zorder=1)


def _ratio_axis(axis, values: np.ndarray) -> None:
    values = values[np.isfinite(values)]
    low = min([0.97, *values]) / 1.015
    high = max([1.03, *values]) * 1.015
    if high / low > 2:
        _log2_axis(axis, "y", _power_ticks(low, high), low, high)
    else:
        axis.set_ylim(low, high)
        axis.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
        axis.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))


def add_legend(figure: Figure, column: str, handles: Sequence, columns: int | None = None) -> None:
    """One legend for all panels, below them."""
    limit = columns or (5 if column == "double" else 2)
    rows = math.ceil(len(handles) / limit)
    ncol = math.ceil(len(handles) / rows)
    figure.legend(
        handles=list(handles),
        loc="outside lower center",
        ncols=ncol,
        handlelength=2.0,
        columnspacing=1.2,
        handletextpad=0.5,
        labelspacing=0.3,
    )


def model_handles(styles: dict[str, ModelStyle], models: Sequence[str], label=model_label) -> list[Line2D]:
    """Entries of a legend, one for each model."""
    return [
        Line2D(
            [],
            [],
            color=styles[m].color,
            linestyle=styles[m].line,
            marker=styles[m].marker,
            markeredgecolor="white",
            markeredgewidth=0.4,
            label=label(m),
        )
        for m in models
    ]


def _header(figure: Figure, study: Study, facts: Sequence[str], column: str) -> None:
    """What was measured, above the panels: two lines in a double column, one for each fact in a single one."""
    facts = [*facts, *([data_text(study)] if study.smoke_test else [])]
    lines = ["; ".join(facts[:2]), "; ".join(facts[2:])] if column == "double" else facts
    figure.suptitle(
        "\n".join(line for line in lines if line),
        x=0.008,
        ha="left",
        fontsize=8 if column == "double" else 7,
        linespacing=1.25,
    )


def blocks_text(plan) -> str:
    """A plan's granularity in words."""
    granularity = str(plan.get("granularity", "") or "")
    match = re.fullmatch(r"images=(\d+)", granularity)
    cut = f"{match[1]} images a block" if match else f"granularity {granularity}" if granularity else ""
    tasks = f"{plan['num_tasks']} tasks in {len(plan['loops'])} loops"
    return f"{cut}: {tasks}" if cut else tasks


def data_text(study: Study) -> str:
    """A short warning about the data, for figures."""
    return "random images" if study.data == "synthetic" else f"smoke test data ({study.data})"


def data_warning(study: Study) -> str:
    """The same as sentences."""
    if study.data == "synthetic":
        return (
            "The network was fed with random images: step times do not depend on what is in them, and nothing is "
            "said about accuracy."
        )
    return (
        f"Smoke test: the data ({study.data}) are too small to stand for a real training set; step times do not "
        f"depend on them, accuracies mean little."
    )


def t1_text(study: Study, plan_id: str, name: str = "T1") -> str:
    """The serial time and its distance from the machine's floors."""
    floors = analysis.floor_table(study)
    row = floors[floors["plan_id"] == plan_id].iloc[0]
    if not math.isfinite(row["t1_s"]):
        return "no serial run"
    ratios = [
        f"{row[f'{floor}_floor_ratio']:.2f} × {word}"
        for floor, word in (("flop", "FLOP"), ("roofline", "roofline"))
        if math.isfinite(row[f"{floor}_floor_ratio"])
    ]
    return f"{name} = {format_time(row['t1_s'])}" + (f" ({', '.join(ratios)} floor)" if ratios else "")


def _plan_header(figure: Figure, study: Study, plan_id: str, column: str) -> None:
    plan = study.plans[plan_id]
    facts = [analysis.problem_name(plan), blocks_text(plan), t1_text(study, plan_id, "$T_1$")]
    _header(figure, study, facts, column)


# --- figures --------------------------------------------------------------------------------------------------------


def draw_speedup(study: Study, plan_id: str, column: str) -> Figure:
    """The default figure: speedup, efficiency, and the ratio of each task model to the better fork-join form."""
    speeds = analysis.speed_table(study)
    table = speeds[speeds["plan_id"] == plan_id]
    styles = model_styles(study.samples["model"])
    models = [m for m in sorted(table["model"].unique(), key=model_rank) if m != "serial"]
    counts = sorted({1, *table["threads"]})
    if not table["speedup"].notna().any():
        raise UsageError(
            "a speedup needs serial runs of the same network and batch, got none; add `serial` to --models"
        )
    limits = analysis.bound_table(study)
    limits = limits[limits["plan_id"] == plan_id] if len(limits) else limits
    figure, (speedup, efficiency, ratio) = new_figure(column, 3)
    # In (a) points stand at their true x: aside of it, they would seem to lie above or below the ideal line.
    beside = _dodged(counts, models)

    for axis, divide in ((speedup, False), (efficiency, True)):
        dodge = beside if divide else dict.fromkeys(models, 1.0)
        x = np.array(counts, dtype=float)
        if divide:
            axis.axhline(1, color="0.2", linewidth=0.8, zorder=1)
        else:
            axis.plot(x, x, color="0.2", linewidth=0.8, zorder=1)
        if len(limits):
            for name, dashes in _BOUND_DASHES.items():
                if divide:
                    # A step for each group of points: between groups a line would pass points that stand aside.
                    width = 1.25 * max(beside.values(), default=1.0)
                    axis.hlines(
                        limits[f"{name}_speedup"] / limits["threads"],
                        limits["threads"] / width,
                        limits["threads"] * width,
                        color=_GREY,
                        linewidth=0.8,
                        linestyle=(0, dashes),
                        zorder=1,
                    )
                else:
                    axis.plot(
                        limits["threads"],
                        limits[f"{name}_speedup"],
                        color=_GREY,
                        linewidth=0.8,
                        dashes=dashes,
                        zorder=1,
                    )
        for number, model in enumerate(models):
            points = table[table["model"] == model].sort_values("threads")
            size = 4.5 if divide else _nested_size(number, len(models))
            prefix = "efficiency" if divide else "speedup"
            for threads in points["threads"]:
                raw = analysis.raw_ratios(study, plan_id, model, int(threads))
                _raw_dots(axis, threads * dodge[model], raw / (threads if divide else 1), styles[model].color)
            _series(
                axis,
                points["threads"] * dodge[model],
                points[prefix],
                points[f"{prefix}_low"],
                points[f"{prefix}_high"],
                styles[model],
                model_label(model),
                size=size,
            )
        _x_axis(axis, counts, "threads")
    low, high = _limits_with_intervals(table[table["model"] != "serial"], 1.0, max(counts))
    low = max(low, SLOWEST_SPEEDUP)
    _log2_axis(speedup, "y", _power_ticks(low, high), low, high)
    _name_those_below(speedup, table[table["model"].isin(models)], low, styles)
    speedup.set_ylabel("speedup")
    panel_title(speedup, "over the best serial run")
    top = min(
        max([1.0, *table["efficiency"], *table["efficiency_high"].dropna()]), 2 * max([1.0, *table["efficiency"]])
    )
    efficiency.set_ylim(0, top * 1.06)
    efficiency.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    efficiency.set_ylabel("efficiency")
    panel_title(efficiency, "speedup / threads")

    _equivalence_band(ratio)
    compared = [m for m in models if base_model(m) in analysis.TASK_MODELS]
    part = table[table["model"].isin(compared) & table["ratio"].notna()]
    aside = _dodged(counts, compared)
    for model in compared:
        points = part[part["model"] == model].sort_values("threads")
        if len(points):
            _series(
                ratio,
                points["threads"] * aside[model],
                points["ratio"],
                points["ratio_low"],
                points["ratio_high"],
                styles[model],
                model_label(model),
                band=False,
            )
    if not len(part):
        ratio.text(
            0.5,
            0.5,
            "no task model and fork-join form\nwere measured together",
            ha="center",
            va="center",
            transform=ratio.transAxes,
            fontsize=7,
            color=_GREY,
        )
    _ratio_axis(ratio, part[["ratio", "ratio_low", "ratio_high"]].to_numpy(dtype=float).ravel())
    _x_axis(ratio, counts, "threads")
    ratio.set_ylabel("time / better fork-join")
    panel_title(ratio, "below 1: faster")
    _physical_cores(study, (speedup, efficiency, ratio), counts)

    handles = model_handles(styles, models)
    handles.append(Line2D([], [], color="0.2", linewidth=0.8, label="ideal"))
    if len(limits):
        handles += [
            Line2D([], [], color=_GREY, linewidth=0.8, dashes=_BOUND_DASHES[name], label=label)
            for name, label in (("area", "area bound"), ("forkjoin", "fork-join bound"))
        ]
    if len(part):
        handles.append(Patch(color="0.88", label=f"± {EQUIVALENCE_BAND:.0%}"))
    add_legend(figure, column, handles)
    _plan_header(figure, study, plan_id, column)
    return figure


def _limits_with_intervals(points, lowest: float, highest: float) -> tuple[float, float]:
    """Limits of a speedup axis: all medians, and intervals as far as a factor of two beyond them."""
    low, high = min([lowest, *points["speedup"]]), max([highest, *points["speedup"]])
    low = max(min([low, *points["speedup_low"].dropna()]), low / 2)
    high = min(max([high, *points["speedup_high"].dropna()]), high * 2)
    return low / 1.15, high * 1.12


def _name_those_below(axis, points, low: float, styles: dict[str, ModelStyle]) -> None:
    """Values of what is too slow for the axis, at its lower edge: one such model would press all others together."""
    below = points[points["speedup"] < low]
    for threads, group in below.groupby("threads"):
        for row, point in enumerate(group.to_dict("records")):
            axis.annotate(
                f"{model_label(point['model'])} {point['speedup']:.2g} \u2193",
                (threads, 0.03 + 0.09 * row),
                xycoords=("data", "axes fraction"),
                ha="right" if threads > 1 else "left",
                fontsize=6.5,
                color=styles[point["model"]].color,
            )


def _physical_cores(study: Study, axes, counts: Sequence[int]) -> None:
    """A thin line where the physical cores end and hyper-threads begin, if the axis reaches so far."""
    cores = study.physical_cores
    if isinstance(cores, int) and min(counts) <= cores < max(counts):
        for axis in axes:
            axis.axvline(cores * 2**0.25 if cores in counts else cores, color="0.8", linewidth=0.6, zorder=0)


def draw_layers(study: Study, plan_id: str, column: str) -> Figure:
    """Busy time per layer and model, and each layer's fraction of one thread's peak."""
    points = sorted(
        {(r["model"], r["threads"]) for r in study.profiles if r["plan_id"] == plan_id},
        key=lambda p: (p[1], model_rank(p[0])),
    )
    widest = max((t for _, t in points), default=0)
    points = [p for p in points if p == ("serial", 1) or p[1] == widest]
    tables = {p: analysis.layer_table(study, plan_id, *p) for p in points}
    if not tables:
        raise UsageError("a figure of layers needs profile rows, got none; measure with `forktask compare`")
    lead = tables.get(("serial", 1), next(iter(tables.values())))
    order = list(dict.fromkeys(lead["layer"]))
    weight = lead.groupby("layer")["time_s"].sum()
    large = [layer for layer in order if weight[layer] >= SMALLEST_LAYER * weight.sum()]
    shown = sorted(large, key=lambda layer: -weight[layer])[:MAX_LAYERS]
    shown = [layer for layer in order if layer in shown]
    others = [layer for layer in order if layer not in shown]
    colors = dict(zip(shown, sns.color_palette("colorblind", len(shown)), strict=True))
    names = shown + (["others"] if others else [])
    colors["others"] = (0.8, 0.8, 0.8)

    figure, (bars, rates) = new_figure(column, 2, max(1.7, 0.28 * len(points) + 0.6), widths=(1.25, 1))
    labels = []
    longest = max(float(table["time_s"].sum()) for table in tables.values())
    for row, point in enumerate(points):
        sums = tables[point].groupby("layer")["time_s"].sum()
        left, total = 0.0, float(sums.sum())
        for name in names:
            width = float(sums[others].sum()) if name == "others" else float(sums.get(name, 0.0))
            bars.barh(
                row, width * 1e3, left=left * 1e3, height=0.72, color=colors[name], edgecolor="white", linewidth=0.5
            )
            if width >= SMALLEST_LABEL[column] * longest:
                dark = sum(c * w for c, w in zip(colors[name], (0.3, 0.59, 0.11), strict=True)) < 0.62
                bars.text(
                    (left + width / 2) * 1e3,
                    row,
                    f"{width / total:.0%}",
                    ha="center",
                    va="center",
                    fontsize=6.5,
                    color="white" if dark else "black",
                )
            left += width
        labels.append(model_label(point[0]) + (f", {point[1]} thr." if point[0] != "serial" else ""))
    bars.set_yticks(range(len(points)), labels)
    bars.invert_yaxis()
    bars.tick_params(axis="y", length=0)
    bars.set_xlabel("busy time per step, all workers (ms)")
    panel_title(bars, "time by layer")

    fractions = lead[
        (lead["phase"] != "load") & lead["peak_fraction"].notna() & (lead["flops"] > 0) & (lead["share"] >= 0.005)
    ]
    layers = list(dict.fromkeys(fractions["layer"]))
    markers = {"forward": ("o", _COLORS[0], -0.13), "backward": ("D", _COLORS[3], 0.13), "update": ("^", _COLORS[2], 0)}
    for phase, (marker, color, aside) in markers.items():
        part = fractions[fractions["phase"] == phase]
        rates.scatter(
            part["peak_fraction"],
            [layers.index(layer) + aside for layer in part["layer"]],
            s=16,
            marker=marker,
            color=[color],
            linewidths=0,
            label=phase,
            zorder=3,
            clip_on=False,
        )
    for row in range(len(layers)):
        rates.axhline(row, color="0.92", linewidth=0.6, zorder=0)
    rates.set_yticks(range(len(layers)), layers)
    rates.set_ylim(len(layers) - 0.4, -0.6)
    rates.set_xlim(0, max([1.0, *(fractions["peak_fraction"] * 1.05)]))
    rates.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:.0%}"))
    rates.tick_params(axis="y", length=0)
    peak = study.machine.get("peak_flops_per_s_1thread")
    rates.set_xlabel(f"fraction of peak ({peak / 1e9:.0f} GFLOP/s)" if peak else "fraction of peak (not measured)")
    panel_title(rates, "arithmetic rate, " + (model_label(points[0][0]) if ("serial", 1) not in tables else "serial"))
    handles = [Patch(color=colors[n], label=n if n != "others" else _others_text(others)) for n in names]
    handles += [
        Line2D([], [], linestyle="none", marker=m, color=c, markersize=4, label=phase)
        for phase, (m, c, _) in markers.items()
        if (fractions["phase"] == phase).any()
    ]
    add_legend(figure, column, handles, columns=7 if column == "double" else 3)
    _plan_header(figure, study, plan_id, column)
    return figure


def _others_text(others: Sequence[str]) -> str:
    return others[0] if len(others) == 1 else f"{len(others)} others"


def draw_overhead(study: Study, plan_id: str, column: str) -> Figure:
    """One-time costs of each model, and the mean time per iteration with them spread over n iterations."""
    costs = analysis.cost_table(study)
    costs = costs[costs["plan_id"] == plan_id]
    widest = int(costs["threads"].max())
    costs = costs[(costs["threads"] == widest) & costs["prepare_s"].notna()]
    if not len(costs):
        raise UsageError("a figure of overheads needs the cost of `prepare` in the samples, got none; measure again")
    styles = model_styles(study.samples["model"])
    figure, (bars, curves) = new_figure(column, 2, 2.0)
    parts = (
        ("record", _COLORS[1]),
        ("close", _COLORS[3]),
        ("other preparation", "0.75"),
        ("first iteration beyond a steady one", _COLORS[9]),
    )
    labels = []
    for row, (_, cost) in enumerate(costs.iterrows()):
        record, close = np.nan_to_num([cost["record_s"], cost["close_s"]])
        rest = max(0.0, cost["prepare_s"] - record - close)
        left = 0.0
        for (_, color), width in zip(parts, (record, close, rest, cost["once_s"] - cost["prepare_s"]), strict=True):
            bars.barh(row, width * 1e3, left=left * 1e3, height=0.7, color=color, linewidth=0)
            left += width
        labels.append(model_label(cost["model"]))
        bars.text(left * 1e3, row, f" {format_time(left)}", va="center", ha="left", fontsize=6.5)
    bars.set_yticks(range(len(labels)), labels)
    bars.invert_yaxis()
    bars.margins(x=0.2)
    bars.tick_params(axis="y", length=0)
    bars.set_xlabel("one-time cost (ms)")
    bars.xaxis.set_major_locator(MaxNLocator(5))
    panel_title(bars, f"before the steady state, {widest} threads")

    steady = costs[~costs["model"].map(base_model).isin(["serial", "joblib"])]
    reference = analysis.better_forkjoin(study, plan_id, widest)
    scale = steady.loc[steady["model"] == reference, "step_s"].iloc[0] if reference else steady["step_s"].min()
    n = np.logspace(0, 4, 200)
    for _, cost in steady.iterrows():
        style = styles[cost["model"]]
        y = (cost["once_s"] / n + cost["step_s"]) / scale
        curves.plot(
            n,
            y,
            style.line,
            color=style.color,
            linewidth=1.1,
            marker=style.marker,
            markevery=(25, 50),
            markeredgecolor="white",
            markeredgewidth=0.4,
            label=model_label(cost["model"]),
        )
    ends = (steady["once_s"] / 3 + steady["step_s"]) / scale
    curves.set_xscale("log")
    curves.set_ylim(min(0.9, 0.97 * float((steady["step_s"] / scale).min())), min(4.0, max(1.3, float(ends.max()))))
    curves.axhline(1, color=_GREY, linewidth=0.7, zorder=0)
    curves.set_xlabel("iterations run")
    curves.xaxis.set_major_locator(FixedLocator([1, 10, 100, 1000, 10000]))
    curves.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,.0f}"))
    curves.xaxis.set_minor_locator(NullLocator())
    curves.set_ylabel(f"time per iteration /\n{'steady fork-join' if reference else 'best steady'}")
    panel_title(curves, "one-time cost spread over the run")
    handles = [Patch(color=color, label=name) for name, color in parts] + model_handles(styles, steady["model"])
    add_legend(figure, column, handles, columns=4 if column == "double" else 2)
    _plan_header(figure, study, plan_id, column)
    return figure


def _draw_sweep(
    study: Study,
    plan_ids: Sequence[str],
    column: str,
    x_of: Callable,
    x_label: str,
    value_of: Callable,
    value_label: str,
    titles: tuple[str, str],
    facts: Sequence[str],
) -> Figure:
    """Two panels over a property of the plan at the largest number of threads: a value, and the ratio to fork-join."""
    speeds = analysis.speed_table(study)
    table = speeds[speeds["plan_id"].isin(plan_ids)]
    widest = int(table["threads"].max())
    table = table[(table["threads"] == widest) | (table["model"] == "serial")].copy()
    table["x"] = [x_of(study.plans[p]) for p in table["plan_id"]]
    styles = model_styles(study.samples["model"])
    models = sorted(table["model"].unique(), key=model_rank)
    positions = sorted(set(table["x"]))
    figure, (values, ratio) = new_figure(column, 2, 2.1)
    for number, model in enumerate(models):
        points = table[table["model"] == model].sort_values("x")
        triples = [
            sorted(value_of(study.plans[p], t) for t in (m, low, high))
            for p, m, low, high in points[["plan_id", "median_s", "low_s", "high_s"]].itertuples(index=False)
        ]
        middle = [value_of(study.plans[p], m) for p, m in points[["plan_id", "median_s"]].itertuples(index=False)]
        _series(
            values,
            points["x"],
            middle,
            [t[0] for t in triples],
            [t[2] for t in triples],
            styles[model],
            model_label(model),
            size=_nested_size(number, len(models)),
        )
    values.set_yscale("log", base=2)
    low, high = values.get_ylim()
    _log2_axis(values, "y", _power_ticks(low, high), low, high)
    _x_axis(values, positions, x_label)
    values.set_ylabel(value_label)
    panel_title(values, titles[0])

    _equivalence_band(ratio)
    compared = [m for m in models if base_model(m) in analysis.TASK_MODELS]
    part = table[table["model"].isin(compared) & table["ratio"].notna()]
    aside = _dodged(positions, compared)
    for model in compared:
        points = part[part["model"] == model].sort_values("x")
        if len(points):
            _series(
                ratio,
                points["x"] * aside[model],
                points["ratio"],
                points["ratio_low"],
                points["ratio_high"],
                styles[model],
                model_label(model),
                band=False,
            )
    _ratio_axis(ratio, part[["ratio", "ratio_low", "ratio_high"]].to_numpy(dtype=float).ravel())
    _x_axis(ratio, positions, x_label)
    ratio.set_ylabel("time / better fork-join")
    panel_title(ratio, titles[1])
    handles = model_handles(styles, models)
    if len(part):
        handles.append(Patch(color="0.88", label=f"± {EQUIVALENCE_BAND:.0%}"))
    add_legend(figure, column, handles)
    _header(figure, study, [*facts, f"{widest} threads (serial: 1)"], column)
    return figure


def _batch_plans(study: Study, plan_id: str) -> list[str]:
    """One plan for each batch of the same network and phase: the one with most samples."""
    network, _, phase, hogs = analysis.problem_of(study.plans[plan_id])
    counts = study.samples["plan_id"].value_counts()
    chosen: dict[int, str] = {}
    for other in study.plan_ids():
        plan = study.plans[other]
        if (plan["network"], plan["phase"], plan.get("interference", 0)) == (network, phase, hogs):
            best = chosen.get(plan["batch"])
            if best is None or (counts[other], other == plan_id) > (counts[best], best == plan_id):
                chosen[plan["batch"]] = other
    return [chosen[batch] for batch in sorted(chosen)]


def _granularity_plans(study: Study, plan_id: str) -> list[str]:
    problem = analysis.problem_of(study.plans[plan_id])
    return [p for p in study.plan_ids() if analysis.problem_of(study.plans[p]) == problem]


def draw_batch(study: Study, plan_id: str, column: str) -> Figure:
    """Images per second and the ratio to fork-join over the batch size."""
    plans = _batch_plans(study, plan_id)
    if len(plans) < 2:
        raise UsageError("a figure over batches needs at least two of them, got one; run a sweep with several batches")
    plan = study.plans[plan_id]
    return _draw_sweep(
        study,
        plans,
        column,
        lambda p: p["batch"],
        "batch (images)",
        lambda p, t: p["batch"] / t / 1e3,
        "thousand images per second",
        ("throughput", "below 1: faster"),
        [f"{plan['network']}, {plan['phase']}", f"batches {', '.join(str(study.plans[p]['batch']) for p in plans)}"],
    )


def draw_granularity(study: Study, plan_id: str, column: str) -> Figure:
    """Step time and the ratio to fork-join over the number of tasks."""
    plans = _granularity_plans(study, plan_id)
    if len({study.plans[p]["num_tasks"] for p in plans}) < 2:
        raise UsageError(
            "a figure over granularity needs two at least, got one; run a sweep with several granularities"
        )
    return _draw_sweep(
        study,
        plans,
        column,
        lambda p: p["num_tasks"],
        "tasks per step",
        lambda p, t: t * 1e3,
        "time per step (ms)",
        ("time over granularity", "below 1: faster"),
        [analysis.problem_name(study.plans[plan_id]), "the same granularity on both sides"],
    )


def draw_factorial(study: Study, plan_id: str, column: str) -> Figure:
    """Step time of every cell of creation x barrier x placement, and what each switch contributes."""
    cells, effects = (
        t[t["plan_id"] == plan_id] if len(t) else t
        for t in (factorial.factorial_table(study), factorial.effect_table(study))
    )
    if not len(cells):
        raise UsageError(
            "a factorial needs every cell of creation x barrier x placement, got less; run replay_ladder.toml"
        )
    threads = int(cells["threads"].max())
    cells = cells[(cells["threads"] == threads) & (cells["note"] == "")]
    effects = effects[(effects["threads"] == threads) & (effects["kind"] == "attribution")]
    figure, (times, parts) = new_figure(column, 2, 2.1, (1.0, 1.0))
    kinds = list(dict.fromkeys(zip(cells["creation"], cells["placement"], strict=True)))
    handles = []
    for number, (creation, placement) in enumerate(kinds):
        own = cells[(cells["creation"] == creation) & (cells["placement"] == placement)]
        style = ModelStyle(_COLORS[number], "os^"[number], _LINES[number])
        x = np.arange(len(own)) + 0.08 * (number - 1)
        _series(times, x, own["median_s"] * 1e3, own["low_s"] * 1e3, own["high_s"] * 1e3, style, "", band=False)
        handles.append(
            Line2D(
                [], [], color=style.color, marker=style.marker, linestyle=style.line, label=f"{creation}, {placement}"
            )
        )
    times.set_xticks(range(len(factorial.BARRIERS)), factorial.BARRIERS)
    times.set_xlabel("barrier")
    times.set_ylabel("step time (ms)")
    panel_title(times, "All cells")
    parts.axhline(1, color=_GREY, linewidth=0.7, zorder=1)
    parts.axhspan(1 / (1 + EQUIVALENCE_BAND), 1 + EQUIVALENCE_BAND, color="0.88", linewidth=0, zorder=0)
    for x, row in enumerate(effects.to_dict("records")):
        color = "0.2" if row["effect"] == "all three" else _COLORS[7]
        parts.plot([x, x], [row["low"], row["high"]], color=color, linewidth=0.9, zorder=4)
        parts.plot([x], [row["ratio"]], marker="o", color=color, zorder=5)
        parts.annotate(
            f"{row['ratio']:.3f}", (x, row["ratio"]), (5, 0), textcoords="offset points", va="center", fontsize=6.5
        )
    parts.set_xticks(range(len(effects)), effects["effect"])
    parts.set_xlim(-0.4, len(effects) - 0.3)
    _ratio_axis(parts, effects[["ratio", "low", "high"]].to_numpy(dtype=float).ravel())
    parts.set_ylabel("time after / before")
    panel_title(parts, "Attribution")
    handles.append(Patch(color="0.88", label=f"± {EQUIVALENCE_BAND:.0%}"))
    add_legend(figure, column, handles)
    _header(
        figure,
        study,
        [analysis.problem_name(study.plans[plan_id]), blocks_text(study.plans[plan_id]), f"{threads} threads"],
        column,
    )
    return figure


def draw_interference(study: Study, plan_id: str, column: str) -> Figure:
    """Step time beside hogs over that without, and what of it the cores that they take do not explain."""
    table = interference.interference_table(study)
    table = table[table["plan_id"] == plan_id] if len(table) else table
    if not len(table):
        raise UsageError("a figure over hogs needs points with and without them, got one kind; run interference.toml")
    threads = int(table["threads"].max())
    table = table[table["threads"] == threads]
    models = list(dict.fromkeys(table["model"]))
    styles = model_styles(models)
    figure, (times, losses) = new_figure(column, 2, 2.1, (1.0, 1.0))
    for number, model in enumerate(models):
        own, x_shift = table[table["model"] == model], 0.05 * (number - (len(models) - 1) / 2)
        _series(
            times,
            own["hogs"] + x_shift,
            own["slowdown"],
            own["slowdown_low"],
            own["slowdown_high"],
            styles[model],
            "",
            band=False,
        )
        _series(
            losses,
            own["hogs"] + x_shift,
            100 * own["loss"],
            100 * own["loss_low"],
            100 * own["loss_high"],
            styles[model],
            "",
            band=False,
        )
    left = table.groupby("hogs")["capacity"].first()
    times.plot(left.index, 1 / left, color=_GREY, linewidth=0.9, linestyle=":", zorder=3)
    times.set_ylabel("step time / without hogs")
    panel_title(times, "Slowdown (dotted: capacity taken)")
    losses.axhspan(0, 10, color="0.9", linewidth=0, zorder=0)
    losses.axhline(0, color=_GREY, linewidth=0.7, zorder=1)
    losses.set_ylabel("loss beyond the capacity taken (%)")
    panel_title(losses, "Loss (grey: up to 10 %)")
    for axis in (times, losses):
        axis.set_xticks(sorted(set(table["hogs"])))
        axis.set_xlabel("spinning processes")
    add_legend(figure, column, model_handles(styles, models, interference.label_with_preemption))
    _header(
        figure,
        study,
        [analysis.problem_name(study.plans[plan_id]), blocks_text(study.plans[plan_id]), f"{threads} threads"],
        column,
    )
    return figure


_DRAW = {
    "speedup": draw_speedup,
    "layers": draw_layers,
    "overhead": draw_overhead,
    "batch": draw_batch,
    "granularity": draw_granularity,
    "factorial": draw_factorial,
    "interference": draw_interference,
}
FIGURES = tuple(_DRAW)


def draw(study: Study, figure: str = "speedup", plan_id: str | None = None, column: str = "double") -> Figure:
    """Draw one figure of a study.

    Parameters
    ----------
    study : Study
    figure : str
        One of `FIGURES`.
    plan_id : str, optional
        Default: the plan with most samples.
    column : {"single", "double"}
        3.3 in or 7 in wide.

    Raises
    ------
    UsageError
        Unknown figure or column, or rows that do not hold what the figure shows.
    """
    if figure not in _DRAW:
        raise UsageError(f"the figure must be one of {', '.join(FIGURES)}; got {figure!r}")
    if column not in COLUMN_WIDTH_IN:
        raise UsageError(f"the column must be one of {', '.join(COLUMN_WIDTH_IN)}; got {column!r}")
    plan_id = plan_id or analysis.main_plan(study)
    with matplotlib.rc_context(style_parameters()):
        drawn = _DRAW[figure](study, plan_id, column)
        # Once is enough: saving would do it again for each format.
        drawn.get_layout_engine().execute(drawn)
        drawn.set_layout_engine("none")
    return drawn


def available_figures(study: Study, plan_id: str) -> list[str]:
    """Figures that the rows of a plan allow."""
    found = ["speedup"] if analysis.best_serial(study, plan_id) else []
    if any(row["plan_id"] == plan_id for row in study.profiles):
        found.append("layers")
    own = study.samples[study.samples["plan_id"] == plan_id]
    if "prepare_s" in own and own["prepare_s"].notna().any():
        found.append("overhead")
    if len(_batch_plans(study, plan_id)) > 1:
        found.append("batch")
    if len({study.plans[p]["num_tasks"] for p in _granularity_plans(study, plan_id)}) > 1:
        found.append("granularity")
    cells = factorial.factorial_table(study)
    if len(cells) and plan_id in set(cells["plan_id"]):
        found.append("factorial")
    beside = interference.interference_table(study)
    if len(beside) and plan_id in set(beside["plan_id"]):
        found.append("interference")
    return found


def save(figure: Figure, path: str | os.PathLike) -> Path:
    """Write a figure as PDF, SVG or PNG, by the name's ending; the same figure gives the same bytes.

    Raises
    ------
    UsageError
        Another ending, or a place that cannot be written.
    """
    path = Path(path)
    kind = path.suffix[1:]
    if kind not in FORMATS:
        raise UsageError(f"the format of a figure must be one of {', '.join(FORMATS)}; got {kind!r}")
    metadata = {
        "pdf": {"CreationDate": None, "Producer": None, "Creator": "forktask"},
        "svg": {"Date": None, "Creator": "forktask"},
        "png": {"Software": None},
    }[kind]
    with matplotlib.rc_context(style_parameters()):
        try:
            figure.savefig(path, format=kind, metadata=metadata)
        except OSError as error:
            raise UsageError(f"the figure must be writable to {path}, got: {error.strerror}") from None
    return path


# --- captions -------------------------------------------------------------------------------------------------------


def caption(study: Study, figure: str, plan_id: str | None = None) -> str:
    """All that a sceptical reader of the figure needs, as plain text of one paragraph."""
    plan_id = plan_id or analysis.main_plan(study)
    sentences = _CAPTIONS[figure](study, plan_id)
    if study.smoke_test:
        sentences.append(data_warning(study))
    return " ".join(s for s in sentences if s)


def _caption_conditions(study: Study, plan_id: str) -> list[str]:
    plan = study.plans[plan_id]
    samples = study.samples[study.samples["plan_id"] == plan_id]
    per_point = samples.groupby(["model", "threads"]).size()
    count = f"{per_point.min()}" if per_point.min() == per_point.max() else f"{per_point.min()} to {per_point.max()}"
    options = ", ".join(
        f"{key.replace('_', ' ')}: {str(value).lower()}"
        for key, value in sorted((plan.get("options") or {}).items())
        if key not in ("network", "batch", "phase", "granularity")
    )
    pinned = samples["cpus"].map(bool).all() if "cpus" in samples else False
    sets = ", ".join(sorted(samples["instruction_set"].dropna().unique())) if "instruction_set" in samples else ""
    return [
        f"Work: {analysis.problem_name(plan)}, {plan['flops'] / 1e9:.3g} GFLOP a step (convolutions counted in their "
        f"direct form), {blocks_text(plan)}, {plan['num_edges']} dependence edges"
        + (f" ({options})." if options else "."),
        f"Every model runs the same blocks of the same kernels{f' ({sets})' if sets else ''}, and all of them left "
        f"bit-identical weights; this was checked before anything was drawn.",
        f"Each point is {count} repetition{'' if count == '1' else 's'}, each in a process of its own, in random order "
        f"within blocks of all configurations; a step time is the slope between two run lengths, after warm-up"
        + (", with every thread pinned to a core of its own." if pinned else ", threads not pinned."),
        machine_text(study),
    ]


def machine_text(study: Study) -> str:
    """One sentence on the machine: processor, peak, bandwidth, capacity."""
    pieces = []
    cpu = find_text(study.environment, "cpu_model", "cpu", "model_name")
    if cpu:
        pieces.append(cpu)
    if study.machine.get("peak_flops_per_s_1thread"):
        pieces.append(f"measured FMA peak {study.machine['peak_flops_per_s_1thread'] / 1e9:.0f} GFLOP/s per thread")
    bandwidth = study.machine.get("bandwidth_bytes_per_s") or {}
    if bandwidth.get("1"):
        pieces.append(f"bandwidth {bandwidth['1'] / 1e9:.3g} GB/s for one thread")
    capacity = study.machine.get("capacity") or {}
    if capacity:
        wide = max(capacity, key=int)
        pieces.append(f"{wide} spinning threads do the work of {capacity[wide]:.2f}")
    return f"Machine: {', '.join(pieces)}." if pieces else ""


def find_text(mapping, *names: str) -> str:
    """The first text found under one of the names, one level deep."""
    for name in names:
        value = mapping.get(name)
        if isinstance(value, str) and value:
            return value
        if isinstance(value, dict):
            inner = find_text(value, "model", "name", "model_name")
            if inner:
                return inner
    return ""


def _caption_speedup(study: Study, plan_id: str) -> list[str]:
    forms = sorted(m for m in study.samples["model"].unique() if base_model(m) == "forkjoin")
    limits = analysis.bound_table(study)
    return [
        "(a) Speedup over the fastest serial run of the same network and batch at any granularity (values below "
        f"{SLOWEST_SPEEDUP:g} are written at the edge), (b) speedup divided by threads, (c) time of each task model "
        "divided by that of the better fork-join form on as many threads "
        f"({' or '.join(model_label(m) for m in forms) or 'none measured'}; chosen by its median).",
        f"Markers: medians of ratios paired by repetition block; bars and bands: {CONFIDENCE:.0%} bootstrap intervals; "
        "small dots: every repetition. In (b) and (c) points of one thread count stand side by side for legibility.",
        f"Grey in (c): differences below {EQUIVALENCE_BAND:.0%}, taken as none; fewer than {MIN_PAIRS} pairs are never "
        "called a difference.",
        t1_text(study, plan_id) + "; the FLOP floor is the step's operations over one thread's "
        "measured peak, the roofline floor sums max(operations / peak, bytes / bandwidth) over the loops; Winograd's form "
        "of convolutions needs fewer operations than are counted, those of the direct form.",
        "Thin lines: ideal (solid); area bound, work over the measured capacity of that many threads (dashed); "
        "fork-join bound, the sum over loops of max(work / capacity, longest block), from block durations of a "
        "separate serial run with the event log on (dotted)."
        if len(limits)
        else "",
        *_caption_conditions(study, plan_id),
    ]


def _caption_layers(study: Study, plan_id: str) -> list[str]:
    return [
        "(a) Busy time of one step by layer, forward and backward together, summed over all workers; numbers are "
        "shares. A longer bar than the serial one means that blocks ran slower side by side. "
        "(b) Operations per second of busy time over one thread's measured peak (those of direct convolutions: Winograd's "
        "form needs fewer and may pass it); layers without arithmetic, or "
        "below 0.5% of the time, are left out. Times come from the event log of repeats apart from those that were timed.",
        *_caption_conditions(study, plan_id),
    ]


def _caption_overhead(study: Study, plan_id: str) -> list[str]:
    return [
        "(a) What each model spends once: recording the graph, closing it over iterations, the rest of its "
        "preparation, and how much longer its first iteration takes than a steady one (cold caches included; it "
        "meets every model). (b) Mean time per iteration of a run of n iterations, one-time costs included, over the "
        "steady step time of the better fork-join form; where two curves cross, the costs are earned back. Medians.",
        *_caption_conditions(study, plan_id),
    ]


def _caption_sweep(what: str) -> Callable:
    def text(study: Study, plan_id: str) -> list[str]:
        return [
            f"(a) {what} (b) Time of each task model over that of the better fork-join form of the same plan and "
            f"threads. Markers: medians; bars and bands: {CONFIDENCE:.0%} bootstrap intervals, in (b) of ratios paired "
            f"by repetition block; grey: differences below {EQUIVALENCE_BAND:.0%}.",
            *_caption_conditions(study, plan_id)[1:],
        ]

    return text


def _caption_factorial(study: Study, plan_id: str) -> list[str]:
    return [
        "(a) Step time of the task models made by three switches: creation (eager or replayed), barrier (after each "
        "loop, each iteration, or none), placement (stealing or partitioned); eager tasks cannot be partitioned. "
        "(b) Attribution of the change from (eager, loop, stealing) to (replayed, none, partitioned): for each switch "
        "the geometric mean of its effect over all orders of switching that exist; the three multiply up to the whole. "
        f"Markers: medians over repetition blocks, bars: {CONFIDENCE:.0%} bootstrap intervals; grey: differences below "
        f"{EQUIVALENCE_BAND:.0%}.",
        *_caption_conditions(study, plan_id),
    ]


def _caption_interference(study: Study, plan_id: str) -> list[str]:
    return [
        "(a) Step time beside spinning processes, one on each of the last CPUs, over that of the same model without, paired by "
        "repetition; dotted: what the CPU time taken explains, from threads that only spin beside the same processes. "
        "(b) Slowdown times the capacity that is left, less one: time in which CPUs were there and not used, or used for "
        f'nothing. Markers: medians, bars: {CONFIDENCE:.0%} bootstrap intervals. Task models with "stay" leave each thread on '
        'its CPU, as all other models do; with "swap" a worker that waits exchanges CPUs with one that lost its own.',
        *_caption_conditions(study, plan_id),
    ]


_CAPTIONS = {
    "interference": _caption_interference,
    "factorial": _caption_factorial,
    "speedup": _caption_speedup,
    "layers": _caption_layers,
    "overhead": _caption_overhead,
    "batch": _caption_sweep("Images per second over the batch size."),
    "granularity": _caption_sweep("Time of one step over the number of tasks it is cut into."),
}
