"""`forktask tune`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from . import arguments as shared
from .sweeping import command_line

HELP = "search the best block sizes of each execution model"
DESCRIPTION = (
    "Search the granularity at which each execution model is fastest, with the same candidates for each: a sweep, "
    "which leaves a results folder with a report. `forktask compare --tuned DIR` takes the best granularities from it."
)


def add_arguments(parser: ArgumentParser) -> None:
    from ..sweep.tuned import MODELS, SearchSettings

    shared.add_plan_options(parser, leave_out=("granularity",))
    shared.add_models(parser, MODELS)
    shared.add_threads(parser, default="the physical cores of this process")
    shared.add_fields(parser, SearchSettings)
    shared.add_out(parser, "tune")
    shared.add_json(parser)


def call(arguments: Namespace) -> int:
    """Measure the candidates, and print the best ones. Exit code 1: no model could be measured."""
    from ..machine.topology import core_counts
    from ..report.files import write_report
    from ..sweep.comparison import measure_comparison
    from ..sweep.configuration import Grid
    from ..sweep.tune import as_text, search_of, search_result
    from ..sweep.tuned import SearchSettings

    counts = core_counts()[-1:] if arguments.threads == "cores" else shared.threads(arguments)
    axes = {name: (value,) for name, value in {"network": arguments.network, **shared.given_options(arguments)}.items()}
    grid = Grid(**axes, models=shared.models(arguments), threads=counts)
    configuration = search_of(grid, SearchSettings(**shared.given(arguments, SearchSettings)))
    folder = shared.folder_of(arguments)
    if not measure_comparison(configuration, folder, command_line(folder)).usable:
        return 1
    write_report(folder)
    shared.show(arguments, search_result(folder), lambda result: as_text(result, folder))
    return 0
