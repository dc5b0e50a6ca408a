"""`forktask check-model`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from ..conformance.conformance import LIMIT_S, THREADS, check_model
from ..subjects.models import parse_models
from .arguments import add_json, number_from, numbers, progress_printer, show

DESCRIPTION = (
    "Check that a model, such as a runtime of your own, runs every plan as it must: order on random graphs of every "
    "kind of access, bits of the networks, blocks that fail, Ctrl-C, two executors at once. Exit code 1: it breaks one."
)


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="name with options, such as lib:./libmine.so or taskiter")
    parser.add_argument(
        "--threads",
        type=numbers,
        default=THREADS,
        metavar="N[,N...]",
        help=f"numbers of threads; default: {','.join(map(str, THREADS))}",
    )
    parser.add_argument(
        "--time-limit",
        type=number_from(1, float),
        default=LIMIT_S,
        metavar="SECONDS",
        help=f"of a step; default: {LIMIT_S:g}",
    )
    add_json(parser)


def call(arguments: Namespace) -> int:
    """Check a model case by case."""
    (spec,) = parse_models([arguments.model])[:1]
    rows = []
    say = progress_printer(arguments)
    for row in check_model(spec, arguments.threads, arguments.time_limit):
        rows.append(row)
        say(f"{row['case']}: {row['rule']}: {row['fault'] or 'yes'}")
    broken = sum(row["fault"] is not None for row in rows)
    show(arguments, rows, lambda _: f"{spec} {f'breaks {broken} rules' if broken else 'conforms'}")
    return 1 if broken else 0
