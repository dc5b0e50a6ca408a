"""`forktask tune`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from .arguments import (
    add_check,
    add_json,
    add_models,
    add_out,
    add_placement,
    add_plan_options,
    add_threads,
    folder_of,
    given,
    given_options,
    models,
    number_from,
    positive,
    show,
    threads,
)
from .sweeping import command_line

HELP = "search the best block sizes of each execution model"
DESCRIPTION = (
    "Search the granularity at which each execution model is fastest, with the same candidates for each: a sweep, "
    "which leaves a results folder with a report. `forktask compare --tuned DIR` takes the best granularities from it."
)


def add_arguments(parser: ArgumentParser) -> None:
    from ..sweep.tuned import BUDGET, MODELS, SECONDS

    add_plan_options(parser, leave_out=("granularity",))
    add_models(parser, MODELS)
    add_threads(parser, default="the physical cores of this process")
    parser.add_argument(
        "--budget",
        type=number_from(2, most=10_000),
        default=BUDGET,
        metavar="N",
        help="candidates; default: %(default)s",
    )
    parser.add_argument(
        "--seconds", type=positive, default=SECONDS, metavar="S", help="timed for each; default: %(default)s"
    )
    parser.add_argument("--seed", type=number_from(0), default=0, help="of the candidates; default: %(default)s")
    add_out(parser, "tune")
    add_check(parser)
    add_placement(parser)
    add_json(parser)


def call(arguments: Namespace) -> int:
    """Measure the candidates, and print the best ones. Exit code 1: no model could be measured."""
    from ..machine.placement import Placement
    from ..machine.topology import core_counts
    from ..report.files import write_report
    from ..sweep.comparison import measure_comparison
    from ..sweep.configuration import Grid
    from ..sweep.tune import as_text, search_of, search_result

    counts = core_counts()[-1:] if arguments.threads == "cores" else threads(arguments)
    axes = {name: (value,) for name, value in {"network": arguments.network, **given_options(arguments)}.items()}
    grid = Grid(**axes, models=models(arguments), threads=counts)
    chosen = {"seed": arguments.seed, "check": arguments.check, **given(arguments, Placement)}
    configuration = search_of(grid, arguments.budget, arguments.seconds, **chosen)
    folder = folder_of(arguments)
    if not measure_comparison(configuration, folder, command_line(folder)).usable:
        return 1
    write_report(folder)
    show(arguments, search_result(folder), lambda result: as_text(result, folder))
    return 0
