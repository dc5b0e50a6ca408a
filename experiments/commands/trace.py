"""`forktask trace`."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from datetime import datetime

from .arguments import (
    add_device,
    add_models,
    add_plan_options,
    models,
    number_from,
    plan_options,
    positive,
    thread_count,
    threads,
)

HELP = "log what every thread does at every moment of a run"
DESCRIPTION = (
    "Run each model with its event log on and write what every thread did at every moment: running a block, "
    "scheduling, waiting and why, asleep, without a CPU; of models of a GPU what the host, each stream and each "
    "direction of copies did. Writes logs, a Gantt picture, losses that add up, and traces "
    "for Perfetto, Paraver and ViTE."
)


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    from ..machine.topology import core_counts
    from ..sampling.injections import INJECTIONS

    add_plan_options(parser)
    add_device(parser)
    add_models(parser, ("serial", "forkjoin", "forkjoin:region=persistent", "tasks", "taskgraph", "taskiter"))
    parser.add_argument("--threads", type=thread_count, metavar="N", help=f"default: {core_counts()[-1]}")
    length = parser.add_mutually_exclusive_group()
    length.add_argument(
        "--seconds", type=positive, default=0.5, help="about how long each logged run lasts; default: %(default)s"
    )
    length.add_argument("--iterations", type=number_from(1), metavar="N", help="length of each logged run instead")
    parser.add_argument(
        "--show", type=number_from(1), default=3, metavar="N", help="iterations in the pictures; default: %(default)s"
    )
    parser.add_argument(
        "--inject",
        choices=INJECTIONS,
        default="",
        help="let each logged run meet a cause of outliers, for `forktask diagnose` to find",
    )
    parser.add_argument("--oversubscribe", action="store_true", help="allow more threads than cores")
    parser.add_argument("--out", metavar="DIR", help="folder for all files; default: traces/<date and time>")


def call(arguments: Namespace) -> int:
    """Trace, and write all files. Exit code 1: some model failed."""
    from ..machine.environment import collect
    from ..machine.limits import measure_machine
    from ..machine.topology import core_counts
    from ..report.trace_files import write_trace_files
    from ..traces.collect import check_trace_folder, collect_traces, write_machine

    count = core_counts()[-1] if arguments.threads is None else threads(arguments)[0]
    folder = arguments.out or f"traces/{datetime.now().strftime('%Y%m%d-%H%M%S')}"
    check_trace_folder(folder)
    collection = collect_traces(
        {"network": arguments.network, **plan_options(arguments).as_dict()},
        models(arguments),
        count,
        folder,
        seconds=arguments.seconds,
        iterations=arguments.iterations,
        inject=arguments.inject,
        oversubscribe=arguments.oversubscribe,
    )
    for failure in collection.failures:
        print(f"forktask: {failure}", file=sys.stderr)
    if collection.logs:
        environment = collect()
        write_machine(folder, environment, measure_machine((1, count), environment=environment))
        print("\n".join(write_trace_files(folder, collection.logs, arguments.show)))
    return 1 if collection.failures else 0
