"""Findings of a results folder: sentences with numbers, the most costly first, each with what to try."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ...cython_src.errors import UsageError
from ...cython_src.typed_text import rounded
from ..analysis.names import INTERFERENCE, base_model, model_label
from ..analysis.speeds import better_forkjoin
from ..analysis.study import Study
from ..bounds.bounds import fork_join_static_bound
from ..sampling.events import EventLog
from ..simulate.machine_model import MachineModel, continued, extrapolated
from ..simulate.policies import Subject, simulate
from ..simulate.predict import machine_of_study, simulated_models, subject_of
from .chains import Chain, cycle_parts, find_chains
from .gpu_lanes import explain
from .outliers import CAUSES, find_outliers
from .what_if import relower

LEAST_PART = 0.01  # of a step that a finding must cost
SATURATED = 0.7  # part of the measured bandwidth
INFLATED = 1.1
MANY = 3  # loops or layers that a sentence names


@dataclass(frozen=True)
class Finding:
    """Something that costs time.

    Attributes
    ----------
    kind : str
        "chain", "cycle", "imbalance", "barriers", "creation", "too fine", "too coarse", "bandwidth" or "outliers"; of a
        GPU's log "device" or one of `gpu_lanes.REASONS`.
    cost_s : float
        Seconds of a step that it costs.
    text : str
        What was found, with its numbers.
    attempt, brings : str
        What to try, and what it would bring; empty where nothing is known.
    """

    kind: str
    cost_s: float
    text: str
    attempt: str = ""
    brings: str = ""

    def as_row(self) -> dict[str, Any]:
        """Return the finding for JSON."""
        return {"kind": self.kind, "cost_s": self.cost_s, "text": self.text, "try": self.attempt, "brings": self.brings}


class Case:
    """A plan on the largest measured number of threads: its blocks, its models, and simulations of them."""

    def __init__(self, study: Study, plan_id: str):
        self.study = study
        self.plan_id = plan_id
        self.threads = max(threads for _, threads in study.points_of(plan_id))
        self.machine: MachineModel = machine_of_study(study)
        self.subject: Subject = subject_of(study, plan_id, self.machine)
        self.plan = self.subject.plan
        self.seconds = self.subject.seconds
        self.work_s = float(self.seconds.sum())
        self.options: Mapping[str, Any] = study.plans[plan_id]["options"]
        self.models = simulated_models(study, plan_id)
        measured = better_forkjoin(study, plan_id, self.threads)
        self.forkjoin = measured if measured in self.models else "forkjoin:region=persistent"
        self.task_models = [m for m in self.models if base_model(m) != "forkjoin"] or ["taskgraph"]

    def time(self, model: str, subject: Subject | None = None, threads: int | None = None) -> float:
        """Return the simulated time of a step."""
        return simulate(subject or self.subject, model, threads or self.threads).step_s

    @cached_property
    def best(self) -> tuple[str, float]:
        """The model with the shortest simulated step, and its time."""
        times = {model: self.time(model) for model in (self.forkjoin, *self.task_models)}
        return min(times.items(), key=lambda item: item[1])

    @cached_property
    def chains(self) -> list[Chain]:
        """Chains that take longer than their blocks would side by side."""
        least = LEAST_PART * self.work_s
        return [
            c for c in find_chains(self.plan, self.seconds) if c.seconds > max(c.work_s / max(self.threads, 2), least)
        ]

    def other(self, **options: Any) -> Subject:
        """Return the plan with other options, durations estimated."""
        return relower({**self.options, **options}, self.plan, self.seconds, self.machine)

    def gain_text(self, before: str, after: str, now: float, then: float) -> str:
        """Say what a change brings by simulation."""
        return (
            f"by simulation on {self.threads} threads: {_ms(now)} ({before}) becomes {_ms(then)} ({after}), "
            f"{now / then:.2f} times as fast"
        )


def diagnose(study: Study, plan_id: str) -> list[Finding]:
    """Return the findings of a plan, the most costly first.

    Raises
    ------
    UsageError
        The plan's runs cannot be simulated.
    """
    if study.records[plan_id][INTERFERENCE]:
        raise UsageError("runs beside other processes are not diagnosed; choose a plan without interference")
    case = Case(study, plan_id)
    found = [finding for look in LOOKS for finding in look(case)]
    worth = [finding for finding in found if finding.cost_s >= LEAST_PART * case.work_s / case.threads]
    return sorted(worth, key=lambda finding: -finding.cost_s)


def _chains(case: Case) -> Iterator[Finding]:
    """Chains whose blocks could not run at once whatever the threads."""
    chains = case.chains
    if not chains:
        return
    named = "; ".join(
        f"{c.layer} {c.phase}: {c.links} blocks update {c.buffer!r} one after the other, {_ms(c.seconds)}"
        for c in chains[:MANY]
    )
    more = f"; and {len(chains) - MANY} more" if len(chains) > MANY else ""
    text = f"Dependency chains bind. {named}{more}."
    lost = sum(c.seconds - c.work_s / case.threads for c in chains)
    if case.options.get("weight_gradients", "partial") == "partial":
        yield Finding("chain", max(lost, 0.0), text, "break the chain: partial sums, or commutative updates")
        return
    attempt = "--weight-gradients partial: a partial sum for each group of blocks, added in a fixed order"
    if not case.plan.deterministic:  # the simulation lets commutative blocks run at once
        yield Finding("chain", max(lost, 0.0), text, attempt)
        return
    other = case.other(weight_gradients="partial")
    now, then = case.time(case.forkjoin), case.time(case.forkjoin, other)
    wide = 4 * case.threads
    best = case.best[0]
    yield Finding(
        "chain",
        max(now - then, lost, 0.0),
        text,
        attempt,
        case.gain_text(model_label(case.forkjoin), "with partial sums", now, then)
        + f"; {model_label(best)} on {wide} threads: {_ms(case.time(best, None, wide))} becomes "
        f"{_ms(case.time(best, other, wide))}",
    )


def _cycle(case: Case) -> Iterator[Finding]:
    """A critical cycle that no number of threads shortens."""
    mean, parts = cycle_parts(case.plan, case.subject.graph("none"), case.seconds)
    area = case.work_s / case.threads
    if mean < 0.9 * area:
        return
    through = ", ".join(f"{name} {part:.0%}" for name, part in parts[:MANY])
    yield Finding(
        "cycle",
        max(mean - area, 0.0) or mean * LEAST_PART,
        f"The critical cycle takes {_ms(mean)} a step, work over {case.threads} threads {_ms(area)}: more than "
        f"{max(1, int(case.work_s / mean))} threads cannot help. It leads through {through}.",
        "smaller blocks in these layers, so that each step of the cycle is shorter",
        f"at most {_ms(mean - area)} a step on {case.threads} threads" if mean > area else "",
    )


def _imbalance(case: Case) -> Iterator[Finding]:
    """Threads that wait at the end of fork-join's loops, by loop."""
    shares = []
    chained = {(c.layer, c.phase, c.kernel) for c in case.chains}  # a finding of its own
    for loop in case.plan.loops:
        if (loop.layer, loop.phase, loop.kernel) in chained:
            continue
        blocks = case.seconds[loop.first_task : loop.first_task + loop.num_blocks].tolist()
        shares.append((fork_join_static_bound([blocks], case.threads) - sum(blocks) / case.threads, loop))
    waiting = sum(share for share, _ in shares)
    by_layer: dict[str, list] = {}
    for share, loop in shares:
        own = by_layer.setdefault(f"{loop.layer or loop.name} {loop.phase}", [0.0, loop.num_blocks, 0])
        own[0] += share
        own[2] += 1
    worst = sorted(by_layer.items(), key=lambda item: -item[1][0])[:MANY]
    named = ", ".join(f"{name} {_ms(own[0])} ({own[2]} loop{'s' * (own[2] > 1)})" for name, own in worst)
    now = case.time(case.forkjoin)
    options = {"schedule=dynamic": f"{case.forkjoin}:schedule=dynamic"} if "schedule" not in case.forkjoin else {}
    best, model = min((case.time(m), m) for m in [*options.values(), *case.task_models])
    yield Finding(
        "imbalance",
        waiting,
        f"Threads of fork-join wait between layers: {_ms(waiting)} of a step of {_ms(now)}, because the shares of a "
        f"loop are unequal or it has too few blocks. Most in {named}.",
        f"{model_label(model)}, in which blocks of the next layers run meanwhile"
        if base_model(model) != "forkjoin"
        else model_label(model),
        case.gain_text(model_label(case.forkjoin), model_label(model), now, best) if best < now else "",
    )


def _barriers(case: Case) -> Iterator[Finding]:
    """Fork-join's barriers themselves."""
    costs = case.machine.overheads
    curve = costs.barrier_s if "persistent" in case.forkjoin else costs.region_s
    each = extrapolated(curve, case.threads, case.machine.line_s)
    loops = len(case.plan.loops)
    other = next((m for m in case.task_models if base_model(m) in ("taskgraph", "taskiter")), "taskgraph")
    yield Finding(
        "barriers",
        loops * each,
        f"{loops} barriers of {_ms(each)} take {_ms(loops * each)} of a step of {model_label(case.forkjoin)} on "
        f"{case.threads} threads.",
        f"{model_label(other)}, which has no barrier inside a step",
        f"at most {_ms(loops * each)} a step",
    )


def _creation(case: Case) -> Iterator[Finding]:
    """One thread that creates all tasks."""
    costs = case.machine.overheads
    creation = float((costs.create_task_s + costs.create_access_s * case.subject.num_cells).sum())
    eager = [m for m in case.task_models if base_model(m) == "tasks"]
    if not eager:
        return
    now = case.time(eager[0])
    replayed = "taskgraph:placement=stealing"
    then = case.time(replayed)
    if creation < 0.1 * now and now < 1.05 * then:
        return
    yield Finding(
        "creation",
        max(now - then, 0.0),
        f"One thread creates all {case.plan.num_tasks} tasks: {_ms(creation)} of a step of {_ms(now)} "
        f"({model_label(eager[0])}).",
        "record the graph once and replay it: taskgraph or taskiter",
        case.gain_text(model_label(eager[0]), model_label(replayed), now, then) if then < now else "",
    )


def _granularity(case: Case) -> Iterator[Finding]:
    """Blocks too short for their runtime, or too few for the threads."""
    mean = case.work_s / max(case.plan.num_tasks, 1)
    model, now = case.best
    found = simulate(case.subject, model, case.threads)
    runtime = found.runtime_s / case.threads
    cut = re.fullmatch(r"images=(\d+)", str(case.options.get("granularity", "")))
    if runtime > 0.05 * now:
        yield Finding(
            "too fine",
            runtime,
            f"Blocks are too fine: {_ms(mean)} on average, and {model_label(model)} spends {runtime / now:.0%} of the "
            f"step on its own steps.",
            "coarser blocks (--granularity)",
            f"at most {_ms(runtime)} a step",
        )
    idle = found.idle_s / case.threads
    few = [loop for loop in case.plan.loops if loop.num_blocks < case.threads]
    held = sum(float(case.seconds[p.first_task : p.first_task + p.num_blocks].sum()) for p in few)
    if idle < 0.05 * now:
        return
    brings = f"at most {_ms(idle)} a step"
    if cut and int(cut[1]) > 1:
        finer = f"images={int(cut[1]) // 2}"
        then = case.time(model, case.other(granularity=finer))
        if then < now:
            brings = case.gain_text(model_label(model), f"--granularity {finer}", now, then)
    yield Finding(
        "too coarse",
        idle,
        f"Blocks are too coarse for {case.threads} threads: those of {model_label(model)} are idle for "
        f"{idle / now:.0%} of the step; loops with fewer blocks than threads hold {held / case.work_s:.0%} of the "
        f"work.",
        "finer blocks (--granularity)",
        brings,
    )


def _bandwidth(case: Case) -> Iterator[Finding]:
    """Loops that several threads slow down at the memory's limit, from the profiles of measured runs."""
    study, threads = case.study, case.threads
    serial = list(study.profiles_of((case.plan_id, "serial", 1)).values())
    limit = continued(case.machine.bandwidth_bytes_per_s, np.array([threads]))[0] if serial else np.inf
    for model in case.models:
        own = list(study.profiles_of((case.plan_id, model, threads)).values())
        if not own or not case.machine.bandwidth_bytes_per_s or threads < 2:
            continue
        num_bytes: dict[str, float] = {}
        for loop in study.plans[case.plan_id]["loops"]:
            num_bytes[loop["name"]] = num_bytes.get(loop["name"], 0.0) + loop["bytes"]
        slow = []
        for name, amount in num_bytes.items():
            alone = float(np.median([p["loop_time_s"][name] for p in serial]))
            beside = float(np.median([p["loop_time_s"][name] for p in own]))
            rate = amount / (beside / threads) if beside else 0.0
            if alone and beside > INFLATED * alone and rate > SATURATED * limit:
                slow.append(((beside - alone) / threads, name, beside / alone, rate))
        if slow:
            slow.sort(reverse=True)
            named = ", ".join(
                f"{n} ({f:.2f} times its serial time, {rounded(r / 1e9)} GB/s)" for _, n, f, r in slow[:MANY]
            )
            yield Finding(
                "bandwidth",
                sum(cost for cost, *_ in slow),
                f"Memory bandwidth is saturated ({model_label(model)} on {threads} threads; the machine moves "
                f"{rounded(limit / 1e9)} GB/s): {named}.",
                "fusion, or smaller blocks that stay in a core's cache; more threads do not help these loops",
            )
            return


LOOKS: tuple[Callable[[Case], Iterator[Finding]], ...] = (
    _chains,
    _cycle,
    _imbalance,
    _barriers,
    _creation,
    _granularity,
    _bandwidth,
)

_ATTEMPTS = {
    "preempted": "a quiet machine, or preemption=swap",
    "first touch": "longer warm-up, or touch the memory before the run; a steady step does not pay for it",
    "evicted": "a run without pauses, and no other programs on this machine's caches meanwhile",
    "worker": "look at that CPU: its clock, its neighbour thread, interrupts",
    "cold cache": "placement=partitioned, which gives a block the same worker in each step",
    "always": "equal blocks, or look for denormal numbers in the layer's data",
    "none": "",
}


def diagnose_log(log: EventLog) -> list[Finding]:
    """Return what an event log shows: of a GPU's why no launch runs; and outliers, the most costly first."""
    found = explain(log, _ms) if "lanes" in log.about else ()
    lanes = [
        Finding(kind, seconds, f"{log.title}: {text}", attempt, f"at most {_ms(seconds)} a step" * (seconds > 0))
        for kind, seconds, text, attempt in found
    ]
    return lanes + [
        Finding(
            "outliers",
            one.seconds,
            f"{one.title}: {one.count} of {one.runs} runs of blocks of {one.loop!r} took more than five times as long "
            f"as the others, up to {_ms(one.longest_s)} where {_ms(one.median_s)} is usual"
            + (f", on {_lane(log, one.worker)}" if one.worker >= 0 else "")
            + f"; {CAUSES[one.cause]}"
            + (f" ({one.evidence})." if one.evidence else "."),
            _ATTEMPTS[one.cause],
            f"at most {_ms(one.seconds)} of thread time a step",
        )
        for one in find_outliers(log)
    ]


def _lane(log: EventLog, worker: int) -> str:
    return log.lanes[worker][1] if "lanes" in log.about else f"worker {worker}"


def _ms(seconds: float) -> str:
    """Format a time with three digits and a unit."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(seconds) >= scale:
            return f"{rounded(seconds / scale)} {unit}"
    return f"{rounded(seconds / 1e-9)} ns"
