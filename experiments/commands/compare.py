"""`forktask compare`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from ..sampling.hogs import MOST_HOGS
from ..subjects.models import DEFAULT_MODELS, SERIAL, describe_models, parse_models
from ..sweep.configuration import BUDGET_S, Configuration, Grid, Measure, budgeted, check_axes, measure_given
from . import arguments as shared
from .sweeping import add_output, measure_and_report

DESCRIPTION = (
    "Train one network under several execution models, check that all computed the same weights, and leave samples, a "
    "table, figures and a report in a folder. The same command again continues an interrupted session, "
    "or else adds one."
)


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments: one for each axis of a sweep and each way to measure it."""
    parser.epilog = f"Models and their options: {describe_models()}."
    shared.add_plan_options(parser, axes=True, networks=True)
    shared.add_models(parser, DEFAULT_MODELS)
    shared.add_device(parser)
    shared.add_threads(parser)
    parser.add_argument(
        "--interference",
        type=lambda text: shared.numbers(text, most=MOST_HOGS),
        default=(0,),
        metavar="K[,K...]",
        help="competing processes, which spin on the same CPUs; default: 0",
    )
    shared.add_fields(parser, Measure, leave_out=("budget_s", "inject", "sessions", "every_s"))
    parser.add_argument(
        "--budget",
        type=shared.duration,
        metavar="TIME",
        help=f"such as 90s or 3min: measure until every comparison is decided within 1 %%, or this is spent; default: "
        f"{BUDGET_S / 60:g}min, without --repeats",
    )
    add_output(parser)


def configuration_of(arguments: Namespace):
    """Return the `Configuration` that was asked for."""
    chosen = shared.models(arguments, peers=True)
    if SERIAL not in chosen and any(spec.is_gpu for spec in parse_models(chosen)):
        chosen = (SERIAL, *chosen)  # the speedup of a GPU is that over the CPU's serial run
    axes = {
        **shared.plan_axes(arguments),
        "models": chosen,
        "threads": shared.threads(arguments),
        "interference": arguments.interference,
    }
    measure = shared.given(arguments, Measure)
    if arguments.budget is not None:
        measure["budget_s"] = float(arguments.budget)
    grid = Grid(**check_axes(axes))
    return Configuration(
        grid=grid,
        measure=measure_given(budgeted(measure), "the arguments"),
        quick_axes={"threads": (max(grid.threads),)} if arguments.threads == "cores" else {},
    )


def call(arguments: Namespace) -> int:
    """Measure, and print tables."""
    return measure_and_report(configuration_of(arguments), arguments)
