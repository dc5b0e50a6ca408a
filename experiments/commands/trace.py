"""`forktask trace`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from . import arguments as shared
from .sweeping import command_line

HELP = "log what every thread does at every moment of a run"
DESCRIPTION = (
    "Run each model with its event log on and write what every thread did at every moment: running a block, "
    "scheduling, waiting and why, asleep, without a CPU; of models of a GPU what the host, each stream and each "
    "direction of copies did. Leaves a results folder, as compare --trace with one generation does: logs, a Gantt "
    "picture, losses that add up, and traces for Perfetto, Paraver and ViTE."
)


def add_arguments(parser: ArgumentParser) -> None:
    from ..machine.placement import Placement
    from ..machine.topology import core_counts
    from ..sampling.injections import INJECTIONS
    from ..sweep.configuration import Measure
    from ..traces.sweep import SHOWN, TRACED

    shared.add_plan_options(parser)
    shared.add_device(parser)
    shared.add_models(parser, TRACED)
    parser.add_argument("--threads", type=shared.thread_count, metavar="N", help=f"default: {core_counts()[-1]}")
    length = parser.add_mutually_exclusive_group()
    length.add_argument(
        "--seconds",
        type=shared.positive,
        default=0.5,
        help="about how long each logged run lasts; default: %(default)s",
    )
    length.add_argument(
        "--iterations", type=shared.number_from(1), metavar="N", help="length of each logged run instead"
    )
    parser.add_argument(
        "--show",
        type=shared.number_from(1),
        default=SHOWN,
        metavar="N",
        help="iterations in pictures; default: %(default)s",
    )
    parser.add_argument(
        "--inject",
        choices=INJECTIONS,
        default="",
        help="log a further run that meets a cause of outliers, for `forktask diagnose` to find",
    )
    shared.add_fields(parser, Measure, only=("check",), check=True)
    shared.add_fields(parser, Placement)
    shared.add_out(parser, "traces")
    shared.add_json(parser, "folder and losses")


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

    count = core_counts()[-1] if arguments.threads is None else shared.threads(arguments)[0]
    plan = {"network": arguments.network, **shared.plan_options(arguments).as_dict()}
    axes = {**{name: (value,) for name, value in plan.items()}, "models": shared.models(arguments), "threads": (count,)}
    measuring = Measure(
        **once(arguments.seconds),
        inject=(arguments.inject,) if arguments.inject else (),
        check=arguments.check,
        **shared.given(arguments, Placement),
    )
    configuration = Configuration("Traces of execution models", Grid(**check_axes(axes)), measuring)
    folder = shared.folder_of(arguments)
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
    shared.show(arguments, {"folder": folder, "losses": losses}, lambda _: "\n".join(text))
    return 0 if compared.complete else 1
