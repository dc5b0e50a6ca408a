"""`forktask compare`, and the configuration that it and the function `compare` measure."""

from __future__ import annotations

from argparse import SUPPRESS, ArgumentParser, Namespace
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...cython_src.errors import UsageError
from ...cython_src.lowering.options import PlanOptions
from ...cython_src.records import fields, fields_of
from ..sampling.hogs import MOST_HOGS
from ..subjects.calls import OF_PROGRAMS, call_specs
from ..subjects.models import DEFAULT_MODELS, SERIAL, ModelSpec, describe_models, models_on
from ..subjects.peer_models import ProgramOptions
from ..sweep.configuration import AXES, BUDGET_S, KEYS, MOST_REPEATS, Configuration, Measure, configuration_from
from . import arguments as shared
from .sweeping import add_output, measure_and_report

# Arguments that concern plans and execution models.
PLANNED = {
    *("network", "models", "device", "trace", *(option.name for option in fields(PlanOptions))),
    *("profile", "profile_repeats", "counters", "simulate", "check", "check_iterations", "tuned", "memory_limit"),
}
DESCRIPTION = (
    "Train one network under several execution models, check that all computed the same weights, and write samples, a "
    "table, figures and a report in a folder. The same command again continues an interrupted session, "
    "or else adds one."
)


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments: one for each axis of a sweep and each way to measure it."""
    parser.epilog = f"Models and their options: {describe_models()}."
    shared.add_plan_options(parser, axes=True)
    shared.add_models(parser, DEFAULT_MODELS)
    shared.add_device(parser)
    shared.add_threads(parser)
    parser.add_argument(
        "--interference",
        type=shared.several_of(shared.number_from(0, most=MOST_HOGS)),
        default=(0,),
        metavar="K[,K...]",
        help="competing processes, which spin on the same CPUs; default: 0",
    )
    shared.add_fields(parser, Measure, leave_out=("budget_s", "inject", "sessions", "every_s"))
    parser.add_argument(
        "--budget",
        type=shared.duration,
        dest="budget_s",
        default=SUPPRESS,
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
            dest=f"{kind}s",
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


def calls_of(given: Mapping[str, Any]) -> tuple[ModelSpec, ...]:
    """Return the functions and programs among the arguments of a comparison. Raises `UsageError` for plans or models
    beside them."""
    of_programs = {name: given[name] for name in OF_PROGRAMS if name in given}
    calls = call_specs(given["functions"], given["programs"], given.get("reference", ""), **of_programs)
    network, models = AXES["network"].default, given.get("default_models", DEFAULT_MODELS)
    defaults = {"network": (network, (network,)), "models": (models,), "device": (None,), "trace": (False,)}
    chosen = [name for name in given if name in PLANNED and given[name] not in defaults.get(name, ())]
    if calls and chosen:
        raise UsageError(
            f"functions and programs run no plan and no execution model, got --{chosen[0].replace('_', '-')} too; "
            f"leave it out"
        )
    return calls


def comparison_of(given: Mapping[str, Any], folder: Path) -> Configuration:
    """Return the `Configuration` of a comparison. `given`: arguments of `forktask.compare` by name, at least models,
    threads, functions and programs, and the device; `folder`: where a network that is an object is written."""
    device, threads = given.get("device"), given["threads"]
    specs = calls_of(given) or models_on(device, shared.several(given["models"]), DEFAULT_MODELS)
    if SERIAL not in specs and any(spec.is_gpu for spec in specs):
        specs = (SERIAL, *specs)  # the speedup of a GPU is that over the CPU's serial run
    if threads == "cores" and device == "gpu" and all(spec.model.max_threads == 1 for spec in specs):
        threads = 1  # of the host
    settings = {name: given[name] for name in KEYS if name in given}
    if "repeats" not in settings or "budget_s" in settings:
        settings = {"repeats": MOST_REPEATS, "budget_s": BUDGET_S, **settings}
    settings |= {"models": [*map(str, specs)], "threads": threads}
    configuration = configuration_from(settings, folder).cut_for_threads()
    most = (max(configuration.grid.threads),)
    return replace(configuration, quick_axes={"threads": most} if given["threads"] == "cores" else {})


def configuration_of(arguments: Namespace) -> Configuration:
    """Return the `Configuration` that the command asks for."""
    configuration = comparison_of(vars(arguments), Path())
    shared.check_effects(fields_of(PlanOptions, vars(arguments)), arguments.network)
    return configuration


def call(arguments: Namespace) -> int:
    """Measure, and print tables."""
    return measure_and_report(configuration_of(arguments), arguments)
