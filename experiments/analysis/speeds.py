"""Step times, speedups and verdicts: one row for each point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from ...cython_src.errors import UsageError
from ..subjects.models import SERIAL, ModelSpec
from ..tables.numbers import plural
from .estimates import MIN_SESSIONS, NOT_USABLE, NOTHING, UNDECIDED, Estimate, lacking, verdict
from .names import GRANULARITY, INTERFERENCE, NETWORK, is_graph, model_rank, plan_beside, value_text
from .sweep import Point, Sweep, kept

# Axes along which the work grows, and what times are compared for: a row of the step's input.
PER = {"batch": "sample", "sequence": "token"}
IMPLAUSIBLE_EFFICIENCY = 1.5
# On one thread all models run the same blocks of a network, whose order changes a step by 1 %: a serial run that takes
# longer than this many times such a point was disturbed. Of other graphs the order may decide what caches hold.
MOST_OVER_ONE_THREAD = 1.1


def interval_columns(name: str, estimate: Estimate) -> dict[str, float]:
    """Return the columns of an estimate: <name>, <name>_low, <name>_high."""
    return {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}


def estimate_of(row: Mapping[str, float], name: str) -> Estimate:
    """Return the estimate that `interval_columns` has written under a name; how many values it rests on is not kept."""
    return Estimate(*(row[f"{name}{end}"] for end in ("", "_low", "_high")), 0)


class Compared(NamedTuple):
    """A point's time over that of the fastest of some others.

    Attributes
    ----------
    reference : Point or None
        The fastest; None: there is nothing to compare with.
    verdict, lacks : str
        Of `verdict_columns`: the verdict, and what it would take where there is none; both empty without a reference.
    usable : bool
        Whether both times may be used.
    """

    reference: Point | None
    ratio: Estimate
    verdict: str
    lacks: str
    usable: bool

    def columns(self) -> dict[str, Any]:
        """Return the columns ratio, ratio_low, ratio_high, verdict and lacks of a table's row."""
        return {**interval_columns("ratio", self.ratio), "verdict": self.verdict, "lacks": self.lacks}


def compared(sweep: Sweep, point: Point, references: Sequence[Point], work: float = 1.0) -> Compared:
    """Compare a point with the fastest of some others, or with one, per unit of `work`: value, interval and verdict of
    every ratio of a page come from here."""
    if not references:
        return Compared(None, NOTHING, "", "", is_usable(sweep, point))
    ratio, fastest = sweep.ratio_to_fastest(point, references).divided_by(work), sweep.times.fastest(references)
    usable = is_usable(sweep, point) and is_usable(sweep, fastest)
    return Compared(fastest, ratio, **verdict_columns(sweep, ratio, point, fastest), usable=usable)


@kept
def best_serial(sweep: Sweep, plan_id: str) -> Point | None:
    """Return the fastest serial run of the same problem, at any granularity."""
    result = [Point(other, SERIAL, 1) for other in sweep.siblings(plan_id, GRANULARITY)]
    return min((p for p in result if p in sweep.turns), key=lambda p: sweep.typical_time(p).value, default=None)


def forkjoin_forms(sweep: Sweep, plan_id: str, threads: int, gpu: bool = False) -> list[str]:
    """Return the fork-join forms that were measured on this plan and number of threads, on the CPU or on a GPU."""
    wanted = "gpu_forkjoin" if gpu else "forkjoin"
    result = [m for p, m, t in sweep.turns if (p, t) == (plan_id, threads) and m.name == wanted]
    return sorted((model for model in result if not model.again), key=model_rank)


@kept
def better_forkjoin(sweep: Sweep, plan_id: str, threads: int, gpu: bool = False) -> ModelSpec | None:
    """Return the faster fork-join form on this plan and number of threads, on the CPU or on a GPU."""
    forms = forkjoin_forms(sweep, plan_id, threads, gpu)
    return min(forms, key=lambda m: (sweep.typical_time((plan_id, m, threads)).value, model_rank(m)), default=None)


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
    for point in sweep.points():
        plan_id, model, threads = point
        serial, typical = best_serial(sweep, plan_id), sweep.typical_time(point)
        speedup = sweep.ratio(serial, point) if serial else NOTHING
        gpu = model.is_gpu
        join_threads = 1 if gpu else threads  # gpu_forkjoin has one, gpu_both may have more
        own = (plan_id, model.repeated, threads)  # a model that is measured once more is compared with itself
        itself = bool(model.again) and own in sweep.turns
        reference = model.repeated if itself else better_forkjoin(sweep, plan_id, join_threads, gpu)
        reference = reference if reference != model else None
        forms = [(plan_id, form, join_threads) for form in forkjoin_forms(sweep, plan_id, join_threads, gpu)]
        against = compared(sweep, point, ([own] if itself else forms) if reference else ())
        rows.append(
            {
                **{name: _plain(value) for name, value in sweep.records[plan_id].items()},
                **point._asdict(),
                "sessions": typical.sessions,
                "generations": typical.count,
                "rounds": sweep.times.rounds(point),
                "time_s": typical.value,
                "low_s": typical.low,
                "high_s": typical.high,
                "fill_s": float(sweep.samples_of(point)["fill_time_s"].median()),
                **interval_columns("speedup", speedup),
                # Threads of the host say little of a model of a GPU: most only launch.
                **interval_columns("efficiency", NOTHING if gpu else speedup.divided_by(threads)),
                "reference": reference or "",
                **against.columns(),
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
    ratios = [sweep.ratio(serial, point) for point in own]
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
    possible = beyond or not serial or not sweep.ratio(serial, point).value / threads > limit
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
    """Return whether the points may be used that a table's row is about: its own, that of the plan which it is compared
    with, and that beside its hogs. What was not measured spoils nothing."""
    own = row["plan_id"]
    plans = {own, row.get("baseline_plan_id", own), plan_beside(own, row.get("hogs", 0))}
    points = [(plan_id, row["model"], row["threads"]) for plan_id in plans]
    return all(point not in sweep.turns or is_usable(sweep, point) for point in points)


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


@kept
def own_best_table(sweep: Sweep) -> pd.DataFrame:
    """Return each model at its own best granularity, for problems measured at several.

    Columns: problem, threads, model, granularity, plan_id, time_s, speedup, reference,
    reference_granularity, ratio, ratio_low, ratio_high, verdict, lacks. The reference is the best fork-join form at
    its own best granularity. Choosing the best of several by the same samples flatters each side a little.
    """
    speeds = speed_table(sweep).copy()
    rows = []
    speeds["problem"] = [sweep.problem_name(p) for p in speeds["plan_id"]]
    speeds["gpu"] = [model.is_gpu for model in speeds["model"]]
    speeds = speeds[[not model.again for model in speeds["model"]]]  # each is compared with itself, on its plan
    for (_, threads, gpu), group in speeds.groupby(["problem", "threads", "gpu"], sort=False):
        if group["plan_id"].nunique() < 2:
            continue
        best = group.loc[group.groupby("model")["time_s"].idxmin()]
        joins = best[best["model"].map(lambda model: model.name) == ("gpu_forkjoin" if gpu else "forkjoin")]
        reference = joins.loc[joins["time_s"].idxmin()] if len(joins) else None
        for _, row in best.iterrows():
            comparable = reference is not None and row["model"] != reference["model"]
            point = (row["plan_id"], row["model"], threads)
            forms = [(join["plan_id"], join["model"], threads) for _, join in joins.iterrows()]
            own = row[["problem", "threads", "model", "granularity", "plan_id", "time_s", "speedup"]]
            rows.append(
                {
                    **own,
                    "reference": reference["model"] if comparable else "",
                    "reference_granularity": reference["granularity"] if comparable else "",
                    **compared(sweep, point, forms if comparable else ()).columns(),
                }
            )
    rows.sort(key=lambda r: (r["problem"], r["threads"], model_rank(r["model"])))
    return pd.DataFrame(rows)


def plans_by_value(sweep: Sweep, plan_ids: Sequence[str], axis: str) -> dict[Any, str]:
    """Return plans that differ in an axis by its value, in the sweep's order."""
    result, requested = {sweep.records[p][axis]: p for p in plan_ids}, list(sweep.config.get(axis) or ())
    order = sorted(result, key=lambda value: requested.index(value) if value in requested else len(requested))
    return {value: result[value] for value in order}


@kept
def axis_table(sweep: Sweep) -> pd.DataFrame:
    """Return ratios along each swept axis: the time with one value over that with the first, all else equal.

    Two plans are compared where their records differ in this axis only, model by model and on as many threads. Along
    the axes "batch" and "sequence" times are those of a sample and of a token. Networks are different work, and hogs
    have a table of their own (`interference_table`): neither is compared here.

    Columns: axis, plan_id, baseline_plan_id, problem (of the baseline), granularity, model, threads, value, baseline
    (values of the axis), time_s, ratio, ratio_low, ratio_high, verdict, lacks.
    """
    rows = []
    for axis in (a for a in sweep.axes if a not in ("network", INTERFERENCE)):
        seen: set[str] = set()
        for plan_id in sweep.plan_ids():
            plans = sweep.siblings(plan_id, axis)
            if plan_id in seen or len(plans) < 2:
                continue
            seen.update(plans)
            (first, baseline), *others = plans_by_value(sweep, plans, axis).items()
            for value, other in others:
                work = value / first if axis in PER else 1.0
                for model, threads in sweep.points_of(other):
                    point, first_point = (other, model, threads), (baseline, model, threads)
                    if first_point not in sweep.turns:
                        continue
                    rows.append(
                        {
                            "axis": axis,
                            "plan_id": other,
                            "baseline_plan_id": baseline,
                            "problem": sweep.problem_name(baseline),
                            "granularity": sweep.records[baseline][GRANULARITY],
                            "model": model,
                            "threads": threads,
                            "value": value_text(value),
                            "baseline": value_text(first),
                            "time_s": sweep.typical_time(point).value,
                            **compared(sweep, point, [first_point], work).columns(),
                        }
                    )
    return pd.DataFrame(rows)


def main_plan(sweep: Sweep) -> str:
    """Return the plan that figures show by default: the one with most samples, the first of equals.

    Raises
    ------
    UsageError
        There is no sample yet.
    """
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
