"""`forktask graph`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from .arguments import add_plan_options, plan_options, texts

HELP = "draw the task graph of a step, or of some layers, with and without barriers"
DESCRIPTION = (
    "Draw the tasks of a plan and their dependences, side by side for several kinds of barriers: as SVG, PDF or PNG, "
    "or in DOT for Graphviz. Layers and phases that are not shown are folded."
)


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    add_plan_options(parser)
    parser.add_argument(
        "--layers",
        type=texts,
        default=(),
        metavar="L[,L...]",
        help="layers to show, each with all below it, such as h.0; default: all",
    )
    parser.add_argument(
        "--phases",
        type=texts,
        default=(),
        metavar="P[,P...]",
        help="phases to show: load, forward, backward, update; default: all",
    )
    parser.add_argument(
        "--barriers",
        type=texts,
        default=("phase", "none"),
        metavar="B[,B...]",
        help="a panel for each of loop, phase, iteration, none; default: phase,none",
    )
    parser.add_argument("--file", default="graph.svg", metavar="FILE", help="FILE.svg, .pdf, .png or .dot; %(default)s")


def call(arguments: Namespace) -> int:
    """Draw the graph, and say what it shows."""
    from ...cython_src.lowering.lower import lower
    from ..task_graph.files import write_picture
    from ..task_graph.view import view_of

    plan = lower(arguments.network, plan_options(arguments), num_batches=1)
    views = [view_of(plan, barrier, arguments.layers, arguments.phases) for barrier in arguments.barriers]
    path = write_picture(views, arguments.file)
    print("\n".join([view.describe() for view in views] + [str(path)]))
    return 0
