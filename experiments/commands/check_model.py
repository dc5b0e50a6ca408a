"""`forktask check-model`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections import Counter

from ..conformance.cases import LIMIT_S, THREADS, check_model
from ..subjects.models import parse_models
from .arguments import add_json, number_from, progress_printer, several_of, show

DESCRIPTION = (
    "Check that a model, such as a runtime of your own, runs every plan as it must: order on random graphs of every "
    "kind of access, bits of the networks, blocks that fail, Ctrl-C, a fork, two executors at once, threads and memory "
    "given back. Exit code 1: it breaks one."
)


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="name with options, such as lib:./libmine.so or taskiter; outside: each outside runtime that is installed",
    )
    parser.add_argument(
        "--threads",
        type=several_of(number_from(0)),
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
    specs, rows = parse_models([arguments.model]), []
    say = progress_printer(arguments)
    for spec in specs:
        of = f"{spec}, " * (len(specs) > 1)
        for row in check_model(spec, arguments.threads, arguments.time_limit):
            rows.append({"model": str(spec), **row})
            say(f"{of}{row['case']}: {row['rule']}: {row['fault'] or 'yes'}")
    broken = Counter(row["model"] for row in rows if row["fault"] is not None)
    ends = [f"{spec} {f'breaks {broken[str(spec)]} rules' if str(spec) in broken else 'conforms'}" for spec in specs]
    show(arguments, rows, lambda _: "\n".join(ends))
    return 1 if broken else 0
