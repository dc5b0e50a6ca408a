"""`forktask metg`, also a function."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from ...cython_src.errors import UsageError
from ...cython_src.graphs.task_bench import PATTERNS
from ...cython_src.lowering import PlanOptions
from ...cython_src.networks.layers import Network
from ...cython_src.networks.registry import named_network
from ...cython_src.records import fields_of, takes
from ..machine.topology import core_counts
from ..metg.graphs import TaskBenchOptions, requested_graphs
from ..metg.metg import MetgSettings, default_models
from ..results.folder import dated_folder
from ..subjects.models import check_counts, check_ours, parse_models
from . import arguments as shared
from .functions import Result, call_function, call_text

DESCRIPTION = (
    "Run Task Bench graphs with more and more work in each task and find the shortest task at which half of the "
    "kernel's own rate is reached. Each task checks that its inputs came from the right tasks."
)


def add_arguments(parser: ArgumentParser) -> None:
    graph = parser.add_mutually_exclusive_group()
    graph.add_argument(
        "--pattern",
        type=shared.texts,
        default="stencil_1d",
        metavar="P[,P...]",
        help=f"of {', '.join(PATTERNS)}; default: %(default)s",
    )
    graph.add_argument("--network", metavar="N", help="a network instead; the options of plans are for it")
    shared.add_plan_options(parser, network=False)
    shared.add_models(parser, default_models())
    shared.add_threads(parser)
    shared.add_fields(parser, TaskBenchOptions)
    shared.add_fields(parser, MetgSettings)
    shared.add_out(
        parser, "metg", "folder for samples, table and figures, new or of the same command, which goes on there"
    )
    shared.add_json(parser)


@takes(TaskBenchOptions, MetgSettings, PlanOptions)
def metg(
    pattern: str | Sequence[str] = "stencil_1d",
    *,
    network: str | Network | None = None,
    models: str | Sequence[str] | None = None,
    threads: int | Literal["cores"] | Sequence[int] = "cores",
    out: str | os.PathLike[str] | None = None,
    command: str = "",
    **settings: Any,
) -> Result:
    """Measure what a runtime costs per task, as `forktask metg` does; a figure for each graph.

    Parameters
    ----------
    pattern : str or several
        Of Task Bench graphs.
    network : str or Network, optional
        Its graph in place of those.
    models : str or several, optional
        Default: those of `compare` that run tasks, and the built outside references.
    threads : int or several, or "cores"
        As for `compare`.
    out : path, optional
        Results folder; default: metg/<date and time>.
    command : str
        Command that continues the measurement, which the folder names; default: this call.
    **settings
        Size and kernel of a graph (`width`, `steps`, `kernel`, ...) or options of the network's plan, and how to
        measure (`repeats`, `interference`, `quick`, ...).

    Raises
    ------
    UsageError
        An unknown name or value, or a folder that holds other results.
    """
    from ..analysis.names import with_texts
    from ..metg.figure import by_graph, chart
    from ..metg.metg import measure_metg
    from ..metg.table import as_frame, format_table

    folder = Path(out or dated_folder("metg"))
    options = (fields_of(record, settings) for record in (TaskBenchOptions, PlanOptions))
    name = network if network is None else named_network(network, folder.parent)
    graphs = requested_graphs(shared.several(pattern), name, *options)
    chosen = default_models() if models is None else shared.several(models)
    specs = check_ours(parse_models(chosen))
    if on_gpu := ", ".join(str(spec) for spec in specs if spec.is_gpu):
        raise UsageError(f"metg runs models of the CPU, got {on_gpu}; leave them out")
    shown = {"network": name, "models": chosen, "threads": threads, **settings}
    text = command or call_text("metg", {"pattern": pattern, **shown, "out": str(folder)})
    counts = core_counts() if threads == "cores" else check_counts(specs, shared.several(threads))
    data = measure_metg(graphs, specs, counts, MetgSettings(**fields_of(MetgSettings, settings)), folder, text)
    charts = {name: partial(chart, own) for name, own in by_graph(data).items()}
    return Result(f"METG in {folder}", with_texts(as_frame(data)), format_table(data), folder, charts, data)


def call(arguments: Namespace) -> int:
    """Measure, print and draw. Exit code 1: nothing could be measured."""
    plan = shared.plan_options(arguments).as_dict() if arguments.network is not None else {}
    return 0 if call_function(metg, arguments, **plan).figures else 1
