"""Checked rows of one results folder. No clock and no executor here: everything is redrawn from `samples.jsonl`.

Every time and every ratio of a sweep comes from `estimates.Estimates`, so that no two numbers of a page disagree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pandas as pd

from ...cython_src.errors import UsageError, check_choice
from ..bounds import bounds
from ..machine.topology import first_beyond
from ..results.rows import (
    CapacityRow,
    FailureRow,
    GpuProfileRow,
    MachineRow,
    PlanRow,
    ProfileRow,
    RoundsRow,
    RunRow,
    TraceRow,
)
from ..results.turns import QuietTimes, Turn, mostly_in
from ..subjects.calls import label
from ..subjects.models import ModelSpec, parse_model, read_model
from ..tables.numbers import plural
from .estimates import Estimate, Estimates, estimate
from .names import is_graph, model_label, problem_text, record_of, swept_fields, with_short_names

SMOKE_TEST_DATA = ("digits", "synthetic")
# `compare` and `run` feed networks with random images: step times do not depend on the pixels.
DEFAULT_DATA = "synthetic"

T = TypeVar("T")
AnyProfile = TypeVar("AnyProfile", ProfileRow, GpuProfileRow)


class Point(NamedTuple):
    """A model on a number of threads, running a plan."""

    plan_id: str
    model: ModelSpec
    threads: int


def capacities_of(machines: Iterable[MachineRow | CapacityRow], threads: int) -> list[float]:
    """Return how many single threads' work P threads did each time that it was measured, in [1, P]."""
    takes = [row.capacity.get(str(threads)) for row in machines]
    return [min(max(1.0, take), float(threads)) for take in takes if take]


def capacity_of(machines: Iterable[MachineRow | CapacityRow], threads: int) -> Estimate:
    """Return how many single threads' work P threads do on a machine, in [1, P]; P if not measured."""
    takes = capacities_of(machines, threads)
    return estimate(takes) if takes and threads > 1 else Estimate(float(threads), math.nan, math.nan, 0)


def kept(function: Callable[..., T]) -> Callable[..., T]:
    """Keep with a sweep what a function of it returns for the same further arguments, as `cached_property` does."""

    @wraps(function)
    def call(sweep: Sweep, *arguments: Any) -> T:
        key = (function, *(tuple(value) if isinstance(value, list) else value for value in arguments))
        if key not in sweep._kept:
            sweep._kept[key] = function(sweep, *arguments)
        return sweep._kept[key]

    return call


@dataclass(eq=False)
class Sweep:
    """Checked rows of one results folder."""

    run: RunRow  # the latest one
    plans: dict[str, PlanRow]
    machine: MachineRow  # the latest one, or `NOT_MEASURED`
    samples: pd.DataFrame  # one row per sample; columns plan_id, model, threads, repetition, step_time_s, ...
    profiles: list[ProfileRow]
    gpu_profiles: list[GpuProfileRow]
    failures: list[FailureRow]
    traces: list[TraceRow]
    turns: dict[Point, dict[Turn, float]]  # seconds per step of each undisturbed turn of each (plan_id, model, threads)
    quiet: QuietTimes  # what they were taken from: rounds on which no verdict may rest, generations that are left out
    rounds: list[RoundsRow]
    capacities: list[CapacityRow]  # the capacity measured again in each repetition
    session_of: dict[int, int] = field(default_factory=dict)  # in which each was measured; see `separate_sessions`
    machines: list[MachineRow] = field(default_factory=list)  # all of them: of several nodes one each
    # the nodes that measured samples, with the latest row of each
    nodes: dict[str, RunRow] = field(default_factory=dict)
    node_of: dict[int, str] = field(default_factory=dict)  # where each was measured
    # those whose times hold disturbed rounds, since too few others were left
    disturbed_points: set[Point] = field(default_factory=set)
    # models that are drawn besides the serial run, in this order, with their labels; empty: all, with their own
    shown: Mapping[ModelSpec, str] = field(default_factory=dict)
    folder: Path | None = None  # that the rows were read from
    partial: str = ""  # half-written last line that was left out
    warnings: list[str] = field(default_factory=list)  # sentences that a reader of the tables must know
    _kept: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)  # of functions that are `kept`

    @property
    def config(self) -> Mapping[str, Any]:
        """The configuration of the run."""
        return self.run.config

    @cached_property
    def asked_models(self) -> tuple[ModelSpec, ...]:
        """Models that were asked for, in the order of the file."""
        return tuple(map(read_model, self.config.get("models") or ()))

    @property
    def reference_call(self) -> ModelSpec | None:
        """The function or program with which others are compared: the first; None: a comparison of models."""
        return next((model for model in self.asked_models[:1] if model.model.is_call), None)

    @property
    def environment(self) -> Mapping[str, Any]:
        """The environment of the run."""
        return self.run.environment

    @property
    def sessions(self) -> int:
        """How many sessions there are."""
        return len({*self.session_of.values()}) or 1

    @property
    def data(self) -> str:
        """The network's data, as on the command line."""
        return str(self.config.get("data") or DEFAULT_DATA)

    @property
    def smoke_test(self) -> bool:
        """Whether networks were fed with data that are too small or artificial to stand for a real training set."""
        if all(map(is_graph, self.plans.values())):
            return False
        return self.data.partition(":")[0] in SMOKE_TEST_DATA

    @property
    def placement(self) -> dict[str, str]:
        """The places of threads, and how they were bound to them."""
        return {"places": self.config.get("places", "cores"), "bind": self.config.get("bind", "close")}

    @cached_property
    def next_places(self) -> dict[int, str]:
        """What a curve over threads meets on this machine, by the first number of threads; see `first_beyond`."""
        return first_beyond(
            self.environment.get("topology", {}), self.environment.get("affinity", ()), **self.placement
        )

    @property
    def core_kinds(self) -> list[Mapping[str, Any]]:
        """Runs of equally fast CPUs in the order in which threads get them."""
        return self.environment.get("core_kinds") or []

    def capacity(self, threads: int) -> Estimate:
        """Return how many single threads' work P threads do on this machine, in [1, P]; P if not measured."""
        return capacity_of((self.machine, *self.capacities), threads)

    def rates(self, threads: int) -> tuple[float, float]:
        """Return FLOP/s and bytes/s of `threads` threads of this machine; NaN where they were not measured."""
        return bounds.machine_rates(self.machine.peak_flops_per_s_1thread, self.machine.bandwidth_bytes_per_s, threads)

    # --- plans, and the options in which they differ ---

    def plan_ids(self) -> list[str]:
        """Return the plans with samples, in the order in which they were written."""
        used = set(self.samples["plan_id"]) if len(self.samples) else set()
        return [plan_id for plan_id in self.plans if plan_id in used]

    @cached_property
    def records(self) -> dict[str, dict[str, Any]]:
        """The choices behind each plan, by plan_id, all with the same fields; see `record_of`."""
        result = {plan_id: record_of(plan) for plan_id, plan in self.plans.items()}
        fields = dict.fromkeys(name for record in result.values() for name in record)
        return {plan_id: {name: record.get(name) for name in fields} for plan_id, record in result.items()}

    @cached_property
    def named(self) -> dict[str, dict[str, Any]]:
        """The records as titles name them, by plan_id; see `with_short_names`."""
        return dict(zip(self.records, with_short_names([*self.records.values()]), strict=True))

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """Fields of the records that take several values among the plans with samples."""
        return swept_fields([self.records[plan_id] for plan_id in self.plan_ids()])

    def siblings(self, plan_id: str, axis: str, requested: bool = False) -> list[str]:
        """Return the plans with samples whose records differ from this plan's in `axis` at most, itself included; with
        `requested`, also those that were to be measured and have no sample."""

        def rest(plan: str) -> dict[str, Any]:
            return {name: value for name, value in self.records[plan].items() if name != axis}

        return [other for other in (self.plans if requested else self.plan_ids()) if rest(other) == rest(plan_id)]

    def asked_threads(self, plan_id: str) -> list[int]:
        """Return the numbers of threads that a plan was measured on or was to be."""
        return sorted({*(threads for _, threads in self.points_of(plan_id)), *self.config.get("threads", ())})

    def problem_name(self, plan_id: str, besides: str = "") -> str:
        """Return the readable name of a plan's problem: all but its granularity and the option `besides`."""
        return problem_text(self.named[plan_id], self.axes, besides)

    def with_turns(self, turns: Mapping[Point, Mapping[Turn, float]]) -> Sweep:
        """Return the same sweep with these times alone; points that have none are left out."""
        kept_turns = {point: dict(own) for point, own in turns.items() if own}
        return replace(self, turns=kept_turns, disturbed_points=mostly_in(kept_turns, self.quiet.disturbed))

    def points(self) -> list[Point]:
        """Return all points that are shown: plans as in `plan_ids`, models in their order."""
        return [Point(plan_id, *rest) for plan_id in self.plan_ids() for rest in self.points_of(plan_id)]

    def measured(self, plan_id: str, name: str, threads: int | None) -> Point:
        """Return the point of a plan's model, function or program by name, on this number of threads, or as many as the
        model has; None: on the most. Raises `UsageError`: it was not measured so."""
        known = self.points_of(plan_id)
        model = next((each for each, _ in known if each.model.is_call and label(each) == name), None)
        model = model or parse_model(name)
        requested = threads and min(threads, model.model.max_threads or threads)
        counts = [count for each, count in known if each == model and requested in (None, count)]
        if not counts:
            listed = ", ".join(f"{each} on {count}" for each, count in known)
            on = "" if threads is None else f" on {plural(threads, 'thread')}"
            raise UsageError(f"a ratio is of models that were measured ({listed}), got {name!r}{on}; name one of them")
        return Point(plan_id, model, max(counts))

    def samples_of(self, point: Point) -> pd.DataFrame:
        """Return the samples of a point."""
        own = self.samples
        return own[(own["plan_id"] == point[0]) & (own["model"] == point[1]) & (own["threads"] == point[2])]

    # --- times ---

    def points_of(self, plan_id: str) -> list[tuple[ModelSpec, int]]:
        """Return (model, threads) of a plan's points that are shown, models in their order."""
        result = [(model, threads) for plan, model, threads in self.turns if plan == plan_id and self.shows(model)]
        return sorted(result, key=lambda p: (self.rank(p[0]), p[1]))

    def shows(self, model: ModelSpec) -> bool:
        """Return whether a model is drawn."""
        return not self.shown or model.is_serial or model in self.shown

    def label(self, model: ModelSpec) -> str:
        """Return the label of a model in what is drawn."""
        return self.shown.get(model) or model_label(model)

    def rank(self, model: ModelSpec) -> tuple:
        """Return a sort key: models in the order in which they are `shown`, then the others in theirs."""
        return ([*self.shown].index(model) - len(self.shown),) if model in self.shown else model.rank

    @cached_property
    def times(self) -> Estimates[Point]:
        """The estimator of all times and ratios."""
        loud = {(plan_id, model, threads): own for (plan_id, _, model, threads), own in self.quiet.loud.items()}
        return Estimates(self.turns, loud, self.session_of)

    # --- profiles ---

    def profiles_of(self, point: Point) -> dict[int, ProfileRow]:
        """Return the latest profile row of a point in each repetition; none for models of a GPU."""
        return _rows_of(self.profiles, point)

    def gpu_profiles_of(self, point: Point) -> dict[int, GpuProfileRow]:
        """Return the GPU models' latest profile row of a point in each repetition."""
        return _rows_of(self.gpu_profiles, point)

    def loop_times(self, profile: ProfileRow) -> list[list[float]]:
        """Return typical durations of each loop's blocks in seconds, in plan order, from a profile row."""
        return bounds.durations_by_loop(self.plans[profile.plan_id].loops, profile.block_time_s)


def chosen(sweep: Sweep, models: Mapping[str, str] | None) -> Sweep:
    """Return a sweep that shows these models only, in this order, under the given labels ("": their own)."""
    if not models:
        return sweep  # with all that it keeps
    by_text = {str(model): model for _, model, _ in sweep.turns}
    for text in models:
        check_choice("a model of the figure", text, by_text)
    shown = {by_text[text]: label or model_label(by_text[text]) for text, label in models.items()}
    return replace(sweep, shown=shown)


def _rows_of(profiles: Sequence[AnyProfile], point: Point) -> dict[int, AnyProfile]:
    return {row.repetition: row for row in profiles if (row.plan_id, row.model, row.threads) == point}
