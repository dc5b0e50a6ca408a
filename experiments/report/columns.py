"""Columns of the report's tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..analysis.accounting import BEYOND, MOST_OVER, WITHIN
from ..analysis.costs import LIBRARIES, REST
from ..analysis.losses import FACTORS, LOSSES
from ..analysis.names import model_label
from ..subjects.memory import GRAPH, KINDS
from ..tables import (
    USABLE,
    Column,
    count_column,
    number_column,
    percent_column,
    ratio_columns,
    size_column,
    text_column,
    time_column,
)
from ..tables.numbers import JUDGED_AT, interval, number, percent, percent_interval, time

MODEL = Column("model", lambda r: model_label(r["model"]))
THREADS = count_column("threads")
ROUNDS = Column(
    "rounds, generations, sessions", lambda r: f"{r['rounds'] or 0}, {r['generations']}, {r['sessions']}", True
)
PLAN = text_column("plan_name", "plan")
PROBLEM = text_column("problem")
VERDICT = Column("verdict", lambda r: r["verdict"] + f" ({r['lacks']})" * bool(r["lacks"]))
POINT = (MODEL, THREADS)
AGAINST_JOIN = (*ratio_columns("time / fork-join"), VERDICT)

ANSWER = (
    text_column("question"),
    text_column("verdict"),
    Column("ratio", lambda r: number(r["ratio"], 3), True),
    text_column("amount", "by how much"),
    Column("times", lambda r: _two_times(r["time_s"], r["reference_s"]), True),
    percent_column("apart", "sessions apart", 1),
    ROUNDS._replace(heading="rounds, gen., sess."),  # fits a terminal
)
SPEED = (
    *POINT,
    ROUNDS,
    time_column("time_s", "time"),
    *ratio_columns("speedup", "speedup", 2),
    percent_column("efficiency", "efficiency", 1),
    *AGAINST_JOIN,
    text_column("above_one", "why above 100 %"),
)
OF_TIME = SPEED.index(AGAINST_JOIN[0])  # columns before it are of a point's own time
CALLED = Column("call", MODEL.text)
CALL = (CALLED, *SPEED[1:OF_TIME], number_column("cpus_busy", "CPUs busy"), *ratio_columns("time / reference"), VERDICT)
BY_NODE = (text_column("node"), *POINT, count_column("generations"), *AGAINST_JOIN)
NODE = (
    *map(text_column, ("node", "host")),
    count_column("generations"),
    Column("GFLOP/s of a thread", lambda r: number((r["peak_flops_per_s"] or math.nan) / 1e9, 1), True),
    Column("GB/s of most threads", lambda r: number((r["bandwidth_bytes_per_s"] or math.nan) / 1e9, 1), True),
    number_column("capacity"),
)
LADDER = (
    text_column("takes", "removes (−), adds (+)"),
    MODEL,
    time_column("time_s", "time"),
    *ratio_columns("time / rung above", "above", 3),
    *AGAINST_JOIN,
    USABLE,
    number_column("simulated_8", "simulated, 8 threads", 3),
    number_column("simulated_64", "64", 3),
)
COUNTERS = (
    *POINT,
    number_column("cycles", "cycles per step", 0),
    number_column("instructions", "instructions per step", 0),
    number_column("per_cycle", "instructions per cycle"),
    number_column("llc_misses", "last-level misses per step", 0),
    Column("energy per step", lambda r: time(r["joules"], "J"), True),
    *ratio_columns("energy / fork-join", "energy"),
)


def block_counter_columns(what: str, rows: Sequence[Mapping[str, Any]]) -> tuple[Column, ...]:
    """Return the columns of counts in blocks, by kernel or by thread, for the events that the rows have."""
    events = [name for name in (rows[0] if rows else ()) if name not in ("model", "threads", what, "per_cycle")]
    return (
        *POINT,
        text_column(what),
        *(number_column(name, f"{name.replace('_', ' ')} per step", 0) for name in events),
        number_column("per_cycle", "instructions per cycle"),
    )


OWN_BEST = (
    THREADS,
    MODEL,
    text_column("granularity", "its best granularity"),
    time_column("time_s", "time"),
    ratio_columns("speedup", "speedup", 2)[0],
    *ratio_columns("time / fork-join at its best"),
    VERDICT,
)
AXIS = (
    text_column("value"),
    text_column("baseline", "over"),
    *POINT,
    *map(text_column, ("problem", "granularity")),
    time_column("time_s", "time"),
    *ratio_columns("ratio of times"),
    VERDICT,
)


def phase_columns(phases: Sequence[str]) -> tuple[Column, ...]:
    """Return the columns of times, speedups and efficiencies of phases."""
    result = [*POINT, text_column("timed", "time is")]
    for phase in phases:
        result += [
            time_column(f"{phase}_s", phase),
            number_column(f"{phase}_speedup", "speedup"),
            percent_column(f"{phase}_efficiency", "eff.", 1),
        ]
    return (*result, percent_column("update_beside_backward", "overlaps backward"))


LAYER = (
    *map(text_column, ("layer", "phase")),
    count_column("blocks"),
    time_column("time_s", "time"),
    percent_column("share", "share", 1),
    Column(
        "least to most", lambda r: percent_interval(r["share_low"], r["share_high"]) if r["profiles"] > 1 else "", True
    ),
    Column("GFLOP/s", lambda r: number(r["gflops"], 1) if r["flops"] else "", True),
    Column("of peak", lambda r: percent(r["peak_fraction"]) if r["flops"] else "", True),
)
ROOFLINE = (
    *map(text_column, ("kernel", "phase")),
    count_column("loops"),
    time_column("time_s", "time"),
    percent_column("share", "share", 1),
    number_column("intensity", "FLOP per byte", 1),
    text_column("bound", "bound by"),
    time_column("floor_s", "floor"),
    percent_column("roof", "floor / time"),
)
LOSS = (
    *POINT,
    time_column("step_time_s", "iteration"),
    *(time_column(f"{name}_s", loss.label) for name, loss in LOSSES.items()),
    USABLE,
)
EFFICIENCY = (
    *POINT,
    percent_column("global_efficiency", "efficiency"),
    *(number_column(name, digits=3) for name in FACTORS),
    USABLE,
)

COST = (*POINT, *map(time_column, ("prepare_s", "record_s", "close_s", "first_replay_s", "step_s")))
CALL_COST = (
    *(CALLED, THREADS, time_column("prepare_s", "setup")),
    *(time_column("first_replay_s", "first call"), time_column("step_s", "later calls")),
)


def _bound(name: str, heading: str) -> Column:
    """Return a column of a time with its interval in the same unit, such as "2.84 ms [2.80, 2.90]"."""

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
ACCOUNT = (
    *POINT,
    time_column("measured_s", "measured"),
    number_column("logged", "logged / timed"),
    *ratio_columns("inflation", "inflation"),
    Column("floor", lambda r: FLOOR_NAMES[r["floor"]]),
    time_column("floor_s", "its value"),
    percent_column("excess", "excess", 1),
    Column("95% interval", lambda r: percent_interval(r["excess_low"], r["excess_high"]), True),
    time_column("per_unit_s", "per unit"),
    time_column("runtime_cost_s", "empty kernels"),
    *ratio_columns("time / both", "over_expected"),
    Column(f"within {MOST_OVER:.0%}", lambda r: {WITHIN: "yes", BEYOND: "no"}.get(r["overhead"], r["overhead"])),
)
GPU = (
    MODEL,
    *ratio_columns("gpu_stream / this", "vs_stream", 2),
    time_column("overhead_s", "empty kernels"),
    time_column("busy_s", "kernels"),
    percent_column("idle_share", "idle"),
    *map(time_column, ("context_s", "compilation_s", "prepare_s")),
)
FACTORIAL = (
    THREADS,
    *map(text_column, ("creation", "barrier", "placement", "order")),
    time_column("time_s", "time"),
    *ratio_columns("time / first cell"),
)
EFFECT = (
    THREADS,
    text_column("effect"),
    number_column("ratio", "time after / before", 3),
    Column("95% interval", lambda r: interval(r["low"], r["high"], 3, JUDGED_AT), True),
    percent_column("share", "share"),
    VERDICT,
    USABLE,
)
INTERFERENCE = (
    count_column("hogs", "competing processes"),
    MODEL,
    THREADS,
    number_column("capacity", "capacity left", 3),
    *ratio_columns("slowdown", "slowdown"),
    percent_column("loss", "loss beyond capacity", 1),
)
FAILURE = (*POINT, PLAN, *map(text_column, ("reason", "message")))
ENVIRONMENT = (*map(text_column, ("entry", "value")),)


MEMORY = (
    *POINT,
    size_column("peak_bytes", "peak"),
    *(size_column(part, part) for part in (*dict.fromkeys(KINDS.values()), GRAPH, LIBRARIES, REST)),
)


def _two_times(first: float, second: float) -> str:
    """Return two times, with one unit where they have the same: "1.07, 1.03 ms"."""
    texts = time(first), time(second)
    (number_of_first, _, unit), (*_, other_unit) = (text.partition(" ") for text in texts)
    return f"{number_of_first}, {texts[1]}" if unit == other_unit else ", ".join(texts)
