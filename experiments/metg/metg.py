"""Cost of a runtime per task on Task Bench graphs: measuring what a folder does not hold yet.

METG(50 %) is the minimum effective task granularity: the shortest task, in wall time x threads / tasks, at which half
of the rate is still reached that the kernel has alone. One denominator for all models: the kernel's best time for a
unit of work without any runtime, over all processes of the run, times the threads.

The time of a graph in a process is that of its fastest run, which other programs disturb least. Over processes, tables
have the median and extremes.

References
----------
Slaughter et al., "Task Bench: A Parameterized Benchmark for Evaluating Parallel Runtime Performance" (SC 2020).
"""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from ...cython_src.errors import UsageError
from ...cython_src.lowering.lower import lower
from ...cython_src.records import about
from ..bounds.bounds import durations_by_loop
from ..machine.placement import Placement
from ..results.files import write_table
from ..results.folder import LASTING_FAILURES, Results, ResultsWriter, new_run, read_results
from ..results.rows import DurationsRow, MetgFailureRow, MetgRow, OfGraph, answered
from ..sampling.child import TIME_LIMIT_S, measure_in_process, run_environment
from ..sampling.generation import contestant_of, measure_open_ended
from ..sampling.schedule import Job, Schedule
from ..subjects.models import DEFAULT_MODELS, MODELS, SERIAL, ModelSpec, built_models, counts_for, parse_models
from ..tables.numbers import plural
from ..tables.progress import continued_by, say
from .graphs import graph_name
from .table import as_frame, summarise, take_of

MEASURE_COMMAND = (sys.executable, "-P", "-m", "forktask.experiments.metg.measure")
DURATIONS_S = 0.3  # of the logged run that gives the durations of a network's blocks


class MetgSettings(Placement, frozen=True):
    """Settings of the measurement of METG."""

    repeats: Annotated[int, about("processes for each model", least=1, below=100_001)] = 5
    seed: Annotated[int, about("of the order of measurements", least=0)] = 1
    quick: Annotated[bool, about("one short repeat: a check that it works")] = False


class Point(NamedTuple):
    """What a process measures, as its row says it."""

    repetition: int
    graph: Mapping[str, Any]
    model: ModelSpec
    threads: int
    position: int


def default_models() -> tuple[str, ...]:
    """Return the models of the comparison that can run Task Bench graphs, and the built outside references."""
    references = [name for name in built_models() if MODELS[name].is_reference]
    return (*(m for m in DEFAULT_MODELS if m not in references), *(m for m in references if MODELS[m].runs_tasks))


def measure_metg(
    graphs: Sequence[Mapping[str, Any]],
    models: Sequence[ModelSpec | str],
    threads: Sequence[int],
    settings: MetgSettings,
    folder: Path,
    again: str,
) -> dict[str, Any]:
    """Measure all models on all graphs, and return the table of `summarise`.

    Parameters
    ----------
    graphs : sequence of mapping
        Results of `graphs.requested_graphs`.
    threads : sequence of int
        A model of one thread takes part once, on one.
    folder : Path
        For samples, table and figures; samples in it are not measured again.
    again : str
        The command that goes on there.

    Raises
    ------
    UsageError
        Too many threads, or a folder with other files.
    """
    specs = parse_models(models)
    for count in threads:
        settings.order(count)  # raises
    if settings.quick:
        settings = settings.with_changes(repeats=1)
    points: list[Point] = []
    for repetition in range(settings.repeats):
        own = [(graph, m, n) for graph, m in itertools.product(graphs, specs) for n in counts_for(m, threads)]
        random.Random(f"{settings.seed} {repetition}").shuffle(own)
        points += [Point(repetition, *each, position) for position, each in enumerate(own, len(points))]
    shared = {name: value for name, value in graphs[0].items() if name != "pattern"}
    config = {"patterns": [*map(graph_name, graphs)], **shared, "models": list(specs), "threads": list(threads)}
    with ResultsWriter(folder) as writer:
        results = writer.results
        results.check_same_models(specs)
        if writer.start(new_run("metg", {**config, **settings.as_dict()}, again, **run_environment())):
            say(f"continuing {folder}: {len(results.of(OfGraph))} measurements are there")
        schedule = Schedule("metg", writer.append)
        where = f"measurements are kept in {folder}"
        with continued_by(again, lambda: f"{len(results.of(MetgRow))} {where}", schedule.say):
            schedule.run(_jobs(points, settings, results, schedule))
        table = summarise(results.of(OfGraph))
    from .figure import draw_all

    write_table(folder / "metg.csv", as_frame(table))
    for path in draw_all(table, folder):
        say(f"wrote {path}")
    return table


def table_of(folder: Path) -> dict[str, Any]:
    """Return the table of what a folder holds; see `summarise`."""
    return summarise(read_results(folder).of(OfGraph))


def _jobs(points: Sequence[Point], settings: MetgSettings, results: Results, schedule: Schedule) -> Iterator[Job]:
    """Yield what is missing: rows in the folder are not measured again, except for failures that may be mended."""
    lasting = [row for row in results.of(MetgFailureRow) if row.reason in LASTING_FAILURES]
    known = {(row.model, take_of(row)) for row in (*results.of(MetgRow), *lasting)}
    graph = points[0].graph
    if "network" in graph and not results.of(DurationsRow):
        yield Job("durations", graph_name(graph), partial(_measure_durations, graph))
    together: dict[tuple[int, str], list[Point]] = {}
    for point in points:
        if (point.model, take_of(point)) not in known:
            together.setdefault(take_of(point), []).append(point)
    for some in together.values():
        count, threads = plural(len(some), "model"), plural(some[0].threads, "thread")
        measure = partial(_measure_together, some, settings, results.of(DurationsRow), schedule)
        stage = f"generation {some[0].repetition + 1}"
        yield Job(stage, f"{graph_name(some[0].graph)}, {count} on {threads}", measure)


def _measure_together(
    some: Sequence[Point], settings: MetgSettings, durations: Sequence[DurationsRow], schedule: Schedule
) -> Iterator[MetgRow | MetgFailureRow]:
    """Measure a graph under several interleaved models, each in a process of its own."""
    repetition, graph, threads = some[0].repetition, some[0].graph, some[0].threads
    shared = {
        "cpus": settings.cpus(threads),
        "memory_policy": settings.memory_policy,
        "graph": graph,
        "runs": 2 if settings.quick else 5,
        "target_s": 0.001 if settings.quick else 0.01,
        "budget_s": 2.0 if settings.quick else 20.0,
        "durations_s": durations[0].durations_s if durations else None,
    }
    contestants = [
        contestant_of(str(one.model), one.model, threads, limit_s=TIME_LIMIT_S, command=MEASURE_COMMAND, **shared)
        for one in some
    ]
    answers, seen = measure_open_ended(contestants, f"{settings.seed} {repetition}")
    for one, contestant in zip(some, contestants, strict=True):
        about = {
            **one._asdict(),
            **seen,
            "quick": settings.quick,
            "variables": contestant.variables,
            "cpus": contestant.job["cpus"] or [],
            "origin": dict(one.model.model.origin),
        }
        row = answered(MetgRow, MetgFailureRow, answers[contestant.name], about)
        if isinstance(row, MetgFailureRow):
            text = f"{row.reason}: {row.message.splitlines()[0]}"
            schedule.say(f"{graph_name(graph)}, {one.model}, {plural(threads, 'thread')}: {text}")
        yield row


def _measure_durations(graph: Mapping[str, Any]) -> Iterator[DurationsRow]:
    """Measure the times of a network's blocks once, run serially, so that all models get the same graph."""
    plan = {name: value for name, value in graph.items() if name != "kernel"}
    job = {"kind": "profile", "plan": plan, "target_s": DURATIONS_S}
    serial = contestant_of("durations", SERIAL, 1, limit_s=TIME_LIMIT_S, **job)
    row = measure_in_process(serial.job, serial.variables, serial.limit_s)
    if "failure" in row:
        raise UsageError(
            f"the blocks of {graph['network']} must run to be timed, got: {row['message'].splitlines()[0]}"
        )
    by_loop = durations_by_loop(lower(**plan).loops, row["block_time_s"])
    yield DurationsRow(durations_s=[max(seconds, 1e-9) for blocks in by_loop for seconds in blocks])
