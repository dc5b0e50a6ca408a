"""Cost of a runtime per task on Task Bench graphs: measuring what a folder does not hold yet.

METG(50 %) is the minimum effective task granularity: the shortest task, in wall time x threads / tasks, at which half
of the rate is still reached that the kernel has alone. One denominator for all models: the kernel's best time for a
unit of work without any runtime, over all processes of the run, times the threads.

The time of a graph in a process is that of its fastest run, which other programs disturb least. With hogs
(--interference), whose effect is the question, it is the median. Over processes, tables have the median and extremes.

References
----------
Slaughter et al., "Task Bench: A Parameterized Benchmark for Evaluating Parallel Runtime Performance" (SC 2020).
"""

from __future__ import annotations

import os
import random
import shlex
import sys
import uuid
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from ...cython_src.errors import UsageError
from ...cython_src.records import Record, about
from ..machine.environment import collect, environment_id
from ..machine.topology import available_cpus, cpu_order
from ..results.files import write_atomically
from ..results.folder import LASTING_FAILURES, ResultsWriter, canonical_json
from ..results.rows import DurationsRow, MetgFailureRow, MetgRow, OfGraph, RunRow, make_row
from ..sampling.child import TIME_LIMIT_S, clean_environment, run_sample, sample_environment
from ..sampling.hogs import MOST_HOGS, hogs_running
from ..sampling.models import (
    DEFAULT_MODELS,
    MODELS,
    built_models,
    check_threads,
    counts_for,
    parse_model,
    parse_models,
    process_environment,
)
from ..sampling.progress import ProgressBar
from .graphs import graph_name
from .table import as_csv, summarise

AnyMetg = MetgRow | MetgFailureRow

MEASURE_COMMAND = (sys.executable, "-P", "-m", "forktask.experiments.metg.measure")


class MetgSettings(Record, frozen=True):
    """Settings of the measurement of METG."""

    repeats: Annotated[int, about("processes for each model", least=1, below=100_001)] = 5
    interference: Annotated[int, about("processes that spin on the same CPUs", least=0, below=MOST_HOGS + 1)] = 0
    seed: Annotated[int, about("of the order of measurements", least=0)] = 1
    quick: Annotated[bool, about("one short repeat: a check that it works")] = False
    oversubscribe: Annotated[bool, about("allow more threads than cores")] = False


def default_models() -> tuple[str, ...]:
    """Return the models of the comparison that can run Task Bench graphs, and the built outside references."""
    references = [name for name in built_models() if MODELS[name].is_reference]
    return (*(m for m in DEFAULT_MODELS if m not in references), *(m for m in references if MODELS[m].runs_tasks))


def measure_metg(
    graphs: Sequence[Mapping[str, Any]],
    models: Sequence[str],
    threads: Sequence[int],
    settings: MetgSettings,
    out: str | None = None,
    figure_format: str = "pdf",
) -> dict[str, Any]:
    """Measure all models on all graphs, and return the table of `summarise`, with "interrupted" beside its entries.

    Ctrl-C ends a measurement without a folder early, with the table of what there is; with a folder it is raised.

    Parameters
    ----------
    graphs : sequence of mapping
        Results of `graphs.task_bench_graphs` or `graphs.network_graph`.
    models : sequence of str
    threads : sequence of int
        A model of one thread takes part once, on one.
    settings : MetgSettings
    out : str, optional
        Folder for samples, table and figures; samples in it are not measured again.
    figure_format : {"pdf", "svg", "png"}

    Raises
    ------
    UsageError
        Too many threads, or a folder with other files.
    """
    specs = [str(spec) for spec in parse_models(tuple(models))]
    cores = len(os.sched_getaffinity(0))
    for count in threads:
        check_threads(count, cores, settings.oversubscribe)
    if settings.quick:
        settings = settings.with_changes(repeats=1)
    jobs = []
    for repetition in range(settings.repeats):
        block = [
            (repetition, model, count, graph)
            for graph in graphs
            for model in specs
            for count in counts_for(parse_model(model), threads)
        ]
        random.Random(f"{settings.seed} {repetition}").shuffle(block)
        jobs += block
    folder, interrupted = None if out is None else Path(out), False
    rows: dict[str, AnyMetg] = {}
    with nullcontext() if folder is None else ResultsWriter(folder) as writer:
        if writer is not None:
            _start(writer, graphs, specs, threads, settings, cores)
        try:
            _measure_all(jobs, settings, cores, writer, rows)
        except KeyboardInterrupt:
            if writer is None:
                interrupted = True
            else:
                kept = len(writer.results.of(MetgRow))
                print(
                    f"forktask: interrupted; {kept} measurements are kept in {folder}, the same command goes on",
                    file=sys.stderr,
                )
                raise
    table = {**summarise(list(rows.values())), "interrupted": interrupted}
    if folder is not None:
        from .figure import draw_all

        write_atomically(folder / "metg.csv", as_csv(table))
        for path in draw_all(table, folder, figure_format):
            print(f"forktask: wrote {path}", file=sys.stderr)
    return table


def _start(writer: ResultsWriter, graphs, models, threads, settings: MetgSettings, cores: int) -> None:
    """Write the run row; continue the folder's run if it was measured in the same way."""
    environment = collect(variables=clean_environment(os.environ, sample_environment(1, 0, cores)))
    shared = {k: v for k, v in graphs[0].items() if k != "pattern"}
    config = {"patterns": [graph_name(g) for g in graphs], **shared, "models": list(models), "threads": list(threads)}
    continued = writer.start(
        RunRow(
            holds="metg",
            run_id=uuid.uuid4().hex,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            command=shlex.join(["forktask", *sys.argv[1:]]),
            config={**config, **settings.as_dict()},
            how_to_read="",
            environment=environment,
            environment_id=environment_id(environment),
        )
    )
    if continued:
        print(
            f"forktask: going on with {writer.out_dir}: {len(writer.results.of(OfGraph))} measurements are there",
            file=sys.stderr,
        )


def job_key(model: str, threads: int, graph: Mapping[str, Any], repetition: int) -> str:
    """Return a key that tells one measurement from another."""
    return canonical_json([model, threads, dict(graph), repetition])


def _measure_all(
    jobs, settings: MetgSettings, cores: int, writer: ResultsWriter | None, rows: dict[str, AnyMetg]
) -> None:
    """Measure the jobs one after the other, each in a process of its own; rows are added and written as they come.

    Rows in the folder are not measured again, except for failures that a second attempt may mend.
    """
    cpus = available_cpus()
    durations: list[list[float]] = []
    if writer is not None:
        durations = [row.durations_s for row in writer.results.of(DurationsRow)]
        for row in writer.results.of(OfGraph):
            if isinstance(row, MetgRow) or row.reason in LASTING_FAILURES:
                rows[job_key(row.model, row.threads, row.graph, row.repetition)] = row
    with ProgressBar(len(jobs), "metg") as bar:
        if "network" in jobs[0][3] and not durations:
            durations = [_measure_durations(jobs[0][3], cpus[:1], cores)]
            if writer is not None:
                writer.append(DurationsRow(durations_s=durations[0]))
        for number, (repetition, model, threads, graph) in enumerate(jobs):
            if job_key(model, threads, graph, repetition) in rows:
                continue
            bar.show(number, f"repetition {repetition + 1}, {graph_name(graph)}, {model}, {threads} threads")
            order = cpu_order(threads, cpus, oversubscribe=settings.oversubscribe)
            variables = {
                **sample_environment(threads, settings.interference, cores),
                **process_environment(parse_model(model)),
            }
            job = {
                "kind": "metg",
                "model": model,
                "threads": threads,
                "cpus": order,
                "graph": graph,
                "runs": 2 if settings.quick else 5,
                "target_s": 0.001 if settings.quick else 0.01,
                "budget_s": 2.0 if settings.quick else 20.0,
                **({"durations_s": durations[0]} if durations else {}),
            }
            with hogs_running(settings.interference, order):
                found = run_sample(job, clean_environment(os.environ, variables), TIME_LIMIT_S, MEASURE_COMMAND)
            conditions = {
                "model": model,
                "threads": threads,
                "graph": graph,
                "repetition": repetition,
                "position": number,
                "interference": settings.interference,
                "quick": settings.quick,
                "variables": variables,
                "cpus": order,
            }
            if "failure" not in found:
                row = make_row(MetgRow, found, conditions)
            else:
                row = MetgFailureRow(**conditions, reason=found["failure"], message=found["message"])
                bar.clear()
                print(
                    f"forktask: {graph_name(graph)}, {model}, {threads} threads: {row.reason}: "
                    f"{row.message.splitlines()[0]}",
                    file=sys.stderr,
                    flush=True,
                )
            rows[job_key(model, threads, graph, repetition)] = row
            if writer is not None:
                writer.append(row)


def _measure_durations(graph: Mapping[str, Any], cpus: list[int], cores: int) -> list[float]:
    """Measure the times of a network's blocks once, so that all models get the same graph."""
    settings = clean_environment(os.environ, sample_environment(1, 0, cores))
    row = run_sample({"kind": "durations", "graph": graph, "cpus": cpus}, settings, TIME_LIMIT_S, MEASURE_COMMAND)
    if "failure" in row:
        raise UsageError(
            f"the blocks of {graph['network']} must run to be timed, got: {row['message'].splitlines()[0]}"
        )
    return row["durations_s"]
