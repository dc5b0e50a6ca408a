"""A sweep: measure the missing samples of a configuration, and write each row as it comes.

The sweeping process only chooses the next sample and writes the row that came back. Another process
(sampling/measure.py) measures each sample, one at a time, while the sweeping process sleeps.
"""

from __future__ import annotations

import math
import os
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple, TextIO

import msgspec

from ...cython_src.errors import UsageError
from ...cython_src.lowering.lower import lower
from ...cython_src.lowering.options import describe, plan_options
from ...cython_src.networks.own import is_own
from ...cython_src.plan.dependences import record_graph
from ..machine.disturbance import read_memory
from ..machine.environment import collect, environment_id
from ..machine.limits import measure_capacity, measure_machine
from ..machine.topology import available_cpus, cpu_order
from ..results.folder import Results, ResultsWriter
from ..results.rows import (
    CapacityRow,
    FailureRow,
    GpuProfileRow,
    Loop,
    MachineRow,
    Measured,
    PlanRow,
    ProfileRow,
    RunRow,
    SampleRow,
    make_row,
)
from ..sampling.child import SAMPLE_COMMAND, clean_environment, run_sample, sample_environment
from ..sampling.hogs import hogs_running, measure_capacity_beside
from ..sampling.memory import format_bytes, parse_bytes
from ..sampling.models import parse_model, process_environment
from ..sampling.plan_check import check_plans
from ..sampling.progress import ProgressBar, format_seconds
from ..tables.numbers import plural
from .configuration import Configuration, Point

STARTUP_S = 0.7  # start of a measuring process: interpreter, NumPy, plan; for the expected duration only
GUESSED_FLOPS_PER_S = 1e11  # rate of one thread; for the expected duration only


def plan_row(plan_id: str, plan: Mapping[str, Any]) -> PlanRow:
    """Return the row of a plan: options, loops with their costs, and the size of the closed task graph.

    Raises
    ------
    UsageError
        Options that cannot be lowered.
    """
    lowered = lower(**plan)
    graph = record_graph(lowered.accesses, closed=True)
    return PlanRow(
        plan_id=plan_id,
        options=dict(plan),
        loops=[
            Loop(
                name=loop.name,
                layer=loop.layer,
                phase=loop.phase,
                kernel=loop.kernel,
                num_blocks=loop.num_blocks,
                flops=loop.flops,
                bytes=loop.bytes,
                least_bytes=lowered.least_bytes(loop),
            )
            for loop in lowered.loops
        ],
        flops=lowered.flops,
        bytes=lowered.bytes,
        num_tasks=lowered.num_tasks,
        num_edges=graph.num_edges,
        num_joins=graph.num_joins,
        memory_bytes=lowered.memory_bytes(),
        iteration_stride=lowered.iteration_stride,
        deterministic=lowered.deterministic,
        num_parameters=len(lowered.attributes.get("parameters", ())),
    )


class _Job(NamedTuple):
    """A row to be measured."""

    kind: str  # "sample" or "profile"
    repetition: int
    position: int  # in the order of all rows
    point: Point


@dataclass
class Sweep:
    """Measurement of the missing samples of a configuration; each row is written as it comes.

    Parameters
    ----------
    configuration : Configuration
    out_dir : path
    command_line : str
        The user's command: kept in the results and repeated when the run is interrupted.
    stream : text file
        Progress and messages.
    sample_command : sequence of str
        The measuring process.
    plan_row : callable (plan_id, plan) -> PlanRow
    environment : mapping, optional
        {"environment", "environment_id"}; by default collected here.
    machine_row : callable () -> MachineRow, optional
        By default the machine's limits are measured, and its capacity again at the beginning of each repetition.
    undecided : callable (samples) -> set of config ids or None, optional
        With a budget: the configurations that are measured again, none when every question is decided; None where there
        is no question, so that all are.
    """

    configuration: Configuration
    out_dir: str
    command_line: str
    stream: TextIO = field(default_factory=lambda: sys.stderr)
    sample_command: Sequence[str] = SAMPLE_COMMAND
    plan_row: Any = plan_row
    environment: Mapping[str, Any] | None = None
    machine_row: Any = None
    undecided: Callable[[Sequence[SampleRow]], set[str] | None] | None = None
    checks: dict[str, str] = field(init=False, default_factory=dict)  # by plan_id

    def run(self) -> Results:
        """Measure, and return the content of the folder.

        Raises
        ------
        UsageError
            A plan that cannot be lowered, or an output folder that cannot take the results.
        UnsoundPlan
            A plan of one's own failed its check; nothing was measured.
        KeyboardInterrupt
            After a message on how to continue; finished samples are kept.
        """
        configuration, measure = self.configuration, self.configuration.measure
        configuration.check_machine()
        plans = {point.plan_id: point.plan for point in configuration.points()}
        plan_rows = {plan_id: self.plan_row(plan_id, options) for plan_id, options in plans.items()}
        runs: dict[str, list[tuple[str, int]]] = {plan_id: [] for plan_id in plans}
        for point in configuration.points():
            runs[point.plan_id].append((point.model, point.threads))
        self.checks = dict(
            zip(plans, check_plans(zip(plans.values(), runs.values(), strict=True), measure.check), strict=True)
        )
        cpus = available_cpus()
        order_cpus = partial(cpu_order, cpus=cpus, oversubscribe=measure.oversubscribe)
        if self.environment is None:
            found = collect(
                variables=clean_environment(os.environ, sample_environment(1, 0, len(cpus), measure.wait_policy))
            )
            self.environment = {"environment": found, "environment_id": environment_id(found)}
        with ResultsWriter(self.out_dir) as writer:
            _check_same_networks(writer.results, plan_rows)
            continued = writer.start(
                RunRow(
                    holds="samples",
                    run_id=uuid.uuid4().hex,
                    created=datetime.now(UTC).isoformat(timespec="seconds"),
                    command=self.command_line,
                    config=configuration.as_dict(),
                    how_to_read=configuration.how_to_read,
                    **self.environment,
                )
            )
            if writer.results.partial:
                self._say(
                    "the last line of samples.jsonl was half-written and has been moved aside; "
                    "its sample is measured again"
                )
            jobs = self._missing(writer.results)
            if continued:
                self._say(f"going on with {self.out_dir}: {len(jobs)} of {self._total()} measurements are missing")
            if not writer.results.of(MachineRow):
                self._say("measuring the machine's limits")
                writer.append(self.machine_row() if self.machine_row else self._measure_machine(order_cpus))
            known = {row.plan_id for row in writer.results.of(PlanRow)}
            for plan_id, row in plan_rows.items():
                if plan_id not in known:
                    writer.append(row)
            try:
                self._measure_within_budget(writer, jobs, order_cpus, len(cpus))
            except KeyboardInterrupt:
                done = len(writer.results.finished())
                self._say(f"interrupted; {done} measurements are kept in {self.out_dir}. To go on: {self.command_line}")
                raise
            return writer.results

    def _measure_machine(self, order_cpus) -> MachineRow:
        """Measure the machine's limits and, by threads and hogs, the part of the CPUs that is left beside hogs."""
        row = measure_machine(environment=self.environment["environment"])
        found: dict[str, dict[str, float]] = {}
        for threads, hogs in sorted({(point.threads, point.interference) for point in self.configuration.points()}):
            if hogs:
                found.setdefault(str(threads), {})[str(hogs)] = measure_capacity_beside(hogs, order_cpus(threads))
        return make_row(MachineRow, row, {"capacity_beside": found})

    def _measure_capacity(self, writer: ResultsWriter, repetition: int) -> None:
        """Write the capacity of the thread counts at the beginning of a repetition, so that its spread is known."""
        threads = sorted({point.threads for point in self.configuration.points()} - {1})
        if threads and self.machine_row is None:
            writer.append(CapacityRow(repetition=repetition, capacity=measure_capacity(threads)))

    def _total(self) -> int:
        measure = self.configuration.measure
        return len(self.configuration.points()) * (measure.repeats + measure.profiles)

    def _missing(self, results: Results) -> list[_Job]:
        order = []
        for repetition, point in self.configuration.order():
            order.append(("sample", repetition, point))
            if repetition < self.configuration.measure.profiles:
                order.append(("profile", repetition, point))
        finished, settled = results.finished(), results.settled()
        return [
            _Job(kind, repetition, position, point)
            for position, (kind, repetition, point) in enumerate(order)
            if point.config_id not in settled and (kind, point.config_id, repetition) not in finished
        ]

    def _measure_within_budget(self, writer: ResultsWriter, jobs: Sequence[_Job], order_cpus, cores: int) -> None:
        """Measure all jobs; with a budget by repetitions, until all is decided or no plan has room for another one.

        The first repetition is measured whole. Later ones leave out the plans whose last repetition took longest, so
        that a grid of small and large networks repeats the small ones, where times scatter most.
        """
        measure = self.configuration.measure
        if not measure.budget_s or self.undecided is None:
            self._measure(writer, jobs, order_cpus, cores)
            return
        start = time.monotonic()
        took: dict[str, float] = {}  # seconds of the last repetition of each plan
        for repetition in sorted({job.repetition for job in jobs}):
            spent = time.monotonic() - start
            wanted = self.undecided(writer.results.of(SampleRow)) if repetition else None
            if wanted is not None and not wanted:
                self._say(f"every verdict is decided after {repetition} repetitions ({format_seconds(spent)})")
                return
            asked = [
                job
                for job in jobs
                if job.repetition == repetition and (wanted is None or job.point.config_id in wanted)
            ]
            costs = {job.point.plan_id: took.get(job.point.plan_id, 0.0) for job in asked}
            room = _plans_with_room(costs, measure.budget_s - spent)
            if asked and not room:
                self._say(
                    f"the budget of {format_seconds(measure.budget_s)} is spent after {repetition} repetitions; "
                    f"{'no verdict is' if wanted is None else 'some verdicts are not'} decided: give a larger budget "
                    f"and the same folder to go on"
                )
                return
            took |= self._measure(writer, [job for job in asked if job.point.plan_id in room], order_cpus, cores)

    def _measure(self, writer: ResultsWriter, jobs: Sequence[_Job], order_cpus, cores: int) -> dict[str, float]:
        """Measure jobs and return how many seconds each plan took."""
        # The first weights of each plan and instruction set; all others must equal them.
        expected: dict[tuple[str, str], SampleRow] = {}
        for row in writer.results.of(SampleRow):
            if row.deterministic:
                expected.setdefault((row.plan_id, row.instruction_set), row)
        deterministic = {row.plan_id: row.deterministic for row in writer.results.of(PlanRow)}
        failed: set[str] = set()
        start, last_said, measured_in = time.monotonic(), None, None
        took: dict[str, float] = {}
        with ProgressBar(len(jobs), "measuring", self.stream, lines=False) as bar:
            for number, job in enumerate(jobs):
                point, stage = job.point, self._stage(job)
                if not bar.visible and stage != last_said:
                    self._say(f"{stage}: {self._progress(number, len(jobs), time.monotonic() - start)}")
                    last_said = stage
                bar.show(number, f"{stage}, {point}")
                if point.config_id in failed:
                    continue
                if job.repetition != measured_in:
                    self._measure_capacity(writer, job.repetition)
                    measured_in = job.repetition
                began = time.monotonic()
                row = self._measure_once(job, order_cpus, cores)
                took[point.plan_id] = took.get(point.plan_id, 0.0) + time.monotonic() - began
                if isinstance(row, SampleRow) and row.deterministic and deterministic[point.plan_id]:
                    row = check_same_answer(row, expected.setdefault((point.plan_id, row.instruction_set), row))
                if isinstance(row, FailureRow):
                    failed.add(point.config_id)
                    bar.clear()
                    reason = f"{row.reason}: {row.message.splitlines()[0]}"
                    self._say(f"{point.network}, batch {point.options.batch}, {point}: {reason}")
                writer.append(row)
        return took

    def _stage(self, job: _Job) -> str:
        """Say which repetition a job is of; with a budget nobody knows which one is the last."""
        measure = self.configuration.measure
        return f"repetition {job.repetition + 1}" + ("" if measure.budget_s else f" of {measure.repeats}")

    def _progress(self, done: int, total: int, spent_s: float) -> str:
        """Say how far a sweep is; with a budget its jobs are those of one repetition."""
        if self.configuration.measure.budget_s:
            return f"{total} to measure"
        left = f", {format_seconds(spent_s / done * (total - done))} left" if done else ""
        return f"{done} of {total} measured{left}"

    def _measure_once(self, job: _Job, order_cpus, cores: int) -> SampleRow | ProfileRow | GpuProfileRow | FailureRow:
        """Measure in a fresh process."""
        measure, point = self.configuration.measure, job.point
        spec = parse_model(point.model)
        cpus = order_cpus(point.threads) if measure.pin else None
        settings = {
            **sample_environment(point.threads, point.interference, cores, measure.wait_policy),
            **process_environment(spec),
        }
        asked = {
            "kind": job.kind,
            "model": point.model,
            "threads": point.threads,
            "cpus": cpus,
            "plan": point.plan,
            "seed": measure.seed,
            "check_iterations": measure.check_iterations,
            "target_s": measure.target_s,
            "least_pairs": measure.least_pairs,
            "warmup_s": measure.warmup_s,
            "memory_limit": measure.memory_limit,
        }
        with hogs_running(point.interference, order_cpus(point.threads)):
            result = run_sample(
                asked, clean_environment(os.environ, settings), measure.time_limit_s, self.sample_command
            )
        conditions = {
            "config_id": point.config_id,
            "model": point.model,
            "threads": point.threads,
            "plan_id": point.plan_id,
            "check": self.checks[point.plan_id],
            "interference": point.interference,
            "repetition": job.repetition,
            "position": job.position,
            "environment_id": self.environment["environment_id"],
            "cpus": cpus,
            "variables": settings,
        }
        kinds = {"sample": SampleRow, "profile": GpuProfileRow if spec.model.device == "gpu" else ProfileRow}
        if "failure" not in result:
            try:
                return make_row(kinds[job.kind], result, conditions)
            except ValueError as error:
                result = {"failure": "crash", "message": f"the measuring process gave no {job.kind}: {error}"}
        return FailureRow(
            **conditions, measuring=job.kind, reason=result["failure"], message=result["message"], sample=None
        )

    def _say(self, message: str) -> None:
        print(f"forktask: {message}", file=self.stream, flush=True)


def _plans_with_room(took: Mapping[str, float], room_s: float) -> set[str]:
    """Return the plans whose next repetitions fit into a time together, the quicker ones first."""
    found: set[str] = set()
    for plan_id in sorted(took, key=took.__getitem__):
        room_s -= took[plan_id]
        if room_s < 0:
            break
        found.add(plan_id)
    return found


def _check_same_networks(results: Results, plan_rows: Mapping[str, PlanRow]) -> None:
    """Raise `UsageError` if the user's program makes another network now than that of the results under its name."""
    for row in results.of(PlanRow):
        now = plan_rows.get(row.plan_id)
        if now and is_own(row.network) and now.loops != row.loops:
            raise UsageError(
                f"{results.path.parent} was measured with another network {row.network!r}, whose program was "
                f"changed since; choose another folder with --out"
            )


def check_same_answer(sample: SampleRow, first: SampleRow) -> SampleRow | FailureRow:
    """Return `sample`, or a failure "mismatch" that holds it, if weights or losses differ from `first`'s."""
    same = {"weights": sample.weights_hash == first.weights_hash, "losses": sample.losses_hash == first.losses_hash}
    differing = [what for what, equal in same.items() if not equal]
    if not differing:
        return sample
    return FailureRow(
        **{name: getattr(sample, name) for name in Measured.__struct_fields__},
        measuring="sample",
        reason="mismatch",
        message=f"{' and '.join(differing)} after {sample.check_iterations} iterations are not those of "
        f"{first.model} on {plural(first.threads, 'thread')}, repetition {first.repetition}, as they "
        f"must be bit for bit",
        sample=msgspec.to_builtins(sample),
    )


def expected_duration_s(configuration: Configuration, plan_rows: Mapping[str, PlanRow]) -> float:
    """Estimate the duration of a sweep before anything was measured, from FLOPs at a typical rate.

    Plans that do not fit into memory take no time. With a budget, repetitions after the first end with it.
    """
    measure, first, later = configuration.measure, 3.0, 0.0
    allowed = min(
        parse_bytes(measure.memory_limit) if measure.memory_limit else math.inf,
        read_memory()["available_bytes"] or math.inf,
    )
    for point in configuration.points():
        plan = plan_rows[point.plan_id]
        fits = sum(plan.memory_bytes.values()) <= allowed
        step_s = fits * plan.flops / (GUESSED_FLOPS_PER_S * point.threads)
        sample_s = STARTUP_S + step_s * measure.check_iterations + max(min(measure.warmup_s, 0.3), 2 * step_s)
        sample_s = min(sample_s + max(measure.target_s, 3 * measure.least_pairs * step_s), measure.time_limit_s)
        profile_s = min(STARTUP_S + max(measure.target_s, 6 * step_s), measure.time_limit_s)
        first += sample_s + (profile_s if measure.profiles else 0.0)
        later += (measure.repeats - 1) * sample_s + max(measure.profiles - 1, 0) * profile_s
    return first + (min(later, max(measure.budget_s - first, 0.0)) if measure.budget_s else later)


def expected(configuration: Configuration) -> dict[str, Any]:
    """Return the grid of a sweep and about how long it would take, without measuring anything.

    Returns
    -------
    dict
        title, how_to_read, obstacles (what this machine lacks for it), configurations (config_id, model, threads,
        interference, plan_id and the plan's options), plans (the "plan" rows by id), repeats, measurements,
        expected_duration_s, environment, environment_id.

    Raises
    ------
    UsageError
        A plan that cannot be lowered.
    """
    points = configuration.points()
    plans = {point.plan_id: point.plan for point in points}
    rows = {plan_id: plan_row(plan_id, plan) for plan_id, plan in plans.items()}
    environment = collect()
    return {
        "title": configuration.title,
        "how_to_read": configuration.how_to_read,
        "obstacles": configuration.obstacles(),
        "configurations": [
            {
                "config_id": p.config_id,
                "model": p.model,
                "threads": p.threads,
                "interference": p.interference,
                "plan_id": p.plan_id,
                **p.plan,
            }
            for p in points
        ],
        "plans": rows,
        "repeats": configuration.measure.repeats,
        "measurements": len(points) * (configuration.measure.repeats + configuration.measure.profiles),
        "expected_duration_s": expected_duration_s(configuration, rows),
        "environment": environment,
        "environment_id": environment_id(environment),
    }


def expected_text(found: Mapping[str, Any]) -> str:
    """Format the result of `expected` for a terminal."""
    lines = [found["title"], *(["", found["how_to_read"]] if found["how_to_read"] else [])]
    for plan_id, row in found["plans"].items():
        others = describe(plan_options(row.options), leave_out=("batch",))
        lines.append(
            f"\nplan {plan_id}: {row.network}, batch {row.batch}{', ' + others if others else ''}; "
            f"{row.num_tasks} tasks, {row.num_edges} edges, {row.flops / 1e9:.2f} GFLOP, "
            f"{format_bytes(sum(row.memory_bytes.values()))}"
        )
        for c in found["configurations"]:
            if c["plan_id"] == plan_id:
                hogs = f", {c['interference']} hogs" if c["interference"] else ""
                lines.append(f"  {c['config_id']}  {c['model']} on {plural(c['threads'], 'thread')}{hogs}")
    environment = found["environment"]
    lines += ["", *(f"cannot run: {text}" for text in found["obstacles"])] if found["obstacles"] else []
    count, repeats = len(found["configurations"]), found["repeats"]
    lines.append(
        f"\n{environment['cpu']['model']}, {environment['topology']['cores']} cores, CPUs {environment['affinity']}, "
        f"Python {environment['python']['version']}, environment {found['environment_id']}"
    )
    lines.append(
        f"{count} configurations x {repeats} repeats"
        f"{' and a profile each' if found['measurements'] > count * repeats else ''}: {found['measurements']} "
        f"measurements, about {format_seconds(found['expected_duration_s'])}"
    )
    return "\n".join(lines)
