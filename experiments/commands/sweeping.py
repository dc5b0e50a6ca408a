"""Common part of `forktask compare` and `forktask run`: a sweep, then tables, figures and a report."""

from __future__ import annotations

import shlex
import sys
from argparse import SUPPRESS, ArgumentParser, Namespace

from ..tables.progress import say
from .arguments import add_json, add_out, duration, folder_of, number_from, show


def add_output(parser: ArgumentParser) -> None:
    """Add `--out`, `--json`, `--no-report`, `--sessions`, `--every`, `--trace` and `--quick`."""
    from ..results.turns import SESSION_PAUSE_S

    add_out(parser, "results")
    printed = parser.add_mutually_exclusive_group()
    add_json(printed, "the summary")
    printed.add_argument(
        "--no-report",
        action="store_true",
        help="only measure: `forktask report DIR` prints and draws, here or elsewhere",
    )
    parser.add_argument(
        "--trace",
        action="store_true",
        help="then log what every thread does, once for each plan and model of a sweep on most threads: Gantt "
        "pictures and losses",
    )
    text = (
        "of a sweep: sessions in the folder at the end, at least one more; with three or more, intervals are over them"
    )
    parser.add_argument(
        "--sessions", type=number_from(1, most=1000), default=SUPPRESS, metavar="N", help=f"{text}; default: 1"
    )
    parser.add_argument(
        "--every",
        type=lambda text: duration(text, SESSION_PAUSE_S),
        dest="every_s",
        default=SUPPRESS,
        metavar="TIME",
        help="of several sessions: from the start of one to that of the next, such as 20min or 2h; default: 20min",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="one short generation, with the small sizes that the file names: a check that it works",
    )


def print_expected(configuration, arguments: Namespace) -> int:
    """Print what would be measured and how long it would take."""
    from ..results.folder import CHANGEABLE, check_run
    from ..subjects.memory import check_some_fit
    from ..sweep.expected import expected, expected_text

    configuration = configuration.quick() if arguments.quick else configuration
    configuration.check_algorithms()
    if arguments.out:
        check_run(arguments.out, "samples", configuration.as_dict(), CHANGEABLE)
    if not arguments.on:  # the nodes of a cluster have memory of their own
        configuration.measure.order(1)  # raises for places that are not here
        check_some_fit(configuration.plans(), configuration.measure.memory_limit)
    result = expected(configuration)
    if arguments.json:
        del result["plans"]
    show(arguments, result, expected_text)
    return 0


def measure_and_report(configuration, arguments: Namespace) -> int:
    """Measure a sweep, say what failed, and print and draw the rest. Exit code 1: some figure is missing or wrong."""
    from ..report.files import write_trace_files
    from ..sweep.comparison import measure_comparison

    trace = write_trace_files if arguments.trace else None
    out_dir = folder_of(arguments)
    command = command_line(out_dir)
    compared = measure_comparison(configuration, out_dir, command, quick=arguments.quick, trace=trace)
    return report_on(compared, configuration, out_dir, arguments)


def report_on(compared, configuration, out_dir: str, arguments: Namespace) -> int:
    """Print and draw the results of a sweep. Exit code 1: some figure is missing or wrong."""
    from ..report.files import report_folder
    from ..subjects.models import describe_gpu_convolutions

    if not compared.usable:
        return 1
    if arguments.no_report:
        print(not_reported(out_dir))
        return 0 if compared.complete else 1
    for conv in configuration.grid.conv if configuration.uses_gpu else ():
        say(describe_gpu_convolutions(conv))
    print(report_folder(out_dir, arguments.json))
    return 0 if compared.complete else 1


def not_reported(out_dir: str) -> str:
    """Say where the samples of `--no-report` are, and what draws them."""
    return f"{out_dir}: samples.jsonl; to print and draw it: {shlex.join(['forktask', 'report', out_dir])}"


def command_line(out_dir: str) -> str:
    """Return the command that continues the sweep: the arguments of this process, with the output folder named."""
    typed = ["forktask", *sys.argv[1:]]
    if not any(part == "--out" or part.startswith("--out=") for part in typed):
        typed += ["--out", out_dir]
    return shlex.join(typed)
