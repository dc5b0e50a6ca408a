"""A plan on a number of threads: its blocks, its models, and simulations of them; chains, blocks of one kind that
update the same memory one after the other; and what a critical cycle leads through."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ...cython_src.lowering.lower import lower
from ...cython_src.plan.dependences import TaskGraph
from ...cython_src.plan.model import COMMUTATIVE, READ, UPDATE, Plan
from ..analysis.accounting import alike_profiles, shown_profiles
from ..analysis.names import model_label
from ..analysis.speeds import better_forkjoin
from ..analysis.sweep import Point, Sweep
from ..bounds.bounds import cycle_mean
from ..simulate.machine_model import MachineModel
from ..simulate.policies import Subject, can_simulate, simulate
from ..simulate.predict import machine_of_sweep, simulated_models, subject_of
from ..subjects.models import PERSISTENT, TASKGRAPH, ModelSpec
from ..tables.numbers import format_time

LEAST_PART = 0.01  # of a step that a finding must cost
FEWEST_LINKS = 3  # of a chain
LEAST_BLOCK_S = 1e-7  # of a block of a kernel that was not measured


@dataclass(frozen=True)
class Chain:
    """Blocks of one layer and kernel, each of which updates what the one before has updated, in this order or, where
    updates are commutative, in any."""

    layer: str
    phase: str
    kernel: str
    buffer: str
    links: int  # blocks of the longest chain
    seconds: float  # of these blocks
    work_s: float  # of all blocks of this layer, phase and kernel


def find_chains(plan: Plan, seconds: np.ndarray) -> list[Chain]:
    """Return the longest chain of each layer, phase and kernel, the longest time first, from seconds of each task."""
    table, buffers = plan.accesses, list(plan.buffers)
    groups = [(loop.layer, loop.phase, loop.kernel) for loop in plan.loops]
    group_of = [groups[loop] for loop in plan.task_loop]
    last: dict[int, int] = {}  # cell -> task that wrote it last
    length, ends = np.ones(plan.num_tasks, np.int64), np.array(seconds, float)
    through = [-1] * plan.num_tasks
    for task in range(plan.num_tasks):
        cells_written = []
        for access in range(table.task_offsets[task], table.task_offsets[task + 1]):
            kind = table.access_kind[access]
            if kind == READ:
                continue
            number = table.access_list[access]
            cells = table.list_cells[table.list_offsets[number] : table.list_offsets[number + 1]].tolist()
            cells_written += cells
            if kind not in (UPDATE, COMMUTATIVE):
                continue
            for cell in cells:
                before = last.get(cell, -1)
                if before < 0 or group_of[before] != group_of[task]:
                    continue
                if ends[before] + seconds[task] > ends[task]:
                    ends[task] = ends[before] + seconds[task]
                    length[task] = length[before] + 1
                    through[task] = int(table.access_buffer[access])
        last.update(dict.fromkeys(cells_written, task))
    work: Counter = Counter()
    best: dict[tuple[str, str, str], int] = {}
    for task, group in enumerate(group_of):
        work[group] += float(seconds[task])
        if ends[task] > ends[best.setdefault(group, task)]:
            best[group] = task
    chains = [
        Chain(*group, buffers[through[task]], int(length[task]), float(ends[task]), work[group])
        for group, task in best.items()
        if length[task] >= FEWEST_LINKS
    ]
    return sorted(chains, key=lambda chain: -chain.seconds)


def cycle_parts(plan: Plan, graph: TaskGraph, seconds: Sequence[float]) -> tuple[float, list[tuple[str, float]]]:
    """Return the maximum cycle mean, and the parts of the critical cycle's time by layer and phase, largest first."""
    result = cycle_mean(graph, seconds)
    parts: Counter = Counter()
    for node in result.cycle:
        if node < plan.num_tasks:
            loop = plan.loops[int(plan.task_loop[node])]
            parts[f"{loop.layer or loop.name} {loop.phase}"] += float(seconds[node])
    total = sum(parts.values()) or 1.0
    return result.mean_s, [(name, part / total) for name, part in parts.most_common()]


class Case:
    """A plan of a results folder whose blocks were timed serially.

    Attributes
    ----------
    subject : Subject
        The plan, with the durations of its blocks in serial runs and the machine that measured them.
    threads : int
        The largest measured number.
    models, task_models : list of str
        The measured models that can be simulated, without serial; those of them that are no fork-join.
    forkjoin : str
        The faster of the measured fork-join forms.

    Raises
    ------
    UsageError
        The plan's runs cannot be simulated.
    """

    def __init__(self, sweep: Sweep, plan_id: str):
        self.sweep, self.plan_id = sweep, plan_id
        self.threads = max(threads for _, threads in sweep.points_of(plan_id))
        self.subject = subject_of(sweep, plan_id, machine_of_sweep(sweep))
        self.plan, self.seconds = self.subject.plan, self.subject.seconds
        self.machine: MachineModel = self.subject.measured_on
        self.work_s = float(self.seconds.sum())
        self.options = sweep.plans[plan_id].options
        self.models = simulated_models(sweep, plan_id)
        forkjoin = better_forkjoin(sweep, plan_id, self.threads)
        self.forkjoin = forkjoin if forkjoin in self.models else PERSISTENT
        self.task_models = [m for m in self.models if m.name != "forkjoin"] or [TASKGRAPH]

    def loop_times(self, model: ModelSpec) -> list[Mapping[str, float]]:
        """Return seconds of each loop in one step, summed over its blocks, by name: of each measured run of a model on
        all threads, or of `serial` on one."""
        point = Point(self.plan_id, model, 1 if model.is_serial else self.threads)
        profiles = shown_profiles(self.sweep, point) if model.is_serial else alike_profiles(self.sweep, point).values()
        return [profile.loop_time_s for profile in profiles]

    def time(self, model: ModelSpec, subject: Subject | None = None, threads: int | None = None) -> float:
        """Return the simulated time of a step."""
        return simulate(subject or self.subject, model, threads or self.threads).step_s

    def step_text(self, model: ModelSpec) -> str:
        """Write a model's simulated step, and beside it the measured one and by how much the simulation errs."""
        now = self.time(model)
        measured = self.sweep.times.time((self.plan_id, model, self.threads)).value
        beside = "not measured"
        if math.isfinite(measured):
            beside = f"measured: {format_time(measured)}, error {now / measured - 1:+.0%}"
        return f"{format_time(now)} ({model_label(model)}, simulated; {beside})"

    @cached_property
    def best(self) -> tuple[ModelSpec, float]:
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

    def break_chains(self, model: ModelSpec) -> tuple[str, str]:
        """Return what to try against chains of weight gradients, and what it gains for a model; empty where they are in
        partial sums already."""
        if self.partial_sums is None:
            return "", ""
        attempt = "--weight-gradients partial: a partial sum for each group of blocks, added in a fixed order"
        return attempt, self.gain_text(model, model, self.partial_sums, "with partial sums")

    def gain_text(self, before: ModelSpec, after: ModelSpec, other: Subject | None = None, change: str = "") -> str:
        """Say what another model, or another plan, brings by simulation; nothing of models that cannot be simulated."""
        if not all(can_simulate(model) for model in (before, after)):
            return ""
        now, then = self.time(before), self.time(after, other)
        if now - then < LEAST_PART * now:
            return f"by simulation on {self.threads} threads: less than {LEAST_PART:.0%}"
        return (
            f"by simulation on {self.threads} threads: {self.step_text(before)} becomes "
            f"{format_time(then)} ({change or model_label(after)}), {now / then:.2f} times as fast"
        )


def relower(options: Mapping[str, Any], measured: Plan, seconds: np.ndarray, machine: MachineModel) -> Subject:
    """Lower other options, and give each block the rate of the measured blocks of its layer, phase and kernel.

    Rates are flops per second, or bytes per second of kernels without flops. Kernels that were not measured move their
    bytes at one thread's bandwidth.
    """
    plan = lower(**options)
    work: defaultdict[tuple, np.ndarray] = defaultdict(lambda: np.zeros(3))
    for loop in measured.loops:
        time = seconds[loop.first_task : loop.first_task + loop.num_blocks].sum()
        work[loop.layer, loop.phase, loop.kernel] += (loop.flops, loop.bytes, time)
    bandwidth = machine.bandwidth_bytes_per_s.get(1, 1e10)
    estimated = []
    for loop in plan.loops:
        flops, num_bytes, time = work[loop.layer, loop.phase, loop.kernel]
        for block in loop.blocks:
            if flops and block.flops:
                each = block.flops * time / flops
            elif num_bytes and time:
                each = block.bytes * time / num_bytes
            else:
                each = block.bytes / bandwidth
            estimated.append(max(each, LEAST_BLOCK_S))
    return Subject(plan, np.array(estimated), machine)
