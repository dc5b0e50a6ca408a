"""`forktask trace`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from .arguments import (
    add_check,
    add_device,
    add_json,
    add_models,
    add_out,
    add_placement,
    add_plan_options,
    folder_of,
    given,
    models,
    number_from,
    plan_options,
    positive,
    show,
    thread_count,
    threads,
)
from .sweeping import command_line

HELP = "log what every thread does at every moment of a run"
DESCRIPTION = (
    "Run each model with its event log on and write what every thread did at every moment: running a block, "
    "scheduling, waiting and why, asleep, without a CPU; of models of a GPU what the host, each stream and each "
    "direction of copies did. Leaves a results folder, as compare --trace with one generation does: logs, a Gantt "
    "picture, losses that add up, and traces for Perfetto, Paraver and ViTE."
)


def add_arguments(parser: ArgumentParser) -> None:
    from ..machine.topology import core_counts
    from ..sampling.injections import INJECTIONS
    from ..traces.sweep import SHOWN, TRACED

    add_plan_options(parser)
    add_device(parser)
    add_models(parser, TRACED)
    parser.add_argument("--threads", type=thread_count, metavar="N", help=f"default: {core_counts()[-1]}")
    length = parser.add_mutually_exclusive_group()
    length.add_argument(
        "--seconds", type=positive, default=0.5, help="about how long each logged run lasts; default: %(default)s"
    )
    length.add_argument("--iterations", type=number_from(1), metavar="N", help="length of each logged run instead")
    parser.add_argument(
        "--show", type=number_from(1), default=SHOWN, metavar="N", help="iterations in pictures; default: %(default)s"
    )
    parser.add_argument(
        "--inject",
        choices=INJECTIONS,
        default="",
        help="log a further run that meets a cause of outliers, for `forktask diagnose` to find",
    )
    add_check(parser)
    add_placement(parser)
    add_out(parser, "traces")
    add_json(parser, "folder and losses")


def call(arguments: Namespace) -> int:
    """Measure each model once, trace it, and write all files. Exit code 1: some model failed."""
    from functools import partial

    from ..machine.placement import Placement
    from ..machine.topology import core_counts
    from ..report.files import write_report, write_trace_files
    from ..results.folder import read_results
    from ..results.rows import TraceRow, values_of
    from ..sweep.comparison import measure_comparison
    from ..sweep.configuration import Configuration, Grid, Measure, check_axes
    from ..traces.sweep import once

    count = core_counts()[-1] if arguments.threads is None else threads(arguments)[0]
    plan = {"network": arguments.network, **plan_options(arguments).as_dict()}
    axes = {**{name: (value,) for name, value in plan.items()}, "models": models(arguments), "threads": (count,)}
    measuring = Measure(
        **once(arguments.seconds),
        inject=(arguments.inject,) if arguments.inject else (),
        check=arguments.check,
        **given(arguments, Placement),
    )
    configuration = Configuration("Traces of execution models", Grid(**check_axes(axes)), measuring)
    folder = folder_of(arguments)
    requested = {
        "iterations": arguments.iterations,
        "adds_sessions": False,
        "trace": partial(write_trace_files, shown=arguments.show),
    }
    compared = measure_comparison(configuration, folder, command_line(folder), **requested)
    if not compared.usable:
        return 1
    write_report(folder)
    losses = [values_of(row.losses) for row in read_results(folder).of(TraceRow)]
    text = [*compared.traced, "", f"{folder}: samples.jsonl, summary.csv, figures, traces, report.html"]
    show(arguments, {"folder": folder, "losses": losses}, lambda _: "\n".join(text))
    return 0 if compared.complete else 1
