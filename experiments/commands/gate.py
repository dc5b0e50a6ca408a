"""`forktask gate`."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace

from ...cython_src.lowering.options import PlanOptions
from ..scaling.gate import GateSettings, compare_commits, exit_code
from ..subjects.subject import describe_importable
from . import arguments as shared

DESCRIPTION = (
    "Build two commits of a repository and measure them, interleaved. Exit code 0: no model is slower than allowed; "
    "1: one is; with --strict also 3: for one the budget was too small to decide."
)


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--against", required=True, metavar="REF", help="commit, branch or tag to compare with")
    subject = parser.add_mutually_exclusive_group()
    subject.add_argument("--function", metavar="M:F", help="a function of your own package that makes a graph")
    shared.add_plan_options(parser, network_group=subject, batch=16)
    shared.add_models(parser, ("forkjoin", "taskiter"))
    parser.add_argument(
        "--threads", type=shared.thread_count, metavar="N", help="default: 2, or 1 where there is one CPU"
    )
    shared.add_fields(parser, GateSettings, leave_out=("against",))
    shared.add_json(parser, "a row for each model")


def call(arguments: Namespace) -> int:
    """Compare two commits."""
    if arguments.function:
        plan = describe_importable(arguments.function)
    else:  # Only the batch and the options that were given: the other commit may not know the others.
        options = shared.given_options(arguments)
        PlanOptions(**options)  # raises
        plan = {"network": arguments.network, **options}
    settings = GateSettings(**shared.given(arguments, GateSettings))
    if arguments.threads is not None:
        shared.threads(arguments)  # raises

    rows = compare_commits(
        plan, shared.models(arguments), arguments.threads, settings, shared.progress_printer(arguments)
    )
    if arguments.json:
        print(json.dumps(rows, indent=1, default=str))
    return exit_code(rows, settings.strict)
