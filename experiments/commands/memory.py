"""`forktask memory`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from .arguments import add_json, add_plan_options, plan_products, show, thread_count

HELP = "bytes that a network needs, planned and measured"
DESCRIPTION = (
    "Show the bytes of a training step or inference by what they are for, known before it runs, beside the resident "
    "memory of a process that runs it. Several batches make a sweep; what does not fit under the limit stays in the "
    "table with what would."
)


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    add_plan_options(parser, network="resnet18", axes=True)
    parser.add_argument("--model", default="taskiter", help="execution model; default: %(default)s")
    parser.add_argument("--threads", type=thread_count, default=1, help="default: %(default)s")
    parser.add_argument("--memory-limit", metavar="BYTES", help="such as 1500M or 2GiB")
    parser.add_argument("--plan-only", action="store_true", help="do not run anything")
    add_json(parser)


def call(arguments: Namespace) -> int:
    """Print bytes by what they are for."""
    from ..sampling.measured_memory import as_text, compare_memory
    from ..sampling.memory import parse_bytes
    from ..sampling.models import check_counts, check_threads, parse_model

    (network,) = arguments.network
    check_counts([parse_model(arguments.model)], [arguments.threads])
    result = compare_memory(
        network,
        plan_products(arguments),
        parse_model(arguments.model),
        check_threads(arguments.threads),
        parse_bytes(arguments.memory_limit) if arguments.memory_limit else None,
        run=not arguments.plan_only,
    )
    show(arguments, result, as_text)
    return 0
