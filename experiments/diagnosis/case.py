"""A plan on a number of threads, from a sweep or from event logs: its blocks, its models, and simulations of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ...cython_src.errors import UsageError
from ...cython_src.lowering.lower import lower
from ...cython_src.typed_text import rounded
from ..analysis.names import base_model, model_label, model_rank
from ..analysis.speeds import better_forkjoin
from ..analysis.study import Study
from ..analysis.windows import Window
from ..sampling.events import EventLog
from ..sampling.models import parse_model
from ..simulate.machine_model import MachineModel
from ..simulate.policies import Subject, can_simulate, simulate
from ..simulate.predict import machine_of_study, simulated_models, subject_of
from .chains import Chain, find_chains
from .what_if import relower

LEAST_PART = 0.01  # of a step that a finding must cost
PERSISTENT = "forkjoin:region=persistent"


class Case:
    """A plan whose blocks were timed serially.

    Parameters
    ----------
    subject : Subject
        The plan, with the durations of its blocks in serial runs and the machine that measured them.
    options : mapping
        Arguments of `lower`.
    threads : int
        The largest measured number.
    models : sequence of str
        The measured models that can be simulated, without serial.
    forkjoin : str or None
        The faster of the measured fork-join forms.
    loop_times : callable
        Model -> seconds of each loop in one step, summed over its blocks, by name: a mapping for each measured run of
        the model on `threads` threads, or of `serial` on one.
    """

    def __init__(
        self,
        subject: Subject,
        options: Mapping[str, Any],
        threads: int,
        models: Sequence[str],
        forkjoin: str | None,
        loop_times: Callable[[str], list[Mapping[str, float]]],
    ):
        self.subject = subject
        self.plan = subject.plan
        self.seconds = subject.seconds
        self.machine: MachineModel = subject.measured_on
        self.work_s = float(self.seconds.sum())
        self.options = options
        self.threads = threads
        self.models = models
        self.forkjoin = forkjoin if forkjoin in models else PERSISTENT
        self.task_models = [m for m in models if base_model(m) != "forkjoin"] or ["taskgraph"]
        self.loop_times = loop_times

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

    @cached_property
    def partial_sums(self) -> Subject | None:
        """The plan with partial sums of weight gradients, where its own are added to one buffer."""
        chained = self.options.get("weight_gradients", "partial") in ("chain", "commutative")
        return self.other(weight_gradients="partial") if chained else None

    def break_chains(self, model: str) -> tuple[str, str]:
        """Return what to try against chains of weight gradients, and what it brings a model; empty where they are in
        partial sums already."""
        if self.partial_sums is None:
            return "", ""
        attempt = "--weight-gradients partial: a partial sum for each group of blocks, added in a fixed order"
        return attempt, self.gain_text(model, model, self.partial_sums, "with partial sums")

    def gain_text(self, before: str, after: str, other: Subject | None = None, change: str = "") -> str:
        """Say what another model, or another plan, brings by simulation; nothing of models that cannot be simulated."""
        if not all(can_simulate(parse_model(model)) for model in (before, after)):
            return ""
        now, then = self.time(before), self.time(after, other)
        if now - then < LEAST_PART * now:
            return f"by simulation on {self.threads} threads: less than {LEAST_PART:.0%}"
        return (
            f"by simulation on {self.threads} threads: {ms(now)} ({model_label(before)}) becomes {ms(then)} "
            f"({change or model_label(after)}), {now / then:.2f} times as fast"
        )


def ms(seconds: float) -> str:
    """Format a time with three digits and a unit."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(seconds) >= scale:
            return f"{rounded(seconds / scale)} {unit}"
    return f"{rounded(seconds / 1e-9)} ns"


def case_of_study(study: Study, plan_id: str) -> Case:
    """Return the case of a plan of a results folder.

    Raises
    ------
    UsageError
        The plan's runs cannot be simulated.
    """
    threads = max(threads for _, threads in study.points_of(plan_id))

    def loop_times(model: str) -> list[Mapping[str, float]]:
        profiles = study.profiles_of((plan_id, model, 1 if model == "serial" else threads))
        return [profile["loop_time_s"] for profile in profiles.values()]

    return Case(
        subject_of(study, plan_id, machine_of_study(study)),
        study.plans[plan_id]["options"],
        threads,
        simulated_models(study, plan_id),
        better_forkjoin(study, plan_id, threads),
        loop_times,
    )


def log_of_durations(logs: Sequence[EventLog]) -> EventLog:
    """Return the log that tells how long blocks take by themselves: the serial one, else the one of a model of the CPU
    in which they take least."""
    on_cpu = [log for log in logs if not log.of_gpu]
    return min(on_cpu, key=lambda log: (log.about["model"] != "serial", _block_seconds(log).sum()))


def _block_seconds(log: EventLog) -> np.ndarray:
    """Return the median seconds of each block."""
    whole = Window(log, range(log.about["iterations"] // log.about["stride"]))
    return np.median(whole.stop - whole.start, axis=0) * 1e-9


def case_of_logs(logs: Sequence[EventLog], machine: MachineModel) -> Case:
    """Return the case of the plan that event logs are of, with the durations of `log_of_durations`.

    Raises
    ------
    UsageError
        There is no log of a model that can be simulated, or no plan that this version lowers alike.
    """
    by_model = {log.about["model"]: log for log in logs if not log.of_gpu}
    reference = log_of_durations(logs)
    models = [m for m in sorted(by_model, key=model_rank) if m != "serial" and can_simulate(parse_model(m))]
    if not models:
        raise UsageError("none of the traced models can be simulated; add forkjoin or taskiter to --models")
    options = reference.about["plan"]
    if "network" not in options:
        raise UsageError("the plan of a graph that a function made is not kept; sweep it with `forktask compare`")
    plan = lower(**options)
    traced = list(zip(reference.loops["name"], reference.loops["num_blocks"], strict=True))
    if traced != [(loop.name, loop.num_blocks) for loop in plan.loops]:
        raise UsageError("this forktask lowers the plan to other loops than those that were traced; trace again")

    def loop_times(model: str) -> list[Mapping[str, float]]:
        if model not in by_model:
            return []
        log, times = by_model[model], dict.fromkeys(reference.loops["name"], 0.0)
        for name, time in zip(log.loops["name"], np.bincount(log.task_loop, log.running_ns * 1e-9), strict=True):
            times[name] += float(time)
        return [times]

    joins = [log for model, log in by_model.items() if base_model(model) == "forkjoin"]
    return Case(
        Subject(plan, _block_seconds(reference), machine),
        options,
        max(log.about["threads"] for log in by_model.values()),
        models,
        min(joins, key=lambda log: log.step_s).about["model"] if joins else None,
        loop_times,
    )
