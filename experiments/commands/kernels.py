"""`forktask kernels`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from .arguments import add_json, add_plan_options, number_from, plan_options, show

DESCRIPTION = (
    "Time each kernel, copy and driver call of a model's step on a GPU, and say what the timing itself costs. Times "
    "of loops on the processor are in the report of a `forktask compare`."
)


def add_arguments(parser: ArgumentParser) -> None:
    add_plan_options(parser)
    parser.add_argument("--model", default="gpu_stream", help="whose step is timed; default: %(default)s")
    parser.add_argument("--seconds", type=number_from(0, float), default=1.0, help="default: %(default)g")
    add_json(parser)


def call(arguments: Namespace) -> int:
    """Measure what a GPU does, and print the tables."""
    from ..sampling.gpu_profile import format_profile, profile_network

    row = profile_network(arguments.network, plan_options(arguments), arguments.model, arguments.seconds)
    show(arguments, row, format_profile)
    return 0
