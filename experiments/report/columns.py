"""Columns of the report's tables: heading, how a row's value is written, and whether it is a number."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..analysis.accounting import BEYOND, MOST_OVER, WITHIN
from ..analysis.losses import FACTORS
from ..analysis.memory import LIBRARIES, REST
from ..analysis.names import axis_label, model_label
from ..sampling.memory import GRAPH, KINDS, format_bytes
from ..tables import Column
from .words import format_time


def digits_of(value: float, digits: int = 2) -> int:
    """Return how many decimals show a number and its interval: `digits`, or more for two significant ones."""
    known = value is not None and math.isfinite(value) and value > 0
    return max(digits, 1 - math.floor(math.log10(value))) if known else digits


def number(value: Any, digits: int = 2) -> str:
    """Format a number; empty for none."""
    return "" if value is None or (isinstance(value, float) and not math.isfinite(value)) else f"{value:.{digits}f}"


def time(value: float | None, unit: str = "s") -> str:
    """Format a time with its unit, or an energy with the unit J; empty for none."""
    return format_time(value, unit) if value is not None and math.isfinite(value) else ""


def percent(value: float | None, digits: int = 0) -> str:
    """Format a share as a percentage; empty for none."""
    return f"{value:.{digits}%}" if value is not None and math.isfinite(value) else ""


def interval(low: float, high: float, digits: int = 2) -> str:
    """Format an interval; empty for none."""
    return f"[{low:.{digits}f}, {high:.{digits}f}]" if math.isfinite(low) and math.isfinite(high) else ""


def percent_interval(low: float, high: float) -> str:
    """Format an interval of shares; empty for none."""
    return f"[{low:.1%}, {high:.1%}]" if math.isfinite(low) and math.isfinite(high) else ""


def count(value: Any) -> str:
    """Format a whole number; empty for none."""
    return "" if value is None or (isinstance(value, float) and math.isnan(value)) else f"{int(value)}"


def _text(name: str, heading: str | None = None) -> Column:
    return Column(axis_label(name) if heading is None else heading, lambda r: str(r[name]))


def _count(name: str, heading: str | None = None) -> Column:
    return Column(heading or axis_label(name), lambda r: count(r[name]), True)


def _number(name: str, heading: str, digits: int = 2) -> Column:
    return Column(heading, lambda r: number(r[name], digits), True)


def _time(name: str, heading: str) -> Column:
    return Column(heading, lambda r: time(r[name]), True)


def _percent(name: str, heading: str, digits: int = 0) -> Column:
    return Column(heading, lambda r: percent(r[name], digits), True)


def _ratio(heading: str, name: str = "ratio", digits: int = 3) -> tuple[Column, Column]:
    """Return the columns of a ratio and its interval, with two significant digits at least."""

    def limits(row: Mapping[str, Any]) -> str:
        return interval(row[f"{name}_low"], row[f"{name}_high"], digits_of(row[name], digits))

    return (
        Column(heading, lambda r: number(r[name], digits_of(r[name], digits)), True),
        Column("95% interval", limits, True),
    )


def _spread(row: Mapping[str, Any]) -> str:
    return percent((row["upper_quartile_s"] - row["lower_quartile_s"]) / row["median_s"], 1)


MODEL = Column("model", lambda r: model_label(r["model"]))
THREADS = _count("threads")
PLAN = _text("plan_name", "plan")
PROBLEM = _text("problem")
VERDICT = _text("verdict")

SPEED = (
    MODEL,
    THREADS,
    _count("repetitions", "n"),
    _time("median_s", "median"),
    Column("IQR", lambda r: _spread(r) if r["repetitions"] > 1 else "", True),
    *_ratio("speedup", "speedup", 2),
    _percent("efficiency", "efficiency", 1),
    *_ratio("time / fork-join"),
    VERDICT,
)
COUNTERS = (
    MODEL,
    THREADS,
    Column("cycles a step", lambda r: number(r["cycles"], 0), True),
    Column("instructions a step", lambda r: number(r["instructions"], 0), True),
    Column("instructions a cycle", lambda r: number(r["per_cycle"]), True),
    Column("last-level misses a step", lambda r: number(r["llc_misses"], 0), True),
    Column("energy a step", lambda r: time(r["joules"], "J"), True),
)
GAIN = (PLAN, THREADS, MODEL, *_ratio("promised", "promised", 3), *_ratio("gained", "gained", 3))
OWN_BEST = (
    THREADS,
    MODEL,
    _text("granularity", "its best granularity"),
    _time("median_s", "median"),
    _ratio("speedup", "speedup", 2)[0],
    *_ratio("time / fork-join at its best"),
    VERDICT,
)
AXIS = (
    _text("value"),
    _text("baseline", "over"),
    MODEL,
    THREADS,
    _text("problem"),
    _text("granularity"),
    _time("median_s", "median"),
    *_ratio("ratio of times"),
    VERDICT,
)


def phase_columns(phases: Sequence[str]) -> tuple[Column, ...]:
    """Return the columns of times, speedups and efficiencies of phases."""
    found = [MODEL, THREADS, _text("timed", "time is")]
    for phase in phases:
        found += [
            _time(f"{phase}_s", phase),
            _number(f"{phase}_speedup", "speedup"),
            _percent(f"{phase}_efficiency", "eff.", 1),
        ]
    return (*found, _percent("update_beside_backward", "beside backward"))


LAYER = (
    _text("layer"),
    _text("phase"),
    _count("blocks"),
    _time("time_s", "time"),
    _percent("share", "share", 1),
    Column(
        "least to most", lambda r: percent_interval(r["share_low"], r["share_high"]) if r["profiles"] > 1 else "", True
    ),
    Column("GFLOP/s", lambda r: number(r["gflops"], 1) if r["flops"] else "", True),
    Column("of peak", lambda r: percent(r["peak_fraction"]) if r["flops"] else "", True),
)
ROOFLINE = (
    _text("kernel"),
    _text("phase"),
    _count("loops"),
    _time("time_s", "time"),
    _percent("share", "share", 1),
    _number("intensity", "FLOP a byte", 1),
    _text("bound", "bound by"),
    _time("floor_s", "floor"),
    _percent("roof", "floor / time"),
)
LOSS = (
    MODEL,
    THREADS,
    _time("step_time_s", "iteration"),
    _time("useful_s", "useful"),
    _time("inflation_s", "inflation"),
    _time("runtime_s", "runtime"),
    _time("imbalance_s", "imbalance"),
    _time("barrier_s", "behind a barrier"),
    _time("dependence_s", "dependence"),
    _time("preemption_s", "lost CPU"),
)
EFFICIENCY = (
    MODEL,
    THREADS,
    _percent("global_efficiency", "efficiency"),
    *(_number(name, name.replace("_", " "), 3) for name in FACTORS),
)

COST = (
    MODEL,
    THREADS,
    _time("prepare_s", "prepare"),
    _time("record_s", "record"),
    _time("close_s", "close"),
    _time("first_replay_s", "first replay"),
    _time("step_s", "step"),
    Column("break-even vs tasks", lambda r: str(r["break_even_tasks"]), True),
    Column("vs fork-join", lambda r: str(r["break_even_forkjoin"]), True),
)


def _bound(name: str, heading: str) -> Column:
    """Format a bound with its interval in the same unit, such as "2.84 ms [2.80, 2.90]"."""

    def text(row: Mapping[str, Any]) -> str:
        value, low, high = (row[f"{name}_s{end}"] for end in ("", "_low", "_high"))
        written = time(value)
        if not (written and math.isfinite(low)):
            return written
        digits, unit = written.split(" ")
        scale = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}[unit]
        return f"{written} {interval(low / scale, high / scale, len(digits.partition('.')[2]))}"

    return Column(heading, text, True)


BOUND = (
    THREADS,
    Column("capacity", lambda r: f"{r['capacity']:.2f} {interval(r['capacity_low'], r['capacity_high'], 2)}", True),
    _bound("area", "area"),
    _bound("forkjoin", "fork-join, placed at best"),
    _bound("forkjoin_static", "fork-join, static"),
    _bound("taskgraph", "max(area, span)"),
    _bound("taskiter", "max(area, cycle mean)"),
    _bound("brent", "Brent, at most"),
)
FLOOR_NAMES = {"forkjoin": "fork-join", "taskgraph": "span", "taskiter": "cycle mean", "area": "area"}
OVERHEAD = (
    MODEL,
    THREADS,
    _time("floor_s", "floor"),
    _number("static_shares", "equal shares / floor", 3),
    _time("runtime_cost_s", "empty kernels"),
    *_ratio("time / both", "over_expected"),
    Column(f"within {MOST_OVER:.0%}", lambda r: {WITHIN: "yes", BEYOND: "no"}.get(r["overhead"], r["overhead"])),
)
ACCOUNT = (
    MODEL,
    THREADS,
    _time("measured_s", "measured"),
    _number("logged", "logged / timed"),
    *_ratio("inflation", "inflation"),
    Column("floor", lambda r: FLOOR_NAMES[r["floor"]]),
    _time("floor_s", "its value"),
    _percent("excess", "excess", 1),
    Column("95% interval", lambda r: percent_interval(r["excess_low"], r["excess_high"]), True),
    _time("per_unit_s", "per unit"),
    _time("runtime_cost_s", "empty kernels"),
)
GPU = (
    MODEL,
    *_ratio("gpu_stream / this", "vs_stream", 2),
    _time("overhead_s", "empty kernels"),
    _time("busy_s", "kernels"),
    _percent("idle_share", "idle"),
    _time("context_s", "context"),
    _time("compilation_s", "compilation"),
    _time("prepare_s", "prepare"),
)
FACTORIAL = (
    THREADS,
    _text("creation"),
    _text("barrier"),
    _text("placement"),
    _time("median_s", "median"),
    *_ratio("time / first cell"),
    _text("note", ""),
)
EFFECT = (
    THREADS,
    _text("kind"),
    _text("effect"),
    _number("ratio", "time after / before", 3),
    Column("95% interval", lambda r: interval(r["low"], r["high"], 3), True),
    _percent("share", "share"),
    Column("verdict", lambda r: r["verdict"] + r["note"]),
)
INTERFERENCE = (
    _count("hogs"),
    MODEL,
    _text("preemption"),
    _number("cpu_swaps_per_s", "CPU swaps per s", 0),
    THREADS,
    _number("capacity", "capacity left", 3),
    *_ratio("slowdown", "slowdown"),
    _percent("loss", "loss beyond capacity", 1),
)
DISTURBANCE = (
    MODEL,
    THREADS,
    Column("CPU pressure (ms)", lambda r: number(r["pressure_some_us"] / 1e3, 1), True),
    _count("steal_ticks", "steal (ticks)"),
    _count("nonvoluntary_switches", "forced switches"),
    Column("throttled (ms)", lambda r: number(r["throttled_us"] / 1e3, 1), True),
    _count("thermal_throttles", "slowed by heat"),
    _number("temperature_c", "hottest (\u00b0C)", 0),
)
FAILURE = (MODEL, THREADS, PLAN, _text("reason"), _text("message"))
ENVIRONMENT = (_text("entry"), _text("value"))


def _size(name: str, heading: str) -> Column:
    return Column(heading, lambda r: format_bytes(r[name]) if r.get(name, 0) > 0 else "", True)


MEMORY = (
    MODEL,
    THREADS,
    _size("peak_bytes", "peak"),
    *(_size(part, part) for part in (*dict.fromkeys(KINDS.values()), GRAPH, LIBRARIES, REST)),
)
