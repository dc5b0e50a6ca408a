"""`forktask infer`."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace

from .arguments import (
    MOST_THREADS,
    add_check,
    add_device,
    add_models,
    add_plan_options,
    models,
    number_from,
    numbers,
    plan_products,
    threads,
)

HELP = "time the forward pass over many images, layer by layer"
DESCRIPTION = "Time the forward pass over many images: load, create and run, and each layer's share."
MAX_IMAGES = 10_000_000


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    from ..machine.topology import core_counts

    # Layers are timed without fusion, beside the fused plan that one would use.
    add_plan_options(parser, phase="forward", leave_out=("phase", "fusion"), axes=True, batch=(1, 64))
    parser.add_argument(
        "--images", type=_image_counts, default=(1200,), metavar="N[,N...]", help="numbers of images; default: 1200"
    )
    add_models(parser, ("serial", "forkjoin", "taskiter"))
    add_device(parser)
    counts = core_counts(min(2, core_counts()[-1]))
    parser.add_argument(
        "--threads",
        type=lambda text: numbers(text, 1, MOST_THREADS),
        default=None,
        metavar="N[,N...]",
        help=f"numbers of threads; default: {','.join(map(str, counts))}",
    )
    parser.add_argument("--data", default="digits", help="data set whose images are used in turn; default: %(default)s")
    parser.add_argument(
        "--repeats",
        type=number_from(1, most=100_000),
        default=3,
        metavar="R",
        help="passes over all images; the one of median time counts; default: %(default)s",
    )
    parser.add_argument("--checkpoint", metavar="FILE", help="safetensors file with parameters; default: random ones")
    add_check(parser)
    parser.add_argument("--oversubscribe", action="store_true", help="allow more threads than cores")
    parser.add_argument("--json", action="store_true", help="print JSON")


def call(arguments: Namespace) -> int:
    """Measure, and print a table for each number of images and batch."""
    from ..machine.topology import core_counts
    from ..training.infer import format_table, infer_tables

    (network,) = arguments.network
    number = 0

    def report(table) -> None:
        nonlocal number
        if not arguments.json:
            print("\n" * (number > 0) + format_table(table), flush=True)
        number += 1

    tables = infer_tables(
        network,
        plan_products(arguments),
        arguments.images,
        models(arguments),
        core_counts(min(2, core_counts()[-1])) if arguments.threads is None else threads(arguments),
        data=arguments.data,
        checkpoint=arguments.checkpoint,
        repeats=arguments.repeats,
        check=arguments.check,
        oversubscribe=arguments.oversubscribe,
        report=report,
    )
    if arguments.json:
        print(json.dumps({"schema_version": 1, "tables": tables}, indent=1))
    return 0


def _image_counts(text: str) -> tuple[int, ...]:
    return numbers(text, 1, MAX_IMAGES)
