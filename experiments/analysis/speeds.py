"""Step times, speedups and verdicts: one row for each point."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import pandas as pd

from ...cython_src.errors import UsageError
from ..subjects.models import SERIAL, ModelSpec
from ..tables.numbers import plural
from .estimates import MIN_SESSIONS, NOT_USABLE, NOTHING, UNDECIDED, Estimate, amount, lacking, verdict
from .names import GRANULARITY, NETWORK, is_graph, value_text
from .sweep import Point, Sweep, kept

IMPLAUSIBLE_EFFICIENCY = 1.5
# On one thread all models run the same blocks of a network, whose order changes a step by 1 %: a serial run that takes
# longer than this many times such a point was disturbed. Of other graphs the order may decide what caches hold.
MOST_OVER_ONE_THREAD = 1.1
# Columns of `ratio_rows` that tables of points have: a ratio to the point's reference, and its verdict.
RATIO = ("reference", "ratio", "ratio_low", "ratio_high", "verdict", "lacks")


def interval_columns(name: str, estimate: Estimate) -> dict[str, float]:
    """Return the columns of an estimate: <name>, <name>_low, <name>_high."""
    return {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}


def estimate_of(row: Mapping[str, float]) -> Estimate:
    """Return the ratio that `interval_columns` has written; how many values it rests on is not kept."""
    return Estimate(row["ratio"], row["ratio_low"], row["ratio_high"], 0)


class Pair(NamedTuple):
    """A point, and those whose fastest it is compared with."""

    point: Point
    references: Sequence[Point] = ()
    about: Mapping[str, Any] = MappingProxyType({})  # what the row of the pair has besides
    work: float = 1.0  # times the work of the references: their times are compared per unit of it


def ratio_rows(sweep: Sweep, pairs: Iterable[Pair]) -> list[dict[str, Any]]:
    """Return a row for each pair: value, interval and verdict of every ratio of a page come from here.

    Columns: those of `about`; plan_id, model, threads and time_s of the point; reference_plan_id, reference (model) and
    reference_s; sessions, generations, rounds and apart (of sessions, in logarithms) of the ratio; ratio, ratio_low,
    ratio_high (time over that of the fastest reference); verdict, lacks (see `verdict_columns`), amount (by how much);
    usable (both times). NaN and "" without a reference.
    """
    rows = []
    for (plan_id, model, threads), references, about, work in pairs:
        point, compared = Point(plan_id, model, threads), [Point(*each) for each in references]
        fastest = sweep.times.fastest(compared) if compared else None
        ratio = sweep.times.ratio_to_fastest(point, compared).divided_by(work) if fastest else NOTHING
        both = [point, fastest] if fastest else []
        usable = all(is_usable(sweep, each) for each in both or [point])
        rows.append(
            {
                **about,
                **point._asdict(),
                "time_s": sweep.times.time(point).value,
                "reference_plan_id": fastest.plan_id if fastest else "",
                "reference": fastest.model if fastest else "",
                "reference_s": sweep.times.time(fastest).value if fastest else math.nan,
                "sessions": ratio.sessions,
                "generations": ratio.count,
                "rounds": ratio.rounds,
                "apart": ratio.apart,
                **interval_columns("ratio", ratio),
                **verdict_columns(sweep, ratio, *both),
                "amount": amount(ratio) if fastest and (usable or not ratio.enough) else "",
                "usable": usable,
            }
        )
    return rows


@kept
def best_serial(sweep: Sweep, plan_id: str) -> Point | None:
    """Return the fastest serial run of the same problem, at any granularity; of functions and programs the reference on
    one thread."""
    serial = sweep.reference_call or SERIAL
    result = [Point(other, serial, 1) for other in sweep.siblings(plan_id, GRANULARITY)]
    return min((p for p in result if p in sweep.turns), key=lambda p: sweep.times.time(p).value, default=None)


def forkjoin_forms(sweep: Sweep, plan_id: str, threads: int, gpu: bool = False) -> list[str]:
    """Return the fork-join forms that were measured on this plan and number of threads, on the CPU or on a GPU."""
    wanted = "gpu_forkjoin" if gpu else "forkjoin"
    result = [m for p, m, t in sweep.turns if (p, t) == (plan_id, threads) and m.name == wanted]
    return sorted((model for model in result if not model.again), key=sweep.rank)


@kept
def better_forkjoin(sweep: Sweep, plan_id: str, threads: int) -> ModelSpec | None:
    """Return the faster fork-join form of the CPU on this plan and number of threads."""
    forms = forkjoin_forms(sweep, plan_id, threads)
    return min(forms, key=lambda m: (sweep.times.time((plan_id, m, threads)).value, sweep.rank(m)), default=None)


def forkjoin_of(sweep: Sweep, point: Point) -> list[Point]:
    """Return the fork-join forms on a point's device, plan and threads; gpu_forkjoin has one thread of the host. Of
    functions and programs it is their reference."""
    if sweep.reference_call:
        reference = point._replace(model=sweep.reference_call)
        return [reference] if reference in sweep.turns else []
    threads = 1 if point.model.is_gpu else point.threads
    forms = forkjoin_forms(sweep, point.plan_id, threads, point.model.is_gpu)
    return [Point(point.plan_id, form, threads) for form in forms]


def references_of(sweep: Sweep, point: Point) -> list[Point]:
    """Return what tables compare a point with: itself, if it is measured once more, else the fork-join forms, unless it
    is the better one."""
    own = point._replace(model=point.model.repeated)
    if point.model.again and own in sweep.turns:
        return [own]
    forms = forkjoin_of(sweep, point)
    return forms if forms and sweep.times.fastest(forms).model != point.model else []


@kept
def speed_table(sweep: Sweep) -> pd.DataFrame:
    """Return one row per point: time, speedup, efficiency, and the verdict against its device's better fork-join form.

    Columns: every field of the plan's record (network, batch, phase, and the other options), plan_id, model, threads,
    sessions, generations, rounds, time_s (typical time), low_s, high_s (95 % interval), fill_s, speedup, speedup_low,
    speedup_high (over the best serial run of the problem), efficiency, efficiency_low, efficiency_high, reference
    (model), ratio, ratio_low, ratio_high (time / reference's time), verdict, lacks (see `verdict_columns`), usable (see
    `is_usable`). NaN and "" where there is nothing to compare with; a GPU's models have no efficiency.
    """
    rows = []
    for against in ratio_rows(sweep, (Pair(point, references_of(sweep, point)) for point in sweep.points())):
        point = Point(*(against[name] for name in Point._fields))
        serial, typical = best_serial(sweep, point.plan_id), sweep.times.time(point)
        speedup = sweep.times.ratio(serial, point) if serial else NOTHING
        rows.append(
            {
                **{name: _plain(value) for name, value in sweep.records[point.plan_id].items()},
                **point._asdict(),
                "sessions": typical.sessions,
                "generations": typical.count,
                "rounds": sweep.times.rounds(point),
                "time_s": typical.value,
                "low_s": typical.low,
                "high_s": typical.high,
                "fill_s": float(sweep.samples_of(point)["fill_time_s"].median()),
                **interval_columns("speedup", speedup),
                # Threads of the host say little of models of a GPU: most only launch.
                **interval_columns("efficiency", NOTHING if point.model.is_gpu else speedup.divided_by(point.threads)),
                **{name: against[name] for name in RATIO},
                "usable": is_usable(sweep, point),
            }
        )
    return pd.DataFrame(rows)


@kept
def disturbed_serial(sweep: Sweep, plan_id: str) -> Estimate | None:
    """Return how many times as long as the same blocks on one thread the fastest serial run of a network takes, where
    it was disturbed: by more than any model explains."""
    serial = best_serial(sweep, plan_id)
    if not serial or is_graph(sweep.plans[plan_id]):
        return None
    own = [(p, m, t) for p, m, t in sweep.turns if p == serial.plan_id and t == 1 and not (m.is_gpu or m.is_peer)]
    ratios = [sweep.times.ratio(serial, point) for point in own]
    most = max(ratios, key=lambda ratio: ratio.low if ratio.known else ratio.value, default=NOTHING)
    return most if (most.low if most.known else most.value) > MOST_OVER_ONE_THREAD else None


@kept
def is_usable(sweep: Sweep, point: Point) -> bool:
    """Return whether a point's time may be used: there is one, a computer can reach it (where the serial run was
    disturbed, no efficiency above 1), and others left alone most of its samples, and a third of its rounds."""
    if point not in sweep.turns:
        return False
    plan_id, model, threads = point
    serial = best_serial(sweep, plan_id)
    beyond = model.is_gpu or model.is_peer  # of what our serial run bounds
    limit = 1.0 if disturbed_serial(sweep, plan_id) else IMPLAUSIBLE_EFFICIENCY
    possible = beyond or not serial or not sweep.times.ratio(serial, point).value / threads > limit
    return possible and point not in sweep.disturbed_points and sweep.times.left_alone(point)


def verdict_columns(sweep: Sweep, ratio: Estimate, *points: Point) -> dict[str, str]:
    """Return the columns of a verdict on a ratio of points' times: verdict, and where it rests on fewer sessions than
    others of its page; if a point is not usable, that in place of a direction; and lacks: what it would take where
    there is none. Both are empty without points."""
    if not points:
        return {"verdict": "", "lacks": ""}
    if not all(is_usable(sweep, point) for point in points):
        return {"verdict": NOT_USABLE, "lacks": ""}
    few = sweep.sessions >= MIN_SESSIONS > ratio.sessions and ratio.known
    text = verdict(ratio) + f", in {plural(ratio.sessions, 'session')}" * few
    return {"verdict": text, "lacks": lacking(ratio) if text == UNDECIDED else ""}


def scope(sweep: Sweep) -> str:
    """Return for what the verdicts of a sweep hold: "in this session", or "over 5 sessions"."""
    if sweep.sessions < MIN_SESSIONS:
        return "in this session" if sweep.sessions == 1 else "in these sessions"
    return f"over {sweep.sessions} sessions"


def row_is_usable(sweep: Sweep, row: Mapping[str, Any]) -> bool:
    """Return whether the point of a table's row may be used; what was not measured spoils nothing."""
    point = (row["plan_id"], row["model"], row["threads"])
    return point not in sweep.turns or is_usable(sweep, point)


def with_usable(sweep: Sweep, table: pd.DataFrame) -> pd.DataFrame:
    """Return a table with the column usable; see `row_is_usable`."""
    return table.assign(usable=[row_is_usable(sweep, row) for row in table.to_dict("records")])


def _plain(value: Any) -> Any:
    """Return an option's value as a cell of a table."""
    return value_text(value) if isinstance(value, (tuple, list)) else value


def on_most_threads(table: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """Return the rows of a table of points that are on the largest number of threads of the CPU, and that number.

    Models of a GPU take as many threads of the host as they can, mostly one: each has its own largest number.
    """
    gpu = table["model"].map(lambda model: model.is_gpu)
    widest = int(table.loc[~gpu, "threads"].max()) if len(table) > gpu.sum() else 1
    own = table.groupby("model")["threads"].transform("max").where(gpu, widest)
    return table[table["threads"] == own], widest


def main_plan(sweep: Sweep) -> str:
    """Return the plan that figures show by default: the one with most samples, the first of equals. Raises
    `UsageError`: there is no sample yet."""
    if not len(sweep.samples):
        reasons = "; ".join(sorted({f"{r.model}: {r.message}" for r in sweep.failures})) or "none was measured yet"
        raise UsageError(f"tables and figures need at least one sample, got none ({reasons}); measure again")
    counts = sweep.samples["plan_id"].value_counts()
    return max(sweep.plan_ids(), key=lambda plan_id: counts[plan_id])


def leading_plans(sweep: Sweep) -> list[str]:
    """Return one plan of each network, the main plan first: those whose figures show how plans of a network compare."""
    counts = sweep.samples["plan_id"].value_counts()
    result: dict[str, str] = {}
    for plan_id in sorted(sweep.plan_ids(), key=lambda plan_id: -counts[plan_id]):
        result.setdefault(sweep.records[plan_id][NETWORK], plan_id)
    return list(result.values())
