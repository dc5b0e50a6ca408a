"""The client of a cluster: it says which shards are missing, has an engine measure them, and keeps what comes back.

Shards are given out in rounds. Without a budget there is one, of all that is missing; with one, each round is `ROUND`
repetitions of what the estimator has not decided within 1 %, until all is or the nodes have spent the budget.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from ..results.folder import CHANGEABLE, Results, ResultsWriter, check_same, new_run, read_results
from ..results.rows import AnyRow, FailureRow, RoundsRow, RunRow
from ..sweep.configuration import Configuration, Shard
from ..sweep.expected import plan_row
from ..sweep.shards import missing_shards
from ..tables.progress import ProgressBar, format_seconds, say
from .merge import Joined

ROUND = 4  # repetitions: fewer pay the queue more often, more measure what is decided
MOST_TIMES = 3  # that a shard is given out; one that was lost as often becomes rows that say so

Keep = Callable[[Iterable[AnyRow]], object]
Show = Callable[[int, int, int], None]
Undecided = Callable[[Results], set[str] | None]


class Engine(Protocol):
    """Gives shards to the nodes of a cluster."""

    def fetch(self, keep: Keep) -> None:
        """Keep the rows of what an earlier client has given out and has been measured since."""

    def measure(self, shards: Sequence[Shard], keep: Keep, show: Show) -> bool:
        """Have shards measured.

        Parameters
        ----------
        keep : callable (rows)
            Called with the rows of a node, from its "run" row on, or of a shard.
        show : callable (running, queued, lost)
            Called now and then with numbers of shards.

        Returns
        -------
        bool
            False: they were given out, and nobody waits for them.
        """


def measure_on(engine: Engine, configuration: Configuration, out_dir: str, *, undecided: Undecided) -> Results | None:
    """Measure a sweep on a cluster; every row is in the folder before the next is asked for, but those of a generation
    that broke off: it is given out again, and kept at the end where it never came whole.

    Parameters
    ----------
    undecided : callable (results) -> set of config ids or None
        As for a sweep on this machine.

    Returns
    -------
    Results or None
        None: shards were given out, and nobody waits for them.

    Raises
    ------
    UsageError
        A plan that cannot be lowered, a folder that cannot take the results or that another client writes to, and
        what the engine refuses.
    """
    for plan_id, plan in {point.plan_id: point.plan for point in configuration.points()}.items():
        plan_row(plan_id, plan)
    with ResultsWriter(out_dir) as writer:
        for run in writer.results.of(RunRow)[-1:]:
            check_configuration(run.config, configuration, out_dir)
        joined, failed = Joined(writer), set()

        def keep(rows: Iterable[AnyRow]) -> None:
            rows = list(rows)
            joined.add(rows)
            failed.update((row.config_id, row.repetition) for row in rows if isinstance(row, FailureRow))

        try:
            engine.fetch(keep)
            failed.clear()  # by an earlier client: what may be mended is tried again
            while shards := next_shards(configuration, writer.results, undecided, failed):
                with ProgressBar(len(shards), "measuring") as bar:

                    def show(running: int, queued: int, lost: int, shards=shards, bar=bar) -> None:
                        done = len(shards) - len(missing_shards(shards, writer.results))
                        text = f"{done} of {len(shards)} shards done, {running} running, {queued} queued, {lost} lost"
                        bar.show(done, text)

                    if not engine.measure(shards, keep, show):
                        return None
        finally:
            joined.finish()  # of a generation that broke off no whole one came
    return read_results(out_dir)


def check_configuration(config: Mapping[str, Any], configuration: Configuration, folder: Path | str) -> None:
    """Raise `UsageError` unless the configuration of a folder is this one."""
    before, now = (
        new_run("samples", each, "", environment={}, environment_id="-") for each in (config, configuration.as_dict())
    )
    check_same(before, now, folder, CHANGEABLE, same_environment=False)


def next_shards(
    configuration: Configuration, results: Results, undecided: Undecided, failed: set[tuple[str, int]]
) -> list[Shard]:
    """Return the shards of the next round: none when all is measured or decided, or the budget is spent. `failed`:
    what is not given out again, (config_id, repetition)."""
    shards, budget_s = configuration.shards(), configuration.measure.budget_s

    def missing(last: int, wanted: set[str] | None = None) -> list[Shard]:
        early = (shard for shard in shards if shard.repetition < last)
        left = (b.with_only(lambda c, b=b: (c, b.repetition) not in failed) for b in early)
        return missing_shards(list(left), results, lambda config_id: wanted is None or config_id in wanted)

    if not budget_s:
        return missing(configuration.measure.repeats)
    rounds = results.of(RoundsRow)
    measured = max((row.repetition + 1 for row in rounds), default=0)  # generations
    if (first := missing(ROUND)) and measured <= ROUND:
        return first
    wanted, spent_s = undecided(results), sum(sum(row.wall_s) for row in rounds)
    if wanted is not None and not wanted:
        text = (
            f"every comparison is decided after {measured} generations ({format_seconds(spent_s)} of the nodes' time)"
        )
        say(text)
        return []
    if spent_s >= budget_s:
        text = f"the nodes have spent the budget of {format_seconds(budget_s)} after {measured} generations"
        say(f"{text}: give a larger budget and the same folder to go on")
        return []
    return missing(measured + ROUND, wanted)


def lost_rows(shard: Shard, configuration: Configuration, run: RunRow, message: str) -> list[FailureRow]:
    """Return the rows of a shard that was given out `MOST_TIMES` times and never came back. `run`: of a node that did
    come back; `message`: what is known of it."""
    points = {point.config_id: point for point in configuration.points()}
    kinds = {"sample": shard.samples, "profile": shard.profiles}
    return [
        FailureRow(
            **(shard.identity | points[config_id].identity),
            check="left out",
            position=position,
            environment_id=run.environment_id,
            node=run.node,
            cpus=None,
            variables={},
            measuring=kind,
            reason="crash",
            message=message,
            sample=None,
        )
        for kind, some in kinds.items()
        for config_id, position in some.items()
    ]
