"""A sweep: measure the missing samples of a configuration, and write each row as it comes.

The configurations of a plan are measured in turns (`sampling/generation.py`), a repetition being a generation of fresh
processes; this process chooses what comes next and keeps the rows.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any, TextIO

import msgspec

from ...cython_src.errors import UsageError
from ...cython_src.networks.own import is_own
from ..machine.environment import collect, environment_id
from ..machine.limits import measure_capacity, measure_machine
from ..machine.topology import available_cpus, cpu_order
from ..results.folder import Results, ResultsWriter, new_run
from ..results.rows import (
    CapacityRow,
    FailureRow,
    GpuProfileRow,
    MachineRow,
    Measured,
    PlanRow,
    ProfileRow,
    RoundsRow,
    SampleRow,
    make_row,
)
from ..sampling.child import SAMPLE_COMMAND, clean_environment, measure_in_process, sample_environment
from ..sampling.generation import Contestant, Generation, measure_generation
from ..sampling.hogs import hogs_running, measure_capacity_beside
from ..sampling.models import parse_model, process_environment
from ..sampling.plan_check import check_plans
from ..sampling.progress import format_seconds
from ..sampling.schedule import Job, Schedule
from ..tables.numbers import plural
from .configuration import Configuration, Part, Point
from .expected import plan_row


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
    undecided : callable (results) -> set of config ids or None, optional
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
    undecided: Callable[[Results], set[str] | None] | None = None
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
                new_run(
                    "samples", configuration.as_dict(), self.command_line, configuration.how_to_read, **self.environment
                )
            )
            if writer.results.partial:
                self._say(
                    "the last line of samples.jsonl was half-written and has been moved aside; "
                    "its sample is measured again"
                )
            if continued:
                missing = sum(len(part.points) for part in self._parts(writer.results))
                self._say(f"going on with {self.out_dir}: {missing} of {self._total()} measurements are missing")
            if not writer.results.of(MachineRow):
                self._say("measuring the machine's limits")
                writer.append(self.machine_row() if self.machine_row else self._measure_machine(order_cpus))
            known = {row.plan_id for row in writer.results.of(PlanRow)}
            for plan_id, row in plan_rows.items():
                if plan_id not in known:
                    writer.append(row)
            budget_s = measure.budget_s if self.undecided else 0.0
            schedule = Schedule("measuring", writer.append, budget_s=budget_s or math.inf, stream=self.stream)
            try:
                schedule.run(self._jobs(schedule, writer.results, order_cpus))
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

    def _measure_capacity(self, repetition: int) -> list[CapacityRow]:
        """Measure the capacity of the thread counts at the beginning of a repetition, so that its spread is known."""
        threads = sorted({point.threads for point in self.configuration.points()} - {1})
        if not threads or self.machine_row is not None:
            return []
        return [CapacityRow(repetition=repetition, capacity=measure_capacity(threads))]

    def _total(self) -> int:
        measure = self.configuration.measure
        return len(self.configuration.points()) * (measure.repeats + measure.profiles)

    def _parts(self, results: Results) -> list[Part]:
        """Return what is missing; of a generation that misses a sample all, since they take turns."""
        settled = results.settled()
        return _missing(self.configuration.parts(), results, lambda point: point.config_id not in settled)

    def _jobs(self, schedule: Schedule, results: Results, order_cpus) -> Iterator[Job]:
        """Yield what is missing, with a budget until all is decided or no plan has room for another generation.

        The first repetition is measured whole. Later ones leave out the plans whose last generation took longest, so
        that a grid of small and large networks repeats the small ones, where times scatter most.
        """
        limited = schedule.budget_s < math.inf
        of = "" if limited else f" of {self.configuration.measure.repeats}"
        self._failed: set[str] = set()
        for repetition, parts in groupby(self._parts(results), key=lambda part: part.repetition):
            parts, wanted, stage = list(parts), None, f"repetition {repetition + 1}{of}"
            if repetition and limited:
                wanted = self.undecided(results)
                if wanted is not None and not wanted:
                    spent = format_seconds(schedule.spent_s)
                    schedule.say(f"every verdict is decided after {repetition} repetitions ({spent})")
                    return
                if wanted is not None:
                    parts = _missing(parts, results, lambda point, wanted=wanted: point.config_id in wanted)
                    if not parts:
                        continue  # An earlier run has measured this generation.
                parts = self._within_budget(schedule, parts)
                if not parts:
                    verdicts = "no verdict is" if wanted is None else "some verdicts are not"
                    schedule.say(
                        f"the budget of {format_seconds(schedule.budget_s)} is spent after {repetition} repetitions; "
                        f"{verdicts} decided: give a larger budget and the same folder to go on"
                    )
                    return
            yield Job(stage, "capacity", partial(self._measure_capacity, repetition))
            for part in parts:
                points = [point for point in part.points if point.config_id not in self._failed]
                if points:
                    said = str(points[0]) if len(points) == 1 else plural(len(points), "configuration")
                    measure = self._measure_generation if part.kind == "sample" else self._measure_profile
                    call = partial(measure, schedule, results, part._replace(points=points), order_cpus)
                    yield Job(stage, said, call, (part.kind, part.points[0].plan_id, part.points[0].interference))

    def _within_budget(self, schedule: Schedule, parts: Sequence[Part]) -> list[Part]:
        """Return the parts of a repetition for which there is time, the quicker plans first."""
        costs: dict[str, float] = {}
        for part in parts:
            point = part.points[0]
            took = schedule.took.get((part.kind, point.plan_id, point.interference), 0.0)
            costs[point.plan_id] = costs.get(point.plan_id, 0.0) + took
        room = schedule.with_room(costs)
        return [part for part in parts if part.points[0].plan_id in room]

    def _job(self, kind: str, point: Point, cpus: Sequence[int] | None) -> dict[str, Any]:
        measure = self.configuration.measure
        return {
            "kind": kind,
            "model": point.model,
            "threads": point.threads,
            "cpus": cpus,
            "plan": point.plan,
            "seed": measure.seed,
            "check_iterations": measure.check_iterations,
            "target_s": measure.target_s,
            "warmup_s": measure.warmup_s,
            "memory_limit": measure.memory_limit,
        }

    def _contestant(self, kind: str, point: Point, results: Results, order_cpus) -> Contestant:
        """Return the process that measures a point."""
        measure, (plan,) = self.configuration.measure, (p for p in results.of(PlanRow) if p.plan_id == point.plan_id)
        cpus = order_cpus(point.threads) if measure.pin else None
        return Contestant(
            point.config_id,
            self._job(kind, point, cpus),
            {
                **sample_environment(point.threads, point.interference, len(available_cpus()), measure.wait_policy),
                **process_environment(parse_model(point.model)),
            },
            sum(plan.memory_bytes.values()),
            measure.time_limit_s,
            self.sample_command,
        )

    def _conditions(self, part: Part, point: Point, contestant: Contestant) -> dict[str, Any]:
        return {
            "config_id": point.config_id,
            "model": point.model,
            "threads": point.threads,
            "plan_id": point.plan_id,
            "check": self.checks[point.plan_id],
            "interference": point.interference,
            "repetition": part.repetition,
            "position": part.positions[point.config_id],
            "environment_id": self.environment["environment_id"],
            "cpus": contestant.job["cpus"],
            "variables": contestant.variables,
        }

    def _measure_generation(
        self, schedule: Schedule, results: Results, part: Part, order_cpus
    ) -> Iterator[RoundsRow | SampleRow | FailureRow]:
        """Measure the points of a plan in turns."""
        measure = self.configuration.measure
        contestants = [self._contestant("sample", point, results, order_cpus) for point in part.points]
        hogs, threads = part.points[0].interference, max(point.threads for point in part.points)
        groups = measure_generation(
            Generation(
                contestants,
                _reference(part.points),
                measure.target_s,
                measure.least_rounds,
                f"{measure.seed}/{part.repetition}/{part.points[0].plan_id}",
                hogs,
                order_cpus(threads),
            )
        )
        by_name = {c.name: (point, c) for point, c in zip(part.points, contestants, strict=True)}
        for group, found in enumerate(groups):
            shared = {"plan_id": part.points[0].plan_id, "interference": hogs, "repetition": part.repetition}
            rounds = make_row(RoundsRow, {**found["rounds"], **shared, "group": group})
            if rounds.order:
                yield rounds
            for name, answer in found["answers"].items():
                point, contestant = by_name[name]
                row = _row_of(SampleRow, answer, {**self._conditions(part, point, contestant), "group": group})
                yield self._checked(schedule, results, point, row)

    def _measure_profile(
        self, schedule: Schedule, results: Results, part: Part, order_cpus
    ) -> Iterator[ProfileRow | GpuProfileRow | FailureRow]:
        """Measure one point with its event log on."""
        (point,) = part.points
        contestant = self._contestant("profile", point, results, order_cpus)
        kind = GpuProfileRow if parse_model(point.model).model.device == "gpu" else ProfileRow
        with hogs_running(point.interference, order_cpus(point.threads)):
            answer = measure_in_process(
                contestant.job,
                clean_environment(os.environ, contestant.variables),
                contestant.limit_s,
                contestant.command,
            )
        row = _row_of(kind, answer, self._conditions(part, point, contestant))
        yield self._checked(schedule, results, point, row)

    def _checked(self, schedule: Schedule, results: Results, point: Point, row: Any) -> Any:
        """Return a row, or a failure in its place if its answer is another one than that of the plan's first sample."""
        if isinstance(row, SampleRow) and row.deterministic:
            plans = {plan.plan_id: plan.deterministic for plan in results.of(PlanRow)}
            alike = (
                first
                for first in results.of(SampleRow)
                if (first.plan_id, first.instruction_set) == (row.plan_id, row.instruction_set) and first.deterministic
            )
            if plans[row.plan_id]:
                row = check_same_answer(row, next(alike, row))
        if isinstance(row, FailureRow):
            self._failed.add(point.config_id)
            reason = f"{row.reason}: {row.message.splitlines()[0]}"
            schedule.say(f"{point.network}, batch {point.options.batch}, {point}: {reason}")
        return row

    def _say(self, message: str) -> None:
        print(f"forktask: {message}", file=self.stream, flush=True)


def _missing(parts: Sequence[Part], results: Results, asked: Callable[[Point], bool]) -> list[Part]:
    """Return the parts of which something that is asked for is not in the folder, with all that is asked for."""
    finished, found = results.finished(), []
    for part in parts:
        points = [point for point in part.points if asked(point)]
        if any((part.kind, point.config_id, part.repetition) not in finished for point in points):
            found.append(part._replace(points=points))
    return found


def _row_of(kind: type, answer: Mapping[str, Any], conditions: Mapping[str, Any]) -> Any:
    """Return the row of a kind that a measuring process answered, or a failure."""
    if "failure" not in answer:
        try:
            return make_row(kind, answer, conditions)
        except ValueError as error:
            name = kind.__struct_config__.tag
            answer = {"failure": "crash", "message": f"the measuring process gave no {name}: {error}"}
    of_failure = {name: conditions[name] for name in Measured.__struct_fields__}
    measuring = "sample" if kind is SampleRow else "profile"
    reason, message = answer["failure"], answer["message"]
    return FailureRow(**of_failure, measuring=measuring, reason=reason, message=message, sample=None)


def _reference(points: Sequence[Point]) -> str:
    """Return the configuration that all others are compared with: the strongest fork-join form on most threads."""
    persistent = [p for p in points if p.model.startswith("forkjoin") and "region=persistent" in p.model]
    forms = persistent or [p for p in points if p.model.startswith("forkjoin")] or points
    return max(forms, key=lambda point: point.threads).config_id


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
