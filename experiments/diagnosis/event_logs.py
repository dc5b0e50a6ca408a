"""Findings of an event log: what its threads lost and where, and outliers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ..analysis.losses import LOSSES, classes_of, time_by_loop
from ..analysis.names import model_label
from ..analysis.windows import layer_of_loops
from ..events.event_states import LOCK
from ..events.events import EventLog, number_at
from ..subjects.models import PERSISTENT, TASKITER, ModelSpec
from ..tables.numbers import format_time, plural
from .case import LEAST_PART, Case
from .diagnose import MANY, Finding
from .outliers import CAUSES, Outliers, find_outliers

# Kinds of findings: losses of a thread's own, and waits, of which those for locks are a part of "dependence".
OWN = tuple(name for name, loss in LOSSES.items() if loss.finding and not loss.waits)
WAITING = (*(name for name, loss in LOSSES.items() if loss.waits), "lock")
_LOCKS = "Threads wait for locks of commutative blocks for"
_ATTEMPTS = {
    "preempted": "a quiet machine",
    "first touch": "longer warm-up, or touch the memory before the run; a steady step does not pay for it",
    "evicted": "a run without pauses, and no other programs on this machine's caches meanwhile",
    "worker": "look at that CPU: its clock, its SMT sibling, interrupts",
    "cold cache": "placement=partitioned, which gives a block the same worker in each step",
    "always": "equal blocks, or look for denormal numbers in the layer's data",
    "none": "",
}


def diagnose_log(log: EventLog, case: Case | None = None, beside: Sequence[EventLog] = ()) -> list[Finding]:
    """Return what an event log shows, the most costly first. `case`: of its plan: names kernels and chains, and
    simulates what a change brings; `beside`: of the same plan, in the same folder; the serial one tells how long blocks
    take by themselves."""
    slow: dict[str, list[Outliers]] = {}
    for one in find_outliers(log):
        slow.setdefault(one.cause, []).append(one)
    result = list(_losses(log, case, beside, slow))
    if any(finding.kind == "preemption" for finding in result):
        slow.pop("preempted", None)  # that finding names them
    result += [_outliers(log, loops) for loops in slow.values()]
    return sorted(result, key=lambda finding: -finding.cost_s)


def lost_by_loop(log: EventLog, serial: EventLog | None = None) -> dict[str, np.ndarray]:
    """Return what the threads of a model of the CPU lost, in seconds of a step: for each kind of `OWN` and `WAITING` an
    array with an entry for each loop and, last, one for moments at which no block ran.

    They sum to the step, less useful work. Waits count for the loops whose blocks others ran meanwhile, the others for
    the thread's own loop.
    """
    classes = classes_of(log.events)
    by_loop = time_by_loop(log, serial)
    names = list(LOSSES)
    locked = log.events["state"] == LOCK
    kinds = {name: (classes == names.index(name)) & ~locked for name in WAITING[:-1]}
    result = {name: np.append(by_loop[:, names.index(name)], 0.0) for name in OWN}
    result |= {name: meanwhile(log, log.events[chosen]) for name, chosen in {**kinds, "lock": locked}.items()}
    return {name: time * 1e-9 / (log.about["threads"] * log.about["iterations"]) for name, time in result.items()}


def meanwhile(log: EventLog, waits: np.ndarray) -> np.ndarray:
    """Divide the time of some events among the loops of the blocks that ran at each moment, equally among the blocks.

    Returns
    -------
    float64, shape (loops + 1,)
        Nanoseconds; last: while no block ran.
    """
    blocks = log.blocks
    moments = np.unique(np.concatenate([part[end] for part in (waits, blocks) for end in ("start_ns", "stop_ns")]))
    if not len(moments):
        return np.zeros(len(log.loops["name"]) + 1)

    waiting = number_at(waits, moments[:-1]) * np.diff(moments)
    running = number_at(blocks, moments[:-1])
    of_each = np.divide(waiting, running, out=np.zeros(len(waiting)), where=running > 0)
    until = np.concatenate([[0.0], np.cumsum(of_each)])
    during = until[np.searchsorted(moments, blocks["stop_ns"])] - until[np.searchsorted(moments, blocks["start_ns"])]
    by_loop = np.bincount(log.task_loop[blocks["task"]], during, len(log.loops["name"]))
    return np.append(by_loop, waiting[running == 0].sum())


def _losses(
    log: EventLog, case: Case | None, beside: Sequence[EventLog], slow: Mapping[str, Sequence[Outliers]]
) -> Iterator[Finding]:
    serial = next((other for other in beside if other.model.is_serial), None)
    kernels = {loop.name: loop.kernel for loop in case.plan.loops} if case else {}
    loops = zip(layer_of_loops(log), log.loops["phase"], log.loops["name"], strict=True)
    groups = [(layer, phase, kernels.get(name, "")) for layer, phase, name in loops]
    chains = {(c.layer, c.phase, c.kernel): c for c in case.chains} if case else {}
    steps, model = {other.model: other.step_s for other in beside}, log.model
    for kind, by_loop in lost_by_loop(log, serial).items():
        seconds = float(by_loop.sum())
        if seconds < LEAST_PART * log.step_s or (kind == "runtime" and model.is_serial):  # which has no runtime
            continue
        places: Counter[tuple[str, str, str]] = Counter()
        for group, time in zip(groups, by_loop.tolist(), strict=False):  # its last entry is of no loop
            places[group] += time
        worst = [place for place in places.most_common() if place[1] >= LEAST_PART * seconds]
        begin = LOSSES[kind].finding if kind in LOSSES else _LOCKS
        text = f"{begin} {format_time(seconds)} of a step of {format_time(log.step_s)} ({seconds / log.step_s:.0%})"
        if worst:
            named = ", ".join(f"{' '.join(filter(None, group))} ({format_time(time)})" for group, time in worst[:MANY])
            text += f", most {'while another thread runs' if kind in WAITING else 'in'} {named}"
        text += "."
        bound = {group: time for group, time in worst if group in chains and kind in WAITING}
        chained = sum(bound.values()) > seconds / 2
        if chained:
            each = ", ".join(f"{chains[g].buffer!r} ({chains[g].links} blocks)" for g in list(bound)[:MANY])
            text += f" These are chains: blocks that update one buffer, one after the other: {each}."
        if kind == "preemption" and (taken := slow.get("preempted")):
            count, longest_s = sum(one.count for one in taken), max(one.longest_s for one in taken)
            text += f" For that {plural(count, 'run')} of blocks took more than five times as long as others, "
            text += f"up to {format_time(longest_s)}."
        attempt, brings = case.break_chains(model) if case and chained else ("", "")
        if not attempt:
            attempt, other = _attempt(kind, model, case)
            brings = case.gain_text(model, other) if case and other else ""
            brings = brings or f"at most {format_time(seconds)} per step"
            brings += f"; traced here: {format_time(steps[other])}" if other in steps else ""
        yield Finding(kind, seconds, text, attempt, brings or f"at most {format_time(seconds)} per step")


def _attempt(kind: str, spec: ModelSpec, case: Case | None) -> tuple[str, ModelSpec | None]:
    """Return what to try against a loss of a model, and the model that this is, if it is one."""
    base, joins = spec.name, spec.model.joins_loops
    replays = base in ("taskgraph", "taskiter")
    if kind == "lock":
        return "partial sums in place of commutative updates", None
    attempt = LOSSES[kind].attempt
    if kind == "runtime" and joins and spec.option("region") != "persistent":
        return "one parallel region for the whole run: forkjoin:region=persistent", PERSISTENT
    if kind == "runtime" and base == "tasks":
        return "record the graph once and replay it: taskiter", TASKITER
    if kind in WAITING and joins:
        tasks = min(case.task_models, key=case.time) if case else TASKITER
        return f"{model_label(tasks)}, in which blocks of the next layers run meanwhile", tasks
    if kind == "barrier" and base != "taskiter":
        return attempt, TASKITER
    if kind == "imbalance" and replays and spec.option("placement") != "stealing":
        return f"placement=stealing, or {attempt}", spec.with_options(placement="stealing")
    return attempt, None


def _outliers(log: EventLog, loops: Sequence[Outliers]) -> Finding:
    """Return the finding on outliers of one cause, those of the most costly loop first."""
    first, count = loops[0], sum(one.count for one in loops)
    longest = max(loops, key=lambda one: one.longest_s)
    text = (
        f"{count} of {sum(one.runs for one in loops)} runs of blocks of "
        + (f"{first.loop!r}" if len(loops) == 1 else f"{len(loops)} loops")
        + " took more than five times as long as the others"
        + (" of their loop" if len(loops) > 1 else "")
        + f", up to {format_time(longest.longest_s)} where {format_time(longest.median_s)} is usual"
    )
    if first.worker >= 0 and {one.worker for one in loops} == {first.worker}:
        text += f", on worker {first.worker}"
    text += f"; {CAUSES[first.cause]}"
    named = [f"{one.loop!r} {one.count} of {one.runs}" for one in loops[:MANY]] if len(loops) > 1 else []
    shown = "; ".join(filter(None, [*named, first.evidence if len(loops) == 1 else ""]))
    text += f" ({shown})." if shown else "."
    seconds = sum(one.seconds for one in loops)
    return Finding(
        "outliers", seconds, text, _ATTEMPTS[first.cause], f"at most {format_time(seconds)} of thread time per step"
    )
