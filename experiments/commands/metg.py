"""`forktask metg`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from . import arguments as shared
from .sweeping import command_line

HELP = "what a runtime costs per task: METG(50 %%) on Task Bench graphs"
DESCRIPTION = (
    "Run Task Bench graphs with more and more work in each task and find the shortest task at which half of the "
    "kernel's own rate is reached. Each task checks that its inputs came from the right tasks."
)


def add_arguments(parser: ArgumentParser) -> None:
    from ...cython_src.graphs.task_bench import PATTERNS
    from ..metg.graphs import TaskBenchOptions
    from ..metg.metg import MetgSettings, default_models

    graph = parser.add_mutually_exclusive_group()
    graph.add_argument(
        "--pattern",
        type=shared.texts,
        default="stencil_1d",
        metavar="P[,P...]",
        help=f"of {', '.join(PATTERNS)}; default: %(default)s",
    )
    shared.add_plan_options(parser, network=None, network_group=graph)
    shared.add_models(parser, default_models())
    shared.add_device(parser)
    shared.add_threads(parser)
    shared.add_fields(parser, TaskBenchOptions)
    shared.add_fields(parser, MetgSettings)
    shared.add_out(
        parser, "metg", "folder for samples, table and figures, new or of the same command, which goes on there"
    )
    parser.add_argument(
        "--format", choices=("pdf", "svg", "png"), default="pdf", help="of figures; default: %(default)s"
    )
    shared.add_json(parser)


def call(arguments: Namespace) -> int:
    """Measure, print and draw. Exit code 1: nothing could be measured."""
    from ...cython_src.lowering.options import PlanOptions
    from ..metg.graphs import TaskBenchOptions, requested_graphs
    from ..metg.metg import MetgSettings, measure_metg
    from ..metg.table import format_table

    specs, requested = shared.models(arguments), shared.given(arguments, TaskBenchOptions)
    of_network = arguments.network is not None
    plan = shared.plan_options(arguments).as_dict() if of_network else shared.given(arguments, PlanOptions)
    graphs = requested_graphs(arguments.pattern, arguments.network, requested, plan, arguments.device)
    settings = MetgSettings(**shared.given(arguments, MetgSettings))
    folder = shared.folder_of(arguments)
    again = command_line(folder)
    table = measure_metg(graphs, specs, shared.threads(arguments), settings, Path(folder), again, arguments.format)
    shared.show(arguments, table, format_table)
    return 0 if any(entry["repeats"] for entry in table["results"]) else 1
