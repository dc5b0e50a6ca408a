"""Comparisons of a sweep: pairs of points, and the rows that `ratio_rows` makes of them.

Each model at its own best granularity; along each swept axis; beside competing processes; rung by rung on the ladder
from fork-join to tasks; which share of what fork-join loses other models recover; and on each node.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from ...cython_src.plan.barriers import BARRIERS
from ..subjects.models import SERIAL, ModelSpec
from . import speeds
from .estimates import FASTER, MIN_GENERATIONS, NOT_USABLE, SAME, UNDECIDED, Estimate
from .names import GRANULARITY, INTERFERENCE, NETWORK, model_label, plan_beside, value_text
from .speeds import Pair, interval_columns, ratio_rows
from .sweep import Point, Sweep, capacity_of, kept

# Axes along which the work grows, and what times are compared for: a row of the step's input.
PER = {"batch": "sample", "sequence": "token"}
# What a ladder removes; a model that waits at one of `BARRIERS` waits at all that follow it too.
START, CREATION = "start of threads", "creation of tasks"
WAITS = {"loop": "waits after loops", "phase": "waits after phases", "iteration": "waits after steps"}
SAID, MOST_SAID = ("tasks", "taskgraph", "taskiter"), 3  # models of `recovered_text`: ours in their default form
LEAST_LOSS = 0.02  # of fork-join's time: shares of less are of noise
WIDEST = 0.2  # interval of E of which something is said


@kept
def own_best_table(sweep: Sweep) -> pd.DataFrame:
    """Return each model at its own best granularity, for problems measured at several.

    Columns: problem, granularity, speedup, reference_granularity and those of `ratio_rows`. The reference is the best
    fork-join form at its own best granularity. Choosing the best of several by the same samples flatters each side a
    little.
    """
    table = speeds.speed_table(sweep)
    problems = table["plan_id"].map(sweep.problem_name)
    table = table.assign(problem=problems, gpu=[model.is_gpu for model in table["model"]])
    table = table[[not model.again for model in table["model"]]]  # each is compared with itself, on its plan
    pairs = []
    for (_, _, gpu), group in table.groupby(["problem", "threads", "gpu"], sort=False):
        if group["plan_id"].nunique() < 2:
            continue
        best = group.loc[group.groupby("model")["time_s"].idxmin()].to_dict("records")
        forkjoin = "gpu_forkjoin" if gpu else "forkjoin"
        forms = [Point(*map(row.get, Point._fields)) for row in best if row["model"].name == forkjoin]
        fastest = sweep.times.fastest(forms).model if forms else None
        for row in best:
            about = {name: row[name] for name in ("problem", "granularity", "speedup")}
            others = forms if row["model"] != fastest else ()
            pairs.append(Pair(Point(*map(row.get, Point._fields)), others, about))
    rows = ratio_rows(sweep, pairs)
    for row in rows:
        row["reference_granularity"] = sweep.records[row["reference_plan_id"]][GRANULARITY] if row["reference"] else ""
        row["usable"] = speeds.is_usable(sweep, Point(*map(row.get, Point._fields)))
    rows.sort(key=lambda row: (row["problem"], row["threads"], sweep.rank(row["model"])))
    return pd.DataFrame(rows)


def plans_by_value(sweep: Sweep, plan_ids: Sequence[str], axis: str) -> dict[Any, str]:
    """Return plans that differ in an axis by its value, in the sweep's order."""
    result, requested = {sweep.records[p][axis]: p for p in plan_ids}, list(sweep.config.get(axis) or ())
    order = sorted(result, key=lambda value: requested.index(value) if value in requested else len(requested))
    return {value: result[value] for value in order}


def _pairs_along_axes(sweep: Sweep) -> Iterator[Pair]:
    for axis in (a for a in sweep.axes if a not in (NETWORK, INTERFERENCE)):
        seen: set[str] = set()
        for plan_id in sweep.plan_ids():
            plans = sweep.siblings(plan_id, axis)
            if plan_id in seen or len(plans) < 2:
                continue
            seen.update(plans)
            (first, baseline), *others = plans_by_value(sweep, plans, axis).items()
            about = {"axis": axis, "baseline_plan_id": baseline, "problem": sweep.problem_name(baseline)}
            about |= {"granularity": sweep.records[baseline][GRANULARITY], "baseline": value_text(first)}
            for value, other in others:
                work = value / first if axis in PER else 1.0
                for own in sweep.points_of(other):
                    if (baseline, *own) in sweep.turns:
                        named = {**about, "value": value_text(value)}
                        yield Pair(Point(other, *own), [Point(baseline, *own)], named, work)


@kept
def axis_table(sweep: Sweep) -> pd.DataFrame:
    """Return ratios along each swept axis: the time with one value over that with the first, all else equal.

    Two plans are compared where their records differ in this axis only, model by model and on as many threads. Along
    the axes "batch" and "sequence" times are those of a sample and of a token. Networks are different work, and hogs
    have a table of their own (`interference_table`): neither is compared here.

    Columns: axis, baseline_plan_id, problem (of the baseline), granularity, value, baseline (values of the axis), and
    those of `ratio_rows`.
    """
    return pd.DataFrame(ratio_rows(sweep, _pairs_along_axes(sweep)))


@kept
def interference_table(sweep: Sweep) -> pd.DataFrame:
    """Return the loss of each model to competing processes, beyond the CPU time that they take: a row for each model
    and number of hogs whose point was also measured without hogs.

    `interference = [0, 1, 2]` in a configuration measures each point with 0, 1 and 2 competing processes that spin,
    each on one of the last CPUs. Such a hog takes its share of a CPU, as a rule half, in time slices of milliseconds.
    The rest is measured with threads that only spin, one on each CPU, beside the same hogs: the capacity. A model that
    always had a block to run in the CPU time it got would take 1 / capacity times as long; the time beyond that is its
    loss.

    Columns: plan_id, threads, model, hogs, capacity (NaN where not measured), slowdown, slowdown_low, slowdown_high
    (step time over that without hogs, paired by repetition), loss, loss_low, loss_high (slowdown x capacity - 1),
    usable.
    """
    counts = sorted({plan.interference for plan in sweep.plans.values()})
    alone = [plan_id for plan_id, plan in sweep.plans.items() if not plan.interference]
    pairs = [
        Pair(Point(plan_beside(plan_id, hogs), *own), [Point(plan_id, *own)], {"hogs": hogs})
        for plan_id in alone
        for hogs in counts
        for own in sweep.points_of(plan_id)
    ]
    rows = []
    for row in ratio_rows(sweep, pairs):
        if not math.isfinite(row["ratio"]):  # no generation has both
            continue
        about = {"plan_id": row["reference_plan_id"], **{name: row[name] for name in ("threads", "model", "hogs")}}
        measured = sweep.machine.capacity_beside.get(str(row["threads"]), {}).get(str(row["hogs"]), math.nan)
        left, slowdown = measured if row["hogs"] else 1.0, speeds.estimate_of(row)
        loss = Estimate(*(end * left - 1 for end in (slowdown.value, slowdown.low, slowdown.high)), slowdown.count)
        columns = interval_columns("slowdown", slowdown) | interval_columns("loss", loss)
        rows.append({**about, "capacity": left, **columns, "usable": row["usable"]})
    table = pd.DataFrame(rows)
    return table[table.groupby("plan_id")["hogs"].transform("max") > 0] if len(table) else table


# --- the ladder from fork-join to tasks: models in the order of their file, and the wait that each removes ---


def waits_of(spec: ModelSpec) -> list[str]:
    """Return the costs of a model of the CPU that another rung may remove, in the order of the ladder."""
    result = [START] if spec.model.joins_loops and spec.option("region") != "persistent" else []
    result += [WAITS[kind] for kind in BARRIERS[BARRIERS.index(spec.barrier) :] if kind in WAITS]
    creates = spec.model.runs_tasks and not spec.model.records
    return [*result, *([CREATION] if creates else [])]


def no_ladder(sweep: Sweep, plan_id: str) -> str:
    """Return why a plan's models are no ladder; empty: they are one."""
    if len(rungs(sweep, plan_id)) > 2 and any(m.barrier == "phase" for m in rungs(sweep, plan_id)):
        return ""
    return (
        "a ladder needs a fork-join form, and below it tasks that wait after phases (tasks:taskwait=phase, "
        "taskgraph:barrier=phase) and tasks that do not; run gpt2_ladder"
    )


def rungs(sweep: Sweep, plan_id: str) -> list[ModelSpec]:
    """Return the measured models of the CPU from the first fork-join form on, in the order of the file, or in which
    they were chosen."""
    measured = {model for model, _ in sweep.points_of(plan_id)}
    requested = sweep.shown or sweep.asked_models
    specs = [s for s in requested if s in measured and s.model.max_threads is None and not s.is_gpu]
    first = next((place for place, spec in enumerate(specs) if spec.model.joins_loops), len(specs))
    return specs[first:]


@kept
def ladder_table(sweep: Sweep, plan_id: str) -> pd.DataFrame:
    """Return a row for each rung on most threads, in the order of the file.

    Columns: model, threads, time_s, low_s, high_s, usable and `RATIO` (time over that of the better fork-join form),
    all as in `speed_table`; takes (the waits that the rung removes from the one above and those that it adds); above,
    above_low, above_high (time over that of the rung above), above_verdict. NaN and "" where there is nothing to
    compare with.
    """
    rows, threads = speeds.on_most_threads(speeds.speed_table(sweep)[lambda table: table["plan_id"] == plan_id])
    own = {row["model"]: row for row in rows.to_dict("records")}
    models = [model for model in rungs(sweep, plan_id) if model in own]
    points = [Point(plan_id, model, threads) for model in models]
    pairs = [Pair(point, points[max(place - 1, 0) : place]) for place, point in enumerate(points)]
    return pd.DataFrame(
        {
            **{name: own[row["model"]][name] for name in ("model", "threads", "time_s", "low_s", "high_s", "usable")},
            "takes": _takes(row["reference"], row["model"]),
            **interval_columns("above", speeds.estimate_of(row)),
            "above_verdict": row["verdict"],
            **{name: own[row["model"]][name] for name in speeds.RATIO},
        }
        for row in ratio_rows(sweep, pairs)
    )


def _takes(above: ModelSpec | str, spec: ModelSpec) -> str:
    """Name the waits that a rung removes from the one above, and those that it adds."""
    own, steps = waits_of(spec), spec.option("unroll", 1)
    before = waits_of(above) if isinstance(above, ModelSpec) else own
    taken, added = ([w for w in a if w not in b] for a, b in ((before, own), (own, before)))
    parts = [f"{sign} {', '.join(words)}" for sign, words in (("−", taken), ("+", added)) if words]
    if not above:
        parts = [f"all: {', '.join(own)}"]
    return "; ".join([*parts, *([f"holds {steps} steps"] if steps > 1 else [])]) or "the same waits"


# --- how busy fork-join keeps its cores, and which share of what it loses other models recover ---


@kept
def recovered_table(sweep: Sweep) -> pd.DataFrame:
    """Return one row per plan, number of threads and model that runs tasks on the CPU.

    E = serial time / (threads x time of fork-join), of the same blocks. No schedule of these blocks takes less than E
    of fork-join's time, unless blocks themselves get faster; so (1 - ratio) / (1 - E) of what can be gained is
    recovered.

    Columns: plan_id, threads, model, busy, busy_low, busy_high (E of the fastest fork-join form), ratio, ratio_low,
    ratio_high (over that form), verdict, recovered (share of 1 - E; NaN where that is less than `LEAST_LOSS`),
    recovered_low, recovered_high (as far as both intervals allow). Plans without a fork-join form or a serial run have
    no row.
    """
    points = [
        point
        for point in sweep.points()
        if not (point.model.name == "forkjoin" or point.model.is_gpu or point.model.is_peer or point.model.again)
        and point.threads > 1
        and (point.plan_id, SERIAL, 1) in sweep.turns
    ]
    forms = {(point.plan_id, point.threads): speeds.forkjoin_of(sweep, point) for point in points}
    shares = {
        (plan_id, threads): sweep.times.ratio_to_fastest(Point(plan_id, SERIAL, 1), own).divided_by(threads)
        for (plan_id, threads), own in forms.items()
        if own
    }
    pairs = [Pair(point, forms[key]) for point in points if (key := (point.plan_id, point.threads)) in shares]
    rows: list[dict[str, Any]] = []
    for row in ratio_rows(sweep, pairs):
        ratio, busy = speeds.estimate_of(row), shares[row["plan_id"], row["threads"]]
        known = 1 - busy.value >= LEAST_LOSS
        rows.append(
            {
                **{name: row[name] for name in ("plan_id", "threads", "model")},
                **interval_columns("busy", busy),
                **{name: row[name] for name in ("ratio", "ratio_low", "ratio_high", "verdict")},
                "recovered": (1 - ratio.value) / (1 - busy.value) if known else math.nan,
                "recovered_low": _share(1 - ratio.high, 1 - busy.high, 1 - busy.low) if known else math.nan,
                "recovered_high": -_share(ratio.low - 1, 1 - busy.high, 1 - busy.low) if known else math.nan,
            }
        )
    rows.sort(key=lambda row: (sweep.plan_ids().index(row["plan_id"]), row["threads"], sweep.rank(row["model"])))
    return pd.DataFrame(rows)


def _share(gain: float, loss_low: float, loss_high: float) -> float:
    """Return a gain over a loss, whichever end of the loss's interval makes it smaller; NaN if there may be no loss."""
    return min(gain / loss_low, gain / loss_high) if loss_low > 0 else math.nan


def recovered_text(sweep: Sweep, plan_id: str) -> str:
    """Say how busy fork-join keeps its cores on most threads, what each task model gains, and which share that is of
    what can be gained; nothing where there is no table, or fork-join has no interval."""
    table = recovered_table(sweep)
    rows = table[table["plan_id"] == plan_id].to_dict("records") if len(table) else []
    rows = [row for row in rows if row["threads"] == max(row["threads"] for row in rows)]
    if not rows:
        return ""
    busy = rows[0]
    threads = f"its {busy['threads']} threads"
    if not math.isfinite(busy["busy_low"]):
        return f"How busy fork-join keeps {threads} is not known: that needs {MIN_GENERATIONS} generations."
    text = (
        f"Fork-join keeps {threads} {busy['busy']:.0%} busy [{100 * busy['busy_low']:.0f}, "
        f"{100 * busy['busy_high']:.0f}]"
    )
    if busy["busy_high"] - busy["busy_low"] > WIDEST:
        return f"{text}: too little is known to say what can be gained; measure longer, or on a quiet machine."
    if not speeds.is_usable(sweep, Point(plan_id, SERIAL, 1)):
        return f"{text}, by a serial run that is not usable: nothing is said of what can be gained; measure again."
    named = ([row for row in rows if row["model"] in SAID] or rows)[:MOST_SAID]
    if busy["busy"] >= 1 - LEAST_LOSS:
        text += ": there is nothing to gain, unless blocks themselves get faster"
        named = [row for row in named if row["verdict"].startswith(FASTER)]
    else:
        text += f", so another schedule of the same blocks can save {1 - busy['busy']:.0%} at most"
    models = "; ".join(map(_model_text, named))
    return f"{text}. {models}." if models else f"{text}."


def _model_text(row: dict[str, Any]) -> str:
    """Say what a model gains, in per cent of fork-join's time with the interval, and the share."""
    name, outcome = model_label(row["model"]), row["verdict"].partition(",")[0]
    if outcome in (UNDECIDED, NOT_USABLE, SAME):
        return f"{name}: {row['verdict']}"
    low, high = sorted((100 * abs(1 - row["ratio_high"]), 100 * abs(1 - row["ratio_low"])))
    differs = f"{100 * abs(1 - row['ratio']):.1f} % {'less' if row['ratio'] < 1 else 'more'}"
    text = f"{name} takes {differs} [{low:.1f}, {high:.1f}]"
    if row["ratio_high"] < row["busy_low"]:
        return f"{text}, since blocks got faster"
    if row["ratio"] >= 1 or math.isnan(row["recovered"]):
        return text
    return f"{text}, {min(row['recovered'], 1.0):.0%} of that"


@kept
def sweep_on(sweep: Sweep, node: str) -> Sweep:
    """Return a sweep with the times of one node's generations alone."""
    return sweep.with_turns(
        {
            point: {turn: seconds for turn, seconds in own.items() if sweep.node_of[turn[0]] == node}
            for point, own in sweep.turns.items()
        }
    )


def node_limits(sweep: Sweep) -> list[dict[str, Any]]:
    """Return a row for each node: node, host, generations, peak_flops_per_s, bandwidth_bytes_per_s and capacity, those
    of most threads."""
    result = []
    for name in sweep.nodes:
        machines = [row for row in sweep.machines if row.node.name == name]
        last = machines[-1] if machines else sweep.machine
        threads = max(map(int, last.capacity), default=1)
        capacities = [row for row in sweep.capacities if row.node.name == name]
        result.append(
            {
                "node": name,
                "host": last.node.host,
                "generations": sum(node == name for node in sweep.node_of.values()),
                "peak_flops_per_s": last.peak_flops_per_s_1thread,
                "bandwidth_bytes_per_s": last.bandwidth_bytes_per_s.get(str(threads)),
                "capacity": capacity_of([*machines, *capacities], threads).value,
            }
        )
    return result
