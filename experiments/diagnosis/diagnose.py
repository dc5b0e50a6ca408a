"""Findings of a plan: sentences with numbers, the most costly first, each with what to try."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ...cython_src.typed_text import rounded
from ..analysis.names import model_label
from ..bounds.bounds import fork_join_static_bound
from ..simulate.machine_model import continued
from ..simulate.policies import barrier_s, simulate
from ..subjects.models import SERIAL, TASKGRAPH
from ..tables.numbers import format_time, plural
from .case import LEAST_PART, Case, cycle_parts

SATURATED = 0.7  # part of the measured bandwidth
INFLATED = 1.1
# Least ratio of a block's time to the cost of a task at which the cost is marginal (arXiv 2602.20561).
MARGINAL = 10
MANY = 3  # loops, layers or chains that a sentence names


@dataclass(frozen=True)
class Finding:
    """Something that costs time."""

    # of a plan "chain", "cycle", "imbalance", "barriers", "creation", "too fine", "too coarse" or "bandwidth"; of an
    # event log "outliers" or one of `event_logs.OWN` and `event_logs.WAITING`; of a GPU's log "outliers", "device" or
    # one of `event_logs.REASONS`
    kind: str
    cost_s: float  # seconds of a step that it costs
    text: str  # what was found, with its numbers
    # attempt, brings: what to try, and what it would bring; empty where nothing is known
    attempt: str = ""
    brings: str = ""


def diagnose(case: Case) -> list[Finding]:
    """Return the findings of a plan, the most costly first."""
    result = [finding for look in LOOKS for finding in look(case)]
    worth = [finding for finding in result if finding.cost_s >= LEAST_PART * case.work_s / case.threads]
    return sorted(worth, key=lambda finding: -finding.cost_s)


def _chains(case: Case) -> Iterator[Finding]:
    """Chains whose blocks could not run at once whatever the threads."""
    chains = case.chains
    if not chains:
        return
    named = "; ".join(
        f"{c.layer} {c.phase}: {c.links} blocks update {c.buffer!r} one after the other, {format_time(c.seconds)}"
        for c in chains[:MANY]
    )
    more = f"; and {len(chains) - MANY} more" if len(chains) > MANY else ""
    text = f"Dependency chains bind. {named}{more}."
    lost = sum(c.seconds - c.work_s / case.threads for c in chains)
    attempt, brings = case.break_chains(case.forkjoin)
    if not attempt:
        yield Finding("chain", max(lost, 0.0), text, "break the chain: partial sums, or commutative updates")
        return
    other = case.partial_sums
    wide, best = 4 * case.threads, case.best[0]
    wider = (
        f"{model_label(best)} on {wide} threads, by simulation: {format_time(case.time(best, None, wide))} becomes "
        f"{format_time(case.time(best, other, wide))}"
    )
    gain = case.time(case.forkjoin) - case.time(case.forkjoin, other)
    yield Finding("chain", max(gain, lost, 0.0), text, attempt, "; ".join(filter(None, (brings, wider))))


def _cycle(case: Case) -> Iterator[Finding]:
    """A critical cycle that no number of threads shortens."""
    mean, parts = cycle_parts(case.plan, case.subject.graph("none"), case.seconds)
    area = case.work_s / case.threads
    if mean < 0.9 * area:
        return
    through = ", ".join(f"{name} {part:.0%}" for name, part in parts[:MANY])
    useful = math.ceil(round(case.work_s / mean, 2))  # a part of a thread's work needs a thread
    yield Finding(
        "cycle",
        max(mean - area, 0.0) or mean * LEAST_PART,
        f"The critical cycle takes {format_time(mean)} a step, work over {case.threads} threads {format_time(area)}: "
        f"more than {plural(useful, 'thread')} cannot help. It leads through {through}.",
        "smaller blocks in these layers, so that each step of the cycle is shorter",
        f"at most {format_time(mean - area)} a step on {case.threads} threads" if mean > area else "",
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
    seconds: Counter[str] = Counter()
    loops: Counter[str] = Counter()
    for share, loop in shares:
        place = f"{loop.layer or loop.name} {loop.phase}"
        seconds[place] += share
        loops[place] += 1
    worst = seconds.most_common(MANY)
    named = ", ".join(f"{place} {format_time(s)} ({plural(loops[place], 'loop')})" for place, s in worst)
    forkjoin = case.forkjoin
    dynamic = [forkjoin.with_options(schedule="dynamic")] if forkjoin.option("schedule") == "static" else []
    model = min([*dynamic, *case.task_models], key=case.time)
    yield Finding(
        "imbalance",
        waiting,
        f"Threads of fork-join wait between layers: {format_time(waiting)} of a step of "
        f"{case.step_text(case.forkjoin)}, because the shares of a loop are unequal or it has too few "
        f"blocks. Most in {named}.",
        f"{model_label(model)}, in which blocks of the next layers run meanwhile"
        if model.name != "forkjoin"
        else model_label(model),
        case.gain_text(case.forkjoin, model),
    )


def _barriers(case: Case) -> Iterator[Finding]:
    """Fork-join's barriers themselves."""
    each = barrier_s(case.machine, case.forkjoin, case.threads)
    loops = len(case.plan.loops)
    other = next((m for m in case.task_models if m.name in ("taskgraph", "taskiter")), TASKGRAPH)
    yield Finding(
        "barriers",
        loops * each,
        f"{loops} barriers of {format_time(each)} take {format_time(loops * each)}, by the machine's "
        f"latencies, of a step of {case.step_text(case.forkjoin)} on {case.threads} threads.",
        f"{model_label(other)}, which has no barrier inside a step",
        f"at most {format_time(loops * each)} a step",
    )


def _creation(case: Case) -> Iterator[Finding]:
    """One thread that creates all tasks."""
    costs = case.machine.overheads
    creation = float((costs.create_task_s + costs.create_access_s * case.subject.num_cells).sum())
    eager = [m for m in case.task_models if m.name == "tasks"]
    if not eager:
        return
    now = case.time(eager[0])
    replayed = TASKGRAPH.with_options(placement="stealing")
    then = case.time(replayed)
    if creation < 0.1 * now and now < 1.05 * then:
        return
    yield Finding(
        "creation",
        max(now - then, 0.0),
        f"One thread creates all {case.plan.num_tasks} tasks: {format_time(creation)} of a step of "
        f"{case.step_text(eager[0])}.",
        "record the graph once and replay it: taskgraph or taskiter",
        case.gain_text(eager[0], replayed),
    )


def _granularity(case: Case) -> Iterator[Finding]:
    """Blocks too short for their runtime, or too few for the threads."""
    mean = case.work_s / max(case.plan.num_tasks, 1)
    model, now = case.best
    result = simulate(case.subject, model, case.threads)
    runtime = result.runtime_s / case.threads
    cut = re.fullmatch(r"images=(\d+)", str(case.options.get("granularity", "")))
    if runtime > 0.05 * now:
        task_s = result.runtime_s / case.plan.num_tasks
        grains = [
            (case.seconds[loop.first_task : loop.first_task + loop.num_blocks].mean() / task_s, loop)
            for loop in case.plan.loops
        ]
        short, (grain, finest) = sum(g < MARGINAL for g, _ in grains), min(grains, key=lambda each: each[0])
        yield Finding(
            "too fine",
            runtime,
            f"Blocks are too fine: {format_time(mean)} on average, and a step of {case.step_text(model)} spends "
            f"{runtime / now:.0%} of its time on the runtime's own steps. A task costs {format_time(task_s)}; "
            f"{short} of {plural(len(grains), 'loop')} have blocks of less than {MARGINAL} times that, "
            f"{finest.layer or finest.name} {finest.phase} of {rounded(grain)} times.",
            "coarser blocks (--granularity)",
            f"at most {format_time(runtime)} a step",
        )
    idle = result.idle_s / case.threads
    few = [loop for loop in case.plan.loops if loop.num_blocks < case.threads]
    held = sum(float(case.seconds[p.first_task : p.first_task + p.num_blocks].sum()) for p in few)
    if idle < 0.05 * now:
        return
    brings = f"at most {format_time(idle)} a step"
    if cut and int(cut[1]) > 1:
        finer = f"images={int(cut[1]) // 2}"
        brings = case.gain_text(model, model, case.other(granularity=finer), f"--granularity {finer}") or brings
    yield Finding(
        "too coarse",
        idle,
        f"Blocks are too coarse for {case.threads} threads: those of a step of {case.step_text(model)} are idle for "
        f"{idle / now:.0%} of it; loops with fewer blocks than threads hold {held / case.work_s:.0%} of the "
        f"work.",
        "finer blocks (--granularity)",
        brings,
    )


def _bandwidth(case: Case) -> Iterator[Finding]:
    """Loops that several threads slow down at the memory's limit."""
    threads, serial = case.threads, case.loop_times(SERIAL)
    if not serial or not case.machine.bandwidth_bytes_per_s or threads < 2:
        return
    limit = continued(case.machine.bandwidth_bytes_per_s, np.array([threads]))[0]
    for model in case.models:
        own = case.loop_times(model)
        slow = _loops_at_the_limit(case, serial, own, limit) if own else []
        if slow:
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


def _loops_at_the_limit(
    case: Case, serial: list[Mapping[str, float]], own: list[Mapping[str, float]], limit: float
) -> list[tuple[float, str, float, float]]:
    """Return (seconds of a step that this costs, loop, times its serial time, bytes per second) of loops that take
    longer than in serial runs while they move bytes at the memory's limit, the most costly first."""
    num_bytes: Counter[str] = Counter()
    for loop in case.plan.loops:
        num_bytes[loop.name] += case.plan.least_bytes(loop)
    slow = []
    for name, amount in num_bytes.items():
        alone, beside = (float(np.median([times[name] for times in runs])) for runs in (serial, own))
        rate = amount / (beside / case.threads) if beside else 0.0
        if alone and beside > INFLATED * alone and rate > SATURATED * limit:
            slow.append(((beside - alone) / case.threads, name, beside / alone, rate))
    return sorted(slow, reverse=True)


LOOKS = (_chains, _cycle, _imbalance, _barriers, _creation, _granularity, _bandwidth)
