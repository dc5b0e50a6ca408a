"""A shard of a sweep: one generation of one plan, measured on one machine; the unit that a node of a cluster gets.

A plain sweep, a batch job and a worker of a cluster measure shards alike: `Site` is the machine that does it, a `Shard`
is a value that JSON holds, and what comes back are rows. Ratios are taken within a shard, so that none compares two
machines.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from ..analysis.agreement import disagreement, first_disagreement, unlike
from ..machine.fitness import verdict, verdict_text
from ..machine.limits import measure_capacity, measure_machine
from ..plan_check.checking import check_plans
from ..results.folder import Results, new_run
from ..results.nodes import Node
from ..results.rows import (
    AnyRow,
    CapacityRow,
    FailureRow,
    GpuProfileRow,
    MachineRow,
    Measured,
    PlanRow,
    ProfileRow,
    RoundsRow,
    RunRow,
    SampleRow,
    answered,
    make_row,
    values_of,
)
from ..sampling.child import SAMPLE_COMMAND, measure_in_process, run_environment
from ..sampling.generation import Contestant, Generation, Machine, contestant_of, measure_generation
from ..sampling.hogs import hogs_running, measure_capacity_beside
from ..subjects.calls import label, try_programs
from ..subjects.models import ModelSpec
from ..tables.numbers import plural
from ..tables.progress import say
from .configuration import Configuration, GridPoint, Shard
from .expected import plan_row


def missing_shards(
    shards: Collection[Shard], results: Results, requested: Callable[[str], bool] = lambda config_id: True
) -> list[Shard]:
    """Return the shards of which something is not in a folder.

    Parameters
    ----------
    requested : callable (config_id) -> bool
        The configurations that are asked for; those that failed for good never are.

    Returns
    -------
    list of Shard
        Each with the profiles that are missing and, where a sample is missing, with all samples that are asked for:
        they take turns.
    """
    finished, settled, result = results.finished(), results.settled(), []
    for given in shards:
        shard = given.with_only(lambda config_id: config_id not in settled and requested(config_id))
        samples = shard.samples
        if all(("sample", config_id, shard.repetition) in finished for config_id in samples):
            samples = {}
        profiles = {c: at for c, at in shard.profiles.items() if ("profile", c, shard.repetition) not in finished}
        if samples or profiles:
            result.append(Shard(**shard.identity, samples=samples, profiles=profiles))
    return result


class Answers:
    """The first result of each plan and instruction set, which all later ones must equal bit for bit; those of other
    programs must be near ours, and those of functions within a tolerance, if any."""

    def __init__(self, rows: Collection[AnyRow], rtol: float = 0.0):
        self._rtol = rtol
        self._deterministic: dict[str, bool] = {}
        self._first: dict[tuple[str, str], SampleRow] = {}
        self._ours: dict[str, SampleRow] = {}
        self._compare: dict[str, Callable[[Sequence[float], Sequence[float]], str]] = {}
        for row in rows:
            self.checked(row)

    def checked(self, row: Any) -> Any:
        """Return a row, or a failure in its place if it is a sample with another result than the first one."""
        if isinstance(row, PlanRow):
            self._deterministic[row.plan_id] = row.deterministic
            self._compare[row.plan_id] = first_disagreement if row.options["phase"] == "train" else disagreement
        if isinstance(row, SampleRow) and row.model.model.is_call and not row.deterministic:
            first = self._ours.setdefault(row.plan_id, row)
            return check_near_answer(row, first, partial(unlike, rtol=self._rtol)) if self._rtol else row
        if isinstance(row, SampleRow) and row.answer:
            if not row.model.is_peer:
                self._ours.setdefault(row.plan_id, row)
            elif row.plan_id in self._ours:
                return check_near_answer(
                    row, self._ours[row.plan_id], self._compare.get(row.plan_id, first_disagreement)
                )
        if not isinstance(row, SampleRow) or not (row.deterministic and self._deterministic.get(row.plan_id)):
            return row
        return check_same_answer(row, self._first.setdefault((row.plan_id, row.instruction_set), row))


@dataclass
class Means:
    """With what a site measures, which tests replace."""

    sample_command: Sequence[str] = SAMPLE_COMMAND  # the measuring process
    plan_row: Callable[[str, Mapping[str, Any]], PlanRow] = plan_row
    environment: Mapping[str, Any] | None = None  # {"environment", "environment_id"}; by default collected here
    # in place of measuring the machine's limits, and its capacity in each shard
    machine_row: Callable[[], MachineRow] | None = None
    machine: Machine | None = None  # clock and processes; default: this machine's


class Site:
    """This machine, as a place where shards of a configuration are measured.

    Attributes
    ----------
    plans : dict of PlanRow
        By plan_id.
    node : Node
    clock : Machine
        Whose time counts.

    Raises
    ------
    UsageError
        What this machine cannot run, or a plan that cannot be lowered.
    UnsoundPlan
        A plan of one's own failed its check; nothing was measured.
    """

    def __init__(self, configuration: Configuration, means: Means | None = None):
        configuration.check_machine()
        self.configuration, measure = configuration, configuration.measure
        try_programs(configuration.grid.models, max(configuration.grid.threads), measure.time_limit_s)
        self._means = means = means or Means()
        self.clock = means.machine or Machine
        self._points = {point.config_id: point for point in configuration.points()}
        plans = {point.plan_id: point.plan for point in self._points.values()}
        self.plans = {plan_id: means.plan_row(plan_id, options) for plan_id, options in plans.items()}
        runs: dict[str, list[tuple[ModelSpec, int]]] = {plan_id: [] for plan_id in plans}
        for point in self._points.values():
            runs[point.plan_id].append((point.model, point.threads))
        result = check_plans(zip(plans.values(), runs.values(), strict=True), measure.check)
        self._checks = dict(zip(plans, result, strict=True))
        self._any_order = measure.with_changes(oversubscribe=True).order
        self.environment = environment = means.environment or run_environment(measure.wait_policy)
        self.node = msgspec.convert(environment["environment"]["node"], Node)

    def run_row(self, command: str) -> RunRow:
        """Return the first row of a folder that is measured here; `command` continues it."""
        configuration = self.configuration
        return new_run("samples", configuration.as_dict(), command, configuration.how_to_read, **self.environment)

    def machine_row(self) -> MachineRow:
        """Measure the machine's limits and, by threads and competing processes, the part of the CPUs that these
        leave."""
        if self._means.machine_row:
            return self._means.machine_row()
        measure = self.configuration.measure
        environment = self.environment["environment"]
        row = measure_machine(environment, order=self._any_order)
        say(verdict_text(verdict(environment, row)))
        result: dict[str, dict[str, float]] = {}
        for threads, hogs in sorted({(point.threads, point.interference) for point in self._points.values()}):
            if hogs:
                result.setdefault(str(threads), {})[str(hogs)] = measure_capacity_beside(hogs, measure.order(threads))
        return make_row(MachineRow, row, {"capacity_beside": result})

    def measure(self, shard: Shard, answers: Answers | None = None, ends: float = math.inf) -> Iterator[AnyRow]:
        """Measure a shard: the machine's capacity, the samples interleaved, then the profiles of those that did not
        fail.

        Parameters
        ----------
        answers : Answers, optional
            Of the folder that takes the rows; default: samples are compared within the shard.
        ends : float
            Time of the machine's clock after which no further round begins.

        Yields
        ------
        CapacityRow, RoundsRow, SampleRow, ProfileRow, GpuProfileRow, FailureRow
        """
        answers = answers or Answers(self.plans.values(), self.configuration.measure.rtol)
        points = [self._points[config_id] for config_id in (*shard.samples, *shard.profiles)]
        threads = sorted({point.threads for point in points} - {1})
        if threads and self._means.machine_row is None:
            yield CapacityRow(**shard.identity, node=self.node, capacity=measure_capacity(threads, self._any_order))
        failed, profiles = set(), {}
        for row in self._measure_samples(shard, profiles, ends) if shard.samples else ():
            row = answers.checked(row)
            if isinstance(row, FailureRow):
                failed.add(row.config_id)
            yield row
        for config_id in shard.profiles:
            if config_id not in failed:
                contestant = self._contestant("profile", self._points[config_id])
                reply = profiles.get(config_id) or self._measure_profile(shard, contestant)
                kind = ProfileRow if contestant.job["model"].model.device == "cpu" else GpuProfileRow
                yield answered(kind, FailureRow, reply, self._conditions("profile", shard, contestant))

    def _contestant(self, kind: str, point: GridPoint, profile: bool = False) -> Contestant:
        """Return the process that measures a point, a sample with its profile or without."""
        measure = self.configuration.measure
        return contestant_of(
            point.config_id,
            point.model,
            point.threads,
            plan=point.plan,
            # another program keeps its own beside ours, with temporaries
            planned_bytes=sum(self.plans[point.plan_id].memory_bytes.values()) * (3 if point.model.is_peer else 1),
            limit_s=measure.time_limit_s * (1 + profile),
            hogs=point.interference,
            wait_policy=measure.wait_policy,
            command=self._means.sample_command,
            kind=kind,
            profile=profile,
            cpus=measure.cpus(point.threads),
            memory_policy=measure.memory_policy,
            seed=measure.seed,
            check_iterations=1 if point.model.model.is_call else measure.checked(self.plans[point.plan_id].flops),
            rtol=measure.rtol if measure.compare_results else None,
            counters=measure.counters,
            target_s=measure.target_s,
            warmup_s=measure.warmup_s,
            memory_limit=measure.memory_limit,
        )

    def _conditions(self, measuring: str, shard: Shard, contestant: Contestant) -> dict[str, Any]:
        point = self._points[contestant.name]
        return {
            "measuring": measuring,
            "sample": None,
            **shard.identity,
            **point.identity,
            "check": self._checks[point.plan_id],
            "position": (shard.samples if measuring == "sample" else shard.profiles)[contestant.name],
            "environment_id": self.environment["environment_id"],
            "node": self.node,
            "origin": dict(point.model.model.origin),
            "cpus": contestant.job["cpus"],
            "variables": contestant.variables,
        }

    def _measure_samples(
        self, shard: Shard, profiles: dict[str, Mapping[str, Any]], ends: float
    ) -> Iterator[RoundsRow | SampleRow | FailureRow]:
        """Measure samples, interleaved; the profiles of their processes go to `profiles`."""
        measure, points = self.configuration.measure, [self._points[config_id] for config_id in shard.samples]
        contestants = {p.config_id: self._contestant("sample", p, p.config_id in shard.profiles) for p in points}
        generation = Generation(
            list(contestants.values()),
            _reference(points),
            measure.target_s,
            measure.least_rounds,
            f"{measure.seed}/{shard.repetition}/{shard.plan_id}",
            shard.interference,
            measure.order(max(point.threads for point in points)),
            ends,
        )
        for group, result in enumerate(measure_generation(generation, self._means.machine)):
            about = {"group": group, "node": self.node}
            rounds = make_row(RoundsRow, msgspec.structs.asdict(result.rounds), shard.identity, about)
            if rounds.order:
                yield rounds
            for name, reply in sorted(result.answers.items(), key=lambda one: self._order_of_judging(one[0])):
                if profile := reply.pop("profile", None):
                    profiles[name] = profile
                conditions = self._conditions("sample", shard, contestants[name])
                yield answered(SampleRow, FailureRow, reply, {**conditions, "group": group})

    def _order_of_judging(self, config_id: str) -> tuple[bool, bool, int]:
        """Return a sort key: first the configurations that are references for the results of others."""
        point, reference = self._points[config_id], self.configuration.grid.models[0]
        is_call = point.model.model.is_call
        return point.model.is_peer, is_call and point.model != reference, is_call * point.threads

    def _measure_profile(self, shard: Shard, contestant: Contestant) -> dict[str, Any]:
        """Measure the profile of a sample that is in the folder already, in a process of its own."""
        with hogs_running(shard.interference, self.configuration.measure.order(contestant.job["threads"])):
            return measure_in_process(contestant.job, contestant.variables, contestant.limit_s, contestant.command)


def _reference(points: Sequence[GridPoint]) -> str:
    """Return the configuration that all others are compared with: the strongest fork-join form on most threads."""

    def strength(point: GridPoint) -> tuple[bool, bool, int]:
        forkjoin = point.model.name == "forkjoin"
        return forkjoin, forkjoin and point.model.option("region") == "persistent", point.threads

    return max(points, key=strength).config_id


def check_same_answer(sample: SampleRow, first: SampleRow) -> SampleRow | FailureRow:
    """Return `sample`, or a failure "mismatch" that holds it, if weights or losses differ from `first`'s."""
    same = {"weights": sample.weights_hash == first.weights_hash, "losses": sample.losses_hash == first.losses_hash}
    differing = [what for what, equal in same.items() if not equal]
    if not differing:
        return sample
    text = (
        f"{' and '.join(differing)} after {sample.check_iterations} iterations are not those of {first.model} on "
        f"{plural(first.threads, 'thread')}, generation {first.repetition + 1}, as they must be bit for bit"
    )
    if sample.model.model.is_call:
        text = (
            f"it must return the same as {label(first.model)} on {plural(first.threads, 'thread')}, and returned "
            f"something else; mend it, allow rounding by --rtol, or do not compare results by --no-compare-results"
        )
    return _failed(sample, "mismatch", text)


def check_near_answer(
    sample: SampleRow, ours: SampleRow, compare: Callable[[Sequence[float], Sequence[float]], str]
) -> SampleRow | FailureRow:
    """Return another program's `sample`, or a failure "answer" that holds it, if its result is not near ours, which
    `compare` says.

    torch.compile 2.13, for one, sends no gradient through LeNet-5's pooling on a CPU: such a mode is no peer.
    """
    if not (wrong := compare(ours.answer, sample.answer)):
        return sample
    kind = "function" if sample.model.model.is_call else "program"
    return _failed(sample, "answer", f"compared with {ours.model}'s answer this {kind}'s {wrong}")


def _failed(sample: SampleRow, reason: str, message: str) -> FailureRow:
    conditions = {name: getattr(sample, name) for name in Measured.__struct_fields__}
    return FailureRow(**conditions, measuring="sample", reason=reason, message=message, sample=values_of(sample))
