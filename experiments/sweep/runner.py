"""A sweep: measure the missing samples of a configuration, and write each row as it comes.

The configurations of a plan are measured in turns (`sampling/generation.py`), a repetition being a generation of fresh
processes; this process chooses which shard comes next (`shards.py`) and keeps the rows.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count, groupby
from statistics import median

from ...cython_src.errors import UsageError
from ...cython_src.networks.own import is_own
from ..analysis.accounting import is_alike
from ..analysis.estimates import MIN_GENERATIONS
from ..analysis.names import problem_text, record_of, swept_fields, with_short_names
from ..results.folder import LASTING_FAILURES, Results, ResultsWriter
from ..results.nodes import check_nodes
from ..results.rows import (
    AnyRow,
    FailureRow,
    GpuProfileRow,
    MachineRow,
    OfShard,
    PlanRow,
    ProfileRow,
    RoundsRow,
    RunRow,
    SampleRow,
    SessionRow,
)
from ..results.turns import SESSION_PAUSE_S, groups_of, moved_groups
from ..sampling.schedule import Job, Schedule
from ..tables.numbers import plural
from ..tables.progress import continued_by, format_seconds, say
from .configuration import Configuration, Shard
from .expected import generation_s
from .shards import Answers, Means, Site, missing_shards
from .status import standing_failures

PROCESS_S = 30.0  # a pause is counted from the start of the last process: so long it may have lasted


@dataclass
class SweepRunner:
    """Measurement of the missing samples of a configuration; each row is written as it comes."""

    configuration: Configuration
    out_dir: str
    command_line: str  # the user's command: kept in the results and repeated when the run is interrupted
    means: Means = field(default_factory=Means)  # with what this machine measures
    # with a budget: the configurations that are measured again, none when every question is decided; None where there
    # is no question, so that all are
    undecided: Callable[[Results], set[str] | None] | None = None
    # measure what is missing of these alone, on one node of many; each is asked for when the one before it is done
    shards: Iterable[Shard] | None = None
    adds_sessions: bool = True  # whether a folder whose last session is whole gets another one

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
            results = writer.results
            check_same_networks(results, site.plans)
            results.check_same_models(self.configuration.grid.models)
            if results.ends_whole and not self.adds_sessions:
                writer.start(site.run_row(self.command_line))  # raises where the folder holds something else
                return results
            for number in count(len(results.session_ends) + 1):
                begun, left, whole = site.clock.now(), self._missing(results), results.ends_whole
                self._measure_session(site, writer, number, left)
                if self.shards is not None or not results.ends_whole:
                    return results
                if not left and not whole:
                    continue  # it was whole, and nothing said so yet
                if number >= self.configuration.measure.sessions:
                    return results
                self._wait(site, begun, number)

    def _wait(self, site: Site, begun: float, number: int) -> None:
        """Wait until the next session may begin."""
        measure, now = self.configuration.measure, site.clock.now()
        wait_s = max(begun + measure.every_s - now, SESSION_PAUSE_S + PROCESS_S)
        say(f"session {number} of {measure.sessions} is measured; the next one begins in {format_seconds(wait_s)}")
        with continued_by(self.command_line, lambda: f"{number} of {plural(measure.sessions, 'session')} are kept"):
            site.clock.sleep(wait_s)

    def _measure_session(self, site: Site, writer: ResultsWriter, number: int, missing: Sequence[Shard]) -> None:
        """Measure what is missing of a session; its last row says that it is whole, unless another attempt may mend
        something."""
        results, measure = writer.results, self.configuration.measure
        run, before, partial_row = site.run_row(self.command_line), results.of(RunRow), results.partial
        text = self._said(results, number, missing)
        continued = writer.start(run, same_environment=measure.nodes == "one")
        check_nodes([(row.node, row.environment) for row in (*before, run)], measure.nodes)
        if partial_row:
            say(
                "the last line of samples.jsonl was half-written and has been moved aside; its sample is measured again"
            )
        if continued and self.shards is None and missing:
            say(text)
        if not any(row.node.is_same(site.node) for row in results.of(MachineRow)):
            say("measuring the machine's limits")
            writer.append(site.machine_row())
        known = {row.plan_id for row in results.of(PlanRow)}
        for plan_id, row in site.plans.items():
            if plan_id not in known:
                writer.append(row)
        budget_s = measure.budget_s if self.undecided else 0.0
        schedule = Schedule("measuring", writer.append, budget_s=budget_s or math.inf, now=site.clock.now)
        measured = partial(self._measure, schedule, site, Answers(results.rows, measure.rtol), set())
        total = len(missing) if self.shards is None and schedule.budget_s == math.inf else 0
        where = f"measurements are kept in {self.out_dir}"
        with continued_by(self.command_line, lambda: f"{len(results.finished())} {where}"):
            schedule.run(self._jobs(schedule, results, site.plans, measured), total)
        may_mend = any(row.reason not in LASTING_FAILURES for row in standing_failures(results))
        if self.shards is None and not may_mend and (budget_s or not self._missing(results)):
            writer.append(self._end(site, results))

    def _said(self, results: Results, number: int, missing: Sequence[Shard]) -> str:
        """Say whether a start goes on with an interrupted session or adds one."""
        if not results.ends_whole:
            count = sum(len(shard.samples) + len(shard.profiles) for shard in missing)
            measure = self.configuration.measure
            total = len(self.configuration.points()) * (measure.repeats + measure.profiles)
            left = f"{count} of {total} measurements are missing"
            return f"continuing session {number} of {self.out_dir}, which was interrupted: {left}"
        last_s = max((row.started for row in results.of(SampleRow)), default=0.0)
        soon = time.time() - last_s < SESSION_PAUSE_S
        return f"adding session {number} to {self.out_dir}" + (
            f"; it follows within {format_seconds(SESSION_PAUSE_S)} and counts as one with the session before" * soon
        )

    def _end(self, site: Site, results: Results) -> SessionRow:
        measured = (row.repetition + 1 for row in results.rows if isinstance(row, OfShard))
        return SessionRow(node=site.node, generations=max(measured, default=1))

    def _missing(self, results: Results) -> list[Shard]:
        """Return what is missing of this session; without a budget, which ends it anyway, of a plan one more generation
        for each that is left out."""
        first, measure = results.first_generation, self.configuration.measure
        moved = () if self.undecided and measure.budget_s else _moved(results)
        more = Counter((plan_id, hogs) for generation, plan_id, hogs in moved if generation >= first)
        longer = self.configuration.with_measure(repeats=measure.repeats + max(more.values(), default=0))
        count = first + measure.repeats
        shards = [s for s in longer.shards(first) if s.repetition < count + more[s.plan_id, s.interference]]
        return missing_shards(shards, results)

    def _generations(self, results: Results) -> Iterator[tuple[int, list[Shard]]]:
        """Yield the missing generations, each once, also those that others make necessary as they are left out."""
        last = -1
        while missing := [shard for shard in self._missing(results) if shard.repetition > last]:
            for last, group in groupby(missing, key=lambda shard: shard.repetition):
                yield last, list(group)

    def _jobs(
        self,
        schedule: Schedule,
        results: Results,
        plans: Mapping[str, PlanRow],
        measure: Callable[[Shard], Iterable[AnyRow]],
    ) -> Iterator[Job]:
        """Yield what is missing, with a budget until all is decided or no plan has room for another generation.

        The first repetition is measured whole. Later ones leave out the plans whose last generation took longest, so
        that a grid of small and large networks repeats the small ones, where times scatter most.
        """
        limited = schedule.budget_s < math.inf
        of = "" if limited else f" of {self.configuration.measure.repeats}"
        first, names = results.first_generation, plan_names(plans)
        if self.shards is not None:
            for given in self.shards:
                for shard in missing_shards([given], results):
                    yield _job(f"generation {shard.repetition + 1}{of}", names, shard, measure)
            return
        if limited:
            expected = (generation_s(self.configuration, plans, later)[0] for later in (False, True))
            self._say_room(schedule, *expected, "is expected to take")
        for repetition, group in self._generations(results):
            if repetition == first + 1 and limited:
                rows = [row for row in results.of(SampleRow) if row.repetition == first]
                far_behind_s = sum(_turns_s(row) for row in rows if row.model.is_far_behind(row.threads))
                self._say_room(schedule, schedule.spent_s, schedule.spent_s - far_behind_s, "took")
            shards, wanted = [self._with_owed_profiles(shard, results) for shard in group], None
            if repetition > first and limited:
                wanted = self.undecided(results)
                if wanted is not None and not wanted:
                    spent = format_seconds(schedule.spent_s)
                    schedule.say(
                        f"every comparison is decided after {plural(repetition - first, 'generation')} ({spent})"
                    )
                    return
                if wanted is not None:
                    shards = missing_shards(shards, results, wanted.__contains__)
                    if not shards:
                        continue  # An earlier run has measured this generation.
                shards = self._within_budget(schedule, shards, results)
                if not shards:
                    schedule.say(
                        f"the budget of {format_seconds(schedule.budget_s)} is spent after "
                        f"{plural(repetition - first, 'generation')}; the same folder again, from six minutes on, adds "
                        f"a session"
                    )
                    return
            yield from (_job(f"generation {repetition - first + 1}{of}", names, shard, measure) for shard in shards)

    def _say_room(self, schedule: Schedule, first_s: float, later_s: float, verb: str) -> None:
        """Say how many generations fit into a budget where a verdict needs more; contestants that are far behind take
        part in the first one alone."""
        needed_s = first_s + (MIN_GENERATIONS - 1) * later_s
        if needed_s > schedule.budget_s:
            held = 1 + int(max(schedule.budget_s - first_s, 0.0) / later_s) if later_s else 1
            later = f", later ones {format_seconds(later_s)}" if later_s < 0.9 * first_s else ""
            schedule.say(
                f"a generation {verb} {format_seconds(first_s)}{later}, a verdict needs {MIN_GENERATIONS} of them, the "
                f"budget of {format_seconds(schedule.budget_s)} holds {held}; --budget {math.ceil(1.1 * needed_s)}s is "
                f"enough (in a file: budget_s)"
            )

    def _with_owed_profiles(self, shard: Shard, results: Results) -> Shard:
        """Return a shard of a later generation with the profiles that are owed: generations that were logged are left
        out, since the host had moved the CPUs, or logged runs took another time than timed ones."""
        wanted, first = self.configuration.measure.profiles, results.first_generation
        if not wanted or shard.repetition < first + wanted:
            return shard
        profiles = [
            row for row in results.rows if isinstance(row, ProfileRow | GpuProfileRow) and row.repetition >= first
        ]
        moved = _moved(results)
        times: dict[str, list[float]] = {}
        for sample in results.of(SampleRow):
            if sample.repetition >= first and sample.step_time_s > 0:
                times.setdefault(sample.config_id, []).append(sample.step_time_s)
        typical = {config_id: median(some) for config_id, some in times.items()}
        kept = Counter(
            row.config_id
            for row in profiles
            if (row.repetition, row.plan_id, row.interference) not in moved
            and (isinstance(row, GpuProfileRow) or is_alike(row, typical.get(row.config_id, math.nan)))
        )
        logged = {row.config_id for row in profiles}
        owed = {c: at for c, at in shard.samples.items() if c in logged and kept[c] < wanted}
        return Shard(**shard.identity, samples=shard.samples, profiles={**owed, **shard.profiles})

    def _within_budget(self, schedule: Schedule, shards: Sequence[Shard], results: Results) -> list[Shard]:
        """Return the shards of a generation that fit into the budget, the quicker plans first."""
        costs: dict[str, float] = {}
        samples = results.of(SampleRow)
        for shard in shards:
            profiled, alone = (schedule.took.get(_cost(shard, profiled), 0.0) for profiled in (True, False))
            took = profiled if shard.profiles else alone or profiled
            group = shard.plan_id, shard.interference
            rows = [row for row in samples if (row.plan_id, row.interference) == group]
            last = max((row.repetition for row in rows), default=0)
            gone = (_turns_s(r) for r in rows if r.repetition == last and r.config_id not in shard.samples)
            costs[shard.plan_id] = costs.get(shard.plan_id, 0.0) + max(took - sum(gone), 0.0)
        room = schedule.with_room(costs)
        return [shard for shard in shards if shard.plan_id in room]

    def _measure(
        self, schedule: Schedule, site: Site, answers: Answers, failed: set[str], shard: Shard
    ) -> Iterator[AnyRow]:
        """Measure a shard without configurations that failed before, and report failures."""
        points = {point.config_id: point for point in self.configuration.points()}
        for row in site.measure(shard.with_only(lambda config_id: config_id not in failed), answers, schedule.ends):
            if isinstance(row, FailureRow):
                failed.add(row.config_id)
                point, reason = points[row.config_id], f"{row.reason}: {row.message.splitlines()[0]}"
                problem = "" if point.model.model.is_call else f"{point.network}, batch {point.options.batch}, "
                schedule.say(f"{problem}{point}: {reason}")
            yield row


def plan_names(plans: Mapping[str, PlanRow]) -> dict[str, str]:
    """Return the readable name of each plan of a sweep, by its id."""
    records = with_short_names([record_of(plan) for plan in plans.values()])
    axes = swept_fields(records)
    return {plan_id: problem_text(record, axes) for plan_id, record in zip(plans, records, strict=True)}


def _moved(results: Results) -> set[tuple[int, str, int]]:
    """Return generation, plan and competing processes of what is left out since CPUs lay elsewhere."""
    return {(generation, *group[:2]) for generation, group in moved_groups(groups_of((), results.of(RoundsRow)))}


def _turns_s(row: SampleRow) -> float:
    """Return for how many seconds a contestant had the CPUs to itself."""
    return sum(row.warmup_times_s) + row.timed_wall_s


def _job(stage: str, names: Mapping[str, str], shard: Shard, measure: Callable[[Shard], Iterable[AnyRow]]) -> Job:
    named = (("configuration", shard.samples), ("profile", shard.profiles))
    text = " and ".join(plural(len(some), name) for name, some in named if some)
    return Job(stage, f"{names[shard.plan_id]}: {text}", partial(measure, shard), _cost(shard, bool(shard.profiles)))


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
