"""`forktask compare`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ...cython_src.errors import UsageError
from ...cython_src.lowering.options import PlanOptions
from ..machine.topology import core_counts
from ..sampling.hogs import MOST_HOGS
from ..subjects.calls import OF_PROGRAMS, call_specs
from ..subjects.models import DEFAULT_MODELS, SERIAL, ModelSpec, describe_models, parse_models
from ..subjects.peer_models import ProgramOptions
from ..sweep.configuration import BUDGET_S, Measure, budgeted, configuration_from
from . import arguments as shared
from .sweeping import add_output, measure_and_report

# Options of measuring that concern plans.
PLANNED = {"profile", "profile_repeats", "counters", "simulate", "check", "check_iterations", "tuned", "memory_limit"}
DESCRIPTION = (
    "Train one network under several execution models, check that all computed the same weights, and write samples, a "
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
    add_calls(parser)
    add_output(parser)


def add_calls(parser: ArgumentParser, reference: bool = True) -> None:
    """Add `--function`, `--program` and the options of programs; `calls_of` reads them."""
    calls = parser.add_argument_group("functions and programs of your own instead of networks and models")
    for kind, example in (("function", "solver:step(n=1000)"), ("program", "./a.out 2000")):
        calls.add_argument(
            f"--{kind}",
            action="append",
            default=[],
            metavar="[NAME=]CALL",
            help=f"a {kind} such as {example!r}; may be repeated",
        )
    if reference:
        calls.add_argument(
            "--reference", default="", metavar="NAME", help="with which others are compared; default: the first"
        )
    shared.add_fields(calls, ProgramOptions, only=OF_PROGRAMS, before="of programs: ")


def calls_of(arguments: Namespace) -> Sequence[ModelSpec]:
    """Return the functions and programs that were asked for. Raises `UsageError` for plans or models beside them."""
    of_programs = {name: getattr(arguments, name) for name in OF_PROGRAMS if name in arguments}
    reference = getattr(arguments, "reference", "")
    calls = call_specs(arguments.function, arguments.program, reference, **of_programs)
    if calls:
        refuse_plans(arguments)
    return calls


def configuration_of(arguments: Namespace):
    """Return the `Configuration` that was asked for."""
    chosen = shared.models(arguments, peers=True)
    if calls := calls_of(arguments):
        chosen = arguments.models = calls
    if SERIAL not in chosen and any(spec.is_gpu for spec in parse_models(chosen)):
        chosen = (SERIAL, *chosen)  # the speedup of a GPU is that over the CPU's serial run
    threads = shared.threads(arguments)
    given = {
        **shared.plan_axes(arguments),
        "models": [*map(str, chosen)],
        "threads": arguments.threads if threads == core_counts() else threads,  # "cores" refuses no model
        "interference": arguments.interference,
        **shared.given(arguments, Measure),
    }
    if arguments.budget is not None:
        given["budget_s"] = float(arguments.budget)
    configuration = configuration_from(budgeted(given), Path())
    most = (max(configuration.grid.threads),)
    return replace(configuration, quick_axes={"threads": most} if arguments.threads == "cores" else {})


def refuse_plans(arguments: Namespace) -> None:
    """Raise `UsageError` for arguments that choose plans or models, beside functions and programs."""
    network = "cifar10_cnn"
    defaults = {"network": (network, (network,)), "models": (arguments.default_models,)}
    defaults |= {"device": (None,), "trace": (False,)}
    chosen = [n for n, values in defaults.items() if n in arguments and getattr(arguments, n) not in values]
    chosen += [*shared.given(arguments, PlanOptions), *shared.given(arguments, Measure).keys() & PLANNED]
    if chosen:
        raise UsageError(
            f"functions and programs run no plan and no execution model, got --{chosen[0].replace('_', '-')} too; "
            f"leave it out"
        )


def call(arguments: Namespace) -> int:
    """Measure, and print tables."""
    return measure_and_report(configuration_of(arguments), arguments)
