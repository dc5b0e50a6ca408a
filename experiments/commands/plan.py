"""`forktask plan`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterable
from pathlib import Path

from ...cython_src.errors import UsageError
from ...cython_src.lowering.options import PlanOptions
from ...cython_src.records import fields_of
from .arguments import NETWORKS, add_json, add_plan_options, check_effects, show, texts, thread_count

DESCRIPTION = (
    "List the networks: input, classes, layers, parameters, and for one sample the floating-point operations of "
    "inference and of a training step (convolutions counted in direct form) and the bytes of all layers' outputs in "
    "float32. With --network, show the plan of a training step or inference: its loops, and its bytes by "
    "purpose, known before it runs. Several batches make a sweep; where a plan does not fit, a fitting one is named, "
    "and a large plan that cannot fit is not made."
)
# Arguments that are for a picture, and those that are for any plan, with their defaults.
PICTURE = dict.fromkeys(("layers", "phases", "barriers"))
OF_PLANS = {"model": "taskiter", "threads": 1, "memory_limit": None, "graph": None, **PICTURE}
BARRIERS = ("phase", "none")


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--network", type=texts, metavar="N", help=NETWORKS)
    add_plan_options(parser, network=False, axes=True)
    parser.add_argument("--model", default=OF_PLANS["model"], help="execution model; default: %(default)s")
    parser.add_argument("--threads", type=thread_count, default=OF_PLANS["threads"], help="default: %(default)s")
    parser.add_argument("--memory-limit", metavar="BYTES", help="such as 1500M or 2GiB")
    parser.add_argument(
        "--graph", metavar="FILE", help="draw the tasks and their dependences into FILE.svg, .pdf or .png"
    )
    parser.add_argument(
        "--layers",
        type=texts,
        metavar="L[,L...]",
        help="layers in the picture, each with all below it, such as h.0, the others folded; default: all",
    )
    parser.add_argument(
        "--phases", type=texts, metavar="P[,P...]", help="of load, forward, backward, update, in the picture; all"
    )
    parser.add_argument(
        "--barriers",
        type=texts,
        metavar="B[,B...]",
        help=f"one panel for each of loop, phase, iteration, none; default: {','.join(BARRIERS)}",
    )
    add_json(parser)


def call(arguments: Namespace) -> int:
    """Describe a plan, or list the networks."""
    from ...cython_src.lowering.lower import own_plan
    from ...cython_src.networks.registry import get_network, network_names
    from ..machine.topology import cpu_order
    from ..subjects.memory import describe_plans, parse_bytes
    from ..subjects.models import runnable
    from ..subjects.plan_text import network_sizes, networks_text, plans_text
    from ..sweep.configuration import AXES, configuration_from

    given = fields_of(PlanOptions, vars(arguments))
    _check_needed(arguments, given)
    if arguments.network is None:
        show(arguments, [network_sizes(get_network(name)) for name in network_names()], networks_text)
        return 0
    if len(arguments.network) > 1:
        named = ",".join(arguments.network)
        raise UsageError(f"--network takes one value, got {named!r}; give the command once for each")
    check_effects(given, arguments.network)
    model, axes = runnable(arguments.model), {name: value for name, value in vars(arguments).items() if name in AXES}
    plans = configuration_from({**axes, "models": str(model)}, Path()).plans()
    network, options = plans[0][0], [chosen for _, chosen in plans]
    limit = parse_bytes(arguments.memory_limit) if arguments.memory_limit else None
    picture = {}
    if arguments.graph:
        if len(options) > 1:
            raise UsageError(f"--graph draws one plan, got {len(options)}; give one value for each option")
        from ..task_graph.picture import draw_plan

        shown = {name: getattr(arguments, name) or () for name in ("layers", "phases")}
        picture = draw_plan(network, options[0], arguments.graph, arguments.barriers or BARRIERS, **shown)
    result = {
        "network": {"name": network} if own_plan(network) else network_sizes(get_network(network)),
        **describe_plans(network, options, model, len(cpu_order(arguments.threads)), limit),
        **picture,
    }
    show(arguments, result, plans_text)
    return 0


def _check_needed(arguments: Namespace, given: Iterable[str]) -> None:
    """Raise `UsageError` for an option that would change nothing."""
    need, names = ("graph", PICTURE) if arguments.network else ("network", OF_PLANS)
    unused = [name for name in names if getattr(arguments, name) != names[name]]
    if need == "network":
        unused = [*given, *unused]
    if unused and not getattr(arguments, need):
        raise UsageError(f"--{unused[0].replace('_', '-')} needs --{need}, got none; give it, or leave both out")
