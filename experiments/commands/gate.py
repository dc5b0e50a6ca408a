"""`forktask gate`."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace

from ...cython_src.lowering.options import PlanOptions
from ...cython_src.networks.own import is_own
from ...cython_src.records import fields_of
from ..scaling.gate import GateSettings, compare_commits, exit_code
from ..subjects.calls import CALLS
from ..subjects.models import check_counts, check_ours, parse_models
from . import arguments as shared
from .compare import add_calls, calls_of

DESCRIPTION = (
    "Build two commits of a repository and measure them, interleaved. Exit code 0: no model is slower than allowed; "
    "1: one is; with --strict also 3: for one the budget was too small to decide."
)


def add_arguments(parser: ArgumentParser) -> None:
    shared.add_plan_options(parser, batch=16)
    shared.add_models(parser, ("forkjoin", "taskiter"))
    parser.add_argument(
        "--threads", type=shared.thread_count, metavar="N", help="default: 2, or 1 where there is one CPU"
    )
    shared.add_fields(parser, GateSettings)
    add_calls(parser, reference=False)
    shared.add_json(parser, "a row for each model")


def call(arguments: Namespace) -> int:
    """Compare two commits."""
    models = calls_of(vars(arguments)) or check_ours(parse_models(arguments.models))
    # Only the batch and the options that were given: the other commit may not know the others.
    if models[0].model.is_call:
        plan = {"network": CALLS, "batch": 1}
    elif is_own(arguments.network):  # each commit imports its own
        plan = {"network": arguments.network, **fields_of(PlanOptions, vars(arguments))}
    else:
        options = shared.given_options(arguments)
        PlanOptions(**options)  # raises
        plan = {"network": arguments.network, **options}
    settings = GateSettings(**fields_of(GateSettings, vars(arguments)))
    if arguments.threads is not None:
        check_counts(models, [arguments.threads])

    rows = compare_commits(plan, models, arguments.threads, settings, shared.progress_printer(arguments))
    if arguments.json:
        print(json.dumps(rows, indent=1, default=str))
    return exit_code(rows, settings.strict)
