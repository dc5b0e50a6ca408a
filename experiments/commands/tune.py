"""`forktask tune`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from .arguments import (
    add_check,
    add_json,
    add_models,
    add_placement,
    add_plan_options,
    add_threads,
    given,
    given_options,
    models,
    number_from,
    positive,
    show,
    threads,
)

HELP = "search the best block sizes of each execution model"
DESCRIPTION = (
    "Search the granularity at which each execution model is fastest, with the same candidates and the same time for "
    "each, and keep what is found for `forktask compare --tuned FILE`."
)
MODELS = ("forkjoin", "forkjoin:region=persistent", "taskgraph", "taskiter")


def add_arguments(parser: ArgumentParser) -> None:
    add_plan_options(parser, leave_out=("granularity",))
    add_models(parser, MODELS)
    add_threads(parser, default="the physical cores of this process")
    parser.add_argument(
        "--budget", type=number_from(2, most=10_000), default=12, metavar="N", help="candidates; default: %(default)s"
    )
    parser.add_argument(
        "--seconds", type=positive, default=0.3, metavar="S", help="timed for each; default: %(default)s"
    )
    parser.add_argument("--seed", type=number_from(0), default=0, help="of the candidates; default: %(default)s")
    parser.add_argument(
        "--file",
        default="tuned.json",
        metavar="FILE",
        help="where it is kept, beside what the file holds; default: %(default)s",
    )
    add_check(parser)
    add_placement(parser)
    add_json(parser)


def call(arguments: Namespace) -> int:
    """Search, keep and print. Exit code 1: no model could be measured."""
    from ..machine.placement import Placement
    from ..machine.topology import core_counts
    from ..sweep.configuration import Configuration, Grid, Measure
    from ..sweep.tune import as_text, tune

    counts = core_counts()[-1:] if arguments.threads == "cores" else threads(arguments)
    axes = {name: (value,) for name, value in {"network": arguments.network, **given_options(arguments)}.items()}
    measure = Measure(
        target_s=arguments.seconds,
        warmup_s=min(1.0, arguments.seconds),
        check_iterations=1,
        seed=arguments.seed,
        check=arguments.check,
        **given(arguments, Placement),
    )
    configuration = Configuration(grid=Grid(**axes, models=models(arguments), threads=counts), measure=measure)
    problem = tune(configuration, arguments.budget, arguments.file)
    show(arguments, problem, lambda found: as_text(found, arguments.file))
    return 0 if problem["rows"] else 1
