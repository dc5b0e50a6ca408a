"""`forktask plan`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from typing import Any

from ..tables import Column, text_table
from .arguments import add_json, add_plan_options, plan_products, show, texts, thread_count

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
    add_plan_options(parser, network=None, axes=True)
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
    from ...cython_src.networks.sizes import network_sizes
    from ..machine.topology import cpu_order
    from ..subjects.memory import describe_plans, parse_bytes
    from ..subjects.models import check_counts, runnable

    _check_effects(arguments)
    if arguments.network is None:
        show(arguments, [network_sizes(get_network(name)) for name in network_names()], _networks)
        return 0
    (network,) = arguments.network
    options = plan_products(arguments)
    model, threads = runnable(arguments.model), arguments.threads
    check_counts([model], [threads])
    limit = parse_bytes(arguments.memory_limit) if arguments.memory_limit else None
    picture = _draw(arguments, network, options) if arguments.graph else {}
    result = {
        "network": {"name": network} if own_plan(network) else network_sizes(get_network(network)),
        **describe_plans(network, options, model, len(cpu_order(threads)), limit),
        **picture,
    }
    show(arguments, result, _plans)
    return 0


def _check_effects(arguments: Namespace) -> None:
    """Raise `UsageError` for an option that would change nothing."""
    from ...cython_src.errors import UsageError
    from ...cython_src.lowering.options import PlanOptions
    from .arguments import given

    need, names = ("graph", PICTURE) if arguments.network else ("network", OF_PLANS)
    unused = [name for name in names if getattr(arguments, name) != names[name]]
    if need == "network":
        unused = [*given(arguments, PlanOptions), *unused]
    if unused and not getattr(arguments, need):
        raise UsageError(f"--{unused[0].replace('_', '-')} needs --{need}, got none; give it, or leave both out")


def _draw(arguments: Namespace, network: str, options: Sequence[Any]) -> dict[str, Any]:
    from ...cython_src.errors import UsageError
    from ...cython_src.lowering.lower import lower
    from ...cython_src.lowering.options import describe
    from ..task_graph.picture import write_picture
    from ..task_graph.view import view_of

    if len(options) > 1:
        raise UsageError(f"--graph draws one plan, got {len(options)}; give one value for each option")
    plan = lower(network, options[0], num_batches=1)
    barriers = arguments.barriers or BARRIERS
    title = ", ".join(filter(None, (plan.name, describe(options[0], ("batch", "phase")))))
    views = [view_of(plan, barrier, arguments.layers or (), arguments.phases or (), title) for barrier in barriers]
    path = write_picture(views, arguments.graph)
    return {"graph": str(path), "views": [view.describe() for view in views]}


def describe_input(shape: Sequence[int]) -> str:
    """Return the shape of an image, or the length of a sequence, in words."""
    return " x ".join(map(str, shape)) if len(shape) > 1 else f"{shape[0]} tokens"


def _networks(rows: list[dict[str, Any]]) -> str:

    columns = (
        Column("network", lambda r: r["name"]),
        Column("input", lambda r: describe_input(r["input_shape"]), True),
        Column("classes", lambda r: str(r["num_classes"]), True),
        Column("layers", lambda r: str(r["num_layers"]), True),
        Column("parameters", lambda r: f"{r['num_parameters']:,}", True),
        Column("of a sample: GFLOP forward", lambda r: f"{r['forward_flops'] / 1e9:.4g}", True),
        Column("training", lambda r: f"{r['train_flops'] / 1e9:.4g}", True),
        Column("activations", lambda r: f"{r['activation_bytes'] / 1e6:.2f} MB", True),
    )
    return "\n".join(text_table(columns, rows))


def _chosen(options: Mapping[str, Any]) -> str:
    from ...cython_src.lowering.options import describe, plan_options

    return describe(plan_options(options), leave_out=("batch",))


def _plans(result: Mapping[str, Any]) -> str:
    from ..subjects.memory import format_bytes, needs_text

    phases = (
        Column("phase", lambda r: r["phase"]),
        *(Column(name, lambda r, name=name: str(r[name]), True) for name in ("loops", "tasks")),
        Column("GFLOP", lambda r: f"{r['flops'] / 1e9:.4g}", True),
        Column("bytes moved", lambda r: format_bytes(r["bytes"]), True),
    )
    purposes = (
        Column("memory", lambda r: r["purpose"]),
        Column("", lambda r: format_bytes(r["bytes"]), True),
        Column("share", lambda r: f"{r['share']:.1%}", True),
    )
    sizes = result["network"]
    lines = [_networks([sizes]) if "num_layers" in sizes else sizes["name"]]  # a graph of the user's own is no network
    for row in result["plans"]:
        chosen = ", ".join(filter(None, (f"batch {row['options']['batch']}", _chosen(row["options"]))))
        if not row["planned"]:
            lines += ["", f"{chosen}: did not fit: {row['failure']}"]
            continue
        total = sum(row["planned"].values())
        planned = sorted(row["planned"].items(), key=lambda item: -item[1])
        parts = [{"purpose": name, "bytes": size, "share": size / total} for name, size in planned]
        lines += ["", f"{chosen}: {needs_text(total, result['free_bytes'])}", ""]
        lines += [*text_table(phases, row["phases"]), ""]
        lines += text_table(purposes, parts)
        if "failure" in row:
            lines.append(f"did not fit: {row['failure']}")
    return "\n".join([*lines, *(["", *result["views"], result["graph"]] if "graph" in result else [])])
