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
import os
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from ...cython_src.errors import UsageError
from ...cython_src.records import about
from ..machine.environment import described_environment
from ..machine.placement import Placement
from ..machine.topology import available_cpus
from ..results.files import write_table
from ..results.folder import LASTING_FAILURES, ResultsWriter, canonical_json, new_run, read_results
from ..results.rows import AnyRow, DurationsRow, MetgFailureRow, MetgRow, OfGraph, answered
from ..sampling.child import TIME_LIMIT_S, clean_environment, measure_in_process, sample_environment
from ..sampling.generation import contestant_of, measure_open_ended
from ..sampling.schedule import Job, Schedule
from ..subjects.models import DEFAULT_MODELS, MODELS, ModelSpec, built_models, counts_for, parse_models
from ..tables.numbers import plural
from ..tables.progress import say
from .graphs import graph_name
from .table import as_frame, summarise

AnyMetg = MetgRow | MetgFailureRow

MEASURE_COMMAND = (sys.executable, "-P", "-m", "forktask.experiments.metg.measure")


class MetgSettings(Placement, frozen=True):
    """Settings of the measurement of METG."""

    repeats: Annotated[int, about("processes for each model", least=1, below=100_001)] = 5
    seed: Annotated[int, about("of the order of measurements", least=0)] = 1
    quick: Annotated[bool, about("one short repeat: a check that it works")] = False


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
    cores = len(available_cpus())
    for count in threads:
        settings.order(count)  # raises
    if settings.quick:
        settings = settings.with_changes(repeats=1)
    requested = []
    for repetition in range(settings.repeats):
        points = itertools.product(graphs, specs)
        points = [(repetition, m, n, graph) for graph, m in points for n in counts_for(m, threads)]
        random.Random(f"{settings.seed} {repetition}").shuffle(points)
        requested += points
    rows: list[AnyMetg] = []
    with ResultsWriter(folder) as writer:
        _start(writer, graphs, specs, threads, settings, cores, again)

        def keep(row: AnyMetg | DurationsRow) -> None:
            if isinstance(row, AnyMetg):
                rows.append(row)
            writer.append(row)

        schedule, done = Schedule("metg", keep), writer.results.rows
        rows += [row for row in done if isinstance(row, MetgRow) or getattr(row, "reason", "") in LASTING_FAILURES]
        try:
            schedule.run(_jobs(requested, settings, cores, done, schedule))
        except KeyboardInterrupt:
            kept = len(writer.results.of(MetgRow))
            schedule.say(f"interrupted; {kept} measurements are kept in {folder}. To continue: {again}")
            raise
    from .figure import draw_all

    table = summarise(rows)
    write_table(folder / "metg.csv", as_frame(table))
    for path in draw_all(table, folder):
        say(f"wrote {path}")
    return table


def table_of(folder: Path) -> dict[str, Any]:
    """Return the table of what a folder holds; see `summarise`."""
    return summarise(read_results(folder).of(OfGraph))


def _start(writer: ResultsWriter, graphs, models, threads, settings: MetgSettings, cores: int, command: str) -> None:
    """Write the run row; continue the folder's run if it was measured in the same way."""
    environment = described_environment(clean_environment(os.environ, sample_environment(1, 0, cores)))
    shared = {k: v for k, v in graphs[0].items() if k != "pattern"}
    config = {"patterns": [graph_name(g) for g in graphs], **shared, "models": list(models), "threads": list(threads)}
    writer.results.check_same_models(models)
    continued = writer.start(new_run("metg", {**config, **settings.as_dict()}, command, **environment))
    if continued:
        say(f"continuing {writer.out_dir}: {len(writer.results.of(OfGraph))} measurements are there")


def job_key(model: ModelSpec, threads: int, graph: Mapping[str, Any], repetition: int) -> str:
    """Return a key that tells one measurement from another."""
    return canonical_json([model, threads, dict(graph), repetition])


def _jobs(
    requested: Sequence[tuple[int, str, int, Mapping[str, Any]]],
    settings: MetgSettings,
    cores: int,
    done: Sequence[AnyRow],
    schedule: Schedule,
) -> Iterator[Job]:
    """Yield what is missing: rows in the folder are not measured again, except for failures that may be mended."""
    known = {
        job_key(row.model, row.threads, row.graph, row.repetition)
        for row in done
        if isinstance(row, MetgRow) or (isinstance(row, MetgFailureRow) and row.reason in LASTING_FAILURES)
    }
    durations = [row.durations_s for row in done if isinstance(row, DurationsRow)]
    if "network" in requested[0][3] and not durations:
        durations = [_measure_durations(requested[0][3], available_cpus()[:1], cores)]
        yield Job("durations", graph_name(requested[0][3]), lambda: [DurationsRow(durations_s=durations[0])])
    together: dict[tuple[int, int, str], list[dict[str, Any]]] = {}
    for number, (repetition, model, threads, graph) in enumerate(requested):
        if job_key(model, threads, graph, repetition) not in known:
            conditions = {
                "model": model,
                "threads": threads,
                "graph": graph,
                "repetition": repetition,
                "position": number,
            }
            together.setdefault((repetition, threads, canonical_json(dict(graph))), []).append(conditions)
    for (repetition, threads, _), some in together.items():
        text = f"{graph_name(some[0]['graph'])}, {plural(len(some), 'model')} on {plural(threads, 'thread')}"
        measure = partial(_measure_together, some, settings, durations, schedule)
        yield Job(f"generation {repetition + 1}", text, measure)


def _measure_together(
    some: Sequence[Mapping[str, Any]], settings: MetgSettings, durations: list, schedule: Schedule
) -> Iterator[AnyMetg]:
    """Measure a graph under several interleaved models, each in a process of its own."""
    repetition, threads, graph = (some[0][name] for name in ("repetition", "threads", "graph"))
    shared = {
        "kind": "metg",
        "cpus": settings.cpus(threads),
        "memory_policy": settings.memory_policy,
        "graph": graph,
        "runs": 2 if settings.quick else 5,
        "target_s": 0.001 if settings.quick else 0.01,
        "budget_s": 2.0 if settings.quick else 20.0,
        **({"durations_s": durations[0]} if durations else {}),
    }
    contestants = [
        contestant_of(c["model"], c["model"], threads, limit_s=TIME_LIMIT_S, command=MEASURE_COMMAND, **shared)
        for c in some
    ]
    answers, seen = measure_open_ended(contestants, f"{settings.seed} {repetition}")
    for conditions, contestant in zip(some, contestants, strict=True):
        result, model = answers[contestant.name], contestant.name
        about = {"quick": settings.quick, "variables": contestant.variables}
        about |= {"cpus": contestant.job["cpus"] or [], "origin": dict(parse_models([model])[0].model.origin)}
        about |= {**seen, **conditions}
        row = answered(MetgRow, MetgFailureRow, result, about)
        if isinstance(row, MetgFailureRow):
            text = f"{row.reason}: {row.message.splitlines()[0]}"
            schedule.say(f"{graph_name(graph)}, {model}, {plural(threads, 'thread')}: {text}")
        yield row


def _measure_durations(graph: Mapping[str, Any], cpus: list[int], cores: int) -> list[float]:
    """Measure the times of a network's blocks once, so that all models get the same graph."""
    job = {"kind": "durations", "graph": graph, "cpus": cpus}
    row = measure_in_process(job, sample_environment(1, 0, cores), TIME_LIMIT_S, MEASURE_COMMAND)
    if "failure" in row:
        raise UsageError(
            f"the blocks of {graph['network']} must run to be timed, got: {row['message'].splitlines()[0]}"
        )
    return row["durations_s"]
