"""A sweep: measure the missing samples of a configuration, and write each row as it comes.

The configurations of a plan are measured in turns (`sampling/generation.py`), a repetition being a generation of fresh
processes; this process chooses which shard comes next (`shards.py`) and keeps the rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby

from ...cython_src.errors import UsageError
from ...cython_src.networks.own import is_own
from ..results.folder import Results, ResultsWriter
from ..results.nodes import check_nodes
from ..results.rows import AnyRow, FailureRow, MachineRow, PlanRow, RunRow
from ..sampling.schedule import Job, Schedule
from ..tables.numbers import plural
from ..tables.progress import format_seconds, say
from .configuration import Configuration, Shard
from .shards import Answers, Means, Site, missing_shards


@dataclass
class SweepRunner:
    """Measurement of the missing samples of a configuration; each row is written as it comes.

    Parameters
    ----------
    command_line : str
        The user's command: kept in the results and repeated when the run is interrupted.
    means : Means
        With what this machine measures.
    undecided : callable (results) -> set of config ids or None, optional
        With a budget: the configurations that are measured again, none when every question is decided; None where there
        is no question, so that all are.
    shards : iterable of Shard, optional
        Measure what is missing of these alone, on one node of many; each is asked for when the one before it is done.
    """

    configuration: Configuration
    out_dir: str
    command_line: str
    means: Means = field(default_factory=Means)
    undecided: Callable[[Results], set[str] | None] | None = None
    shards: Iterable[Shard] | None = None

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
        site = Site(self.configuration, self.means)
        with ResultsWriter(self.out_dir) as writer:
            check_same_networks(writer.results, site.plans)
            run, before = site.run_row(self.command_line), writer.results.of(RunRow)
            continued = writer.start(run, same_environment=self.configuration.measure.nodes == "one")
            check_nodes([(row.node, row.environment) for row in (*before, run)], self.configuration.measure.nodes)
            if writer.results.partial:
                say(
                    "the last line of samples.jsonl was half-written and has been moved aside; its sample is measured "
                    "again"
                )
            if continued and self.shards is None:
                missing = self._missing(writer.results)
                number = sum(len(shard.samples) + len(shard.profiles) for shard in missing)
                say(f"going on with {self.out_dir}: {number} of {self._total()} measurements are missing")
            if not any(row.node.is_same(site.node) for row in writer.results.of(MachineRow)):
                say("measuring the machine's limits")
                writer.append(site.machine_row())
            known = {row.plan_id for row in writer.results.of(PlanRow)}
            for plan_id, row in site.plans.items():
                if plan_id not in known:
                    writer.append(row)
            budget_s = self.configuration.measure.budget_s if self.undecided else 0.0
            schedule = Schedule("measuring", writer.append, budget_s=budget_s or math.inf)
            measure = partial(self._measure, schedule, site, Answers(writer.results.rows), set())
            try:
                schedule.run(self._jobs(schedule, writer.results, measure))
            except KeyboardInterrupt:
                done = len(writer.results.finished())
                kept = f"{done} measurements are kept in {self.out_dir}"
                say(f"interrupted; {kept}. To go on: {self.command_line}")
                raise
            return writer.results

    def _total(self) -> int:
        measure = self.configuration.measure
        return len(self.configuration.points()) * (measure.repeats + measure.profiles)

    def _missing(self, results: Results) -> list[Shard]:
        return missing_shards(self.configuration.shards(), results)

    def _jobs(
        self, schedule: Schedule, results: Results, measure: Callable[[Shard], Iterable[AnyRow]]
    ) -> Iterator[Job]:
        """Yield what is missing, with a budget until all is decided or no plan has room for another generation.

        The first repetition is measured whole. Later ones leave out the plans whose last generation took longest, so
        that a grid of small and large networks repeats the small ones, where times scatter most.
        """
        limited = schedule.budget_s < math.inf
        of = "" if limited else f" of {self.configuration.measure.repeats}"
        if self.shards is not None:
            for given in self.shards:
                for shard in missing_shards([given], results):
                    yield _job(f"repetition {shard.repetition + 1}{of}", shard, measure)
            return
        for repetition, group in groupby(self._missing(results), key=lambda shard: shard.repetition):
            shards, wanted = list(group), None
            if repetition and limited:
                wanted = self.undecided(results)
                if wanted is not None and not wanted:
                    spent = format_seconds(schedule.spent_s)
                    schedule.say(f"every question is answered after {repetition} repetitions ({spent})")
                    return
                if wanted is not None:
                    shards = missing_shards(shards, results, wanted.__contains__)
                    if not shards:
                        continue  # An earlier run has measured this generation.
                shards = self._within_budget(schedule, shards)
                if not shards:
                    schedule.say(
                        f"the budget of {format_seconds(schedule.budget_s)} is spent after {repetition} repetitions; "
                        f"give a larger budget and the same folder to go on"
                    )
                    return
            yield from (_job(f"repetition {repetition + 1}{of}", shard, measure) for shard in shards)

    def _within_budget(self, schedule: Schedule, shards: Sequence[Shard]) -> list[Shard]:
        """Return the shards of a repetition for which there is time, the quicker plans first."""
        costs: dict[str, float] = {}
        for shard in shards:
            profiled, alone = (schedule.took.get(_cost(shard, profiled), 0.0) for profiled in (True, False))
            took = profiled if shard.profiles else alone or profiled
            costs[shard.plan_id] = costs.get(shard.plan_id, 0.0) + took
        room = schedule.with_room(costs)
        return [shard for shard in shards if shard.plan_id in room]

    def _measure(
        self, schedule: Schedule, site: Site, answers: Answers, failed: set[str], shard: Shard
    ) -> Iterator[AnyRow]:
        """Measure a shard but for what failed before, and say what fails."""
        points = {point.config_id: point for point in self.configuration.points()}
        for row in site.measure(shard.with_only(lambda config_id: config_id not in failed), answers):
            if isinstance(row, FailureRow):
                failed.add(row.config_id)
                point, reason = points[row.config_id], f"{row.reason}: {row.message.splitlines()[0]}"
                schedule.say(f"{point.network}, batch {point.options.batch}, {point}: {reason}")
            yield row


def _job(stage: str, shard: Shard, measure: Callable[[Shard], Iterable[AnyRow]]) -> Job:
    named = (("configuration", shard.samples), ("profile", shard.profiles))
    said = " and ".join(plural(len(some), name) for name, some in named if some)
    return Job(stage, said, partial(measure, shard), _cost(shard, bool(shard.profiles)))


def _cost(shard: Shard, profiled: bool) -> tuple[str, int, bool]:
    return shard.plan_id, shard.interference, profiled


def check_same_networks(results: Results, plan_rows: Mapping[str, PlanRow]) -> None:
    """Raise `UsageError` if the user's program makes another network now than that of the results under its name."""
    for row in results.of(PlanRow):
        now = plan_rows.get(row.plan_id)
        changed = now and (now.loops != row.loops or row.layers_id not in ("", now.layers_id))
        if changed and is_own(row.network):
            raise UsageError(
                f"{results.path.parent} was measured with another network {row.network!r}, whose program was "
                f"changed since; choose another folder with --out"
            )
