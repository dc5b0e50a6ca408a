"""Sizes of networks, and networks and plans in words, as `forktask plan` prints them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...cython_src.lowering.options import describe, plan_options
from ...cython_src.networks.layers import Attention, Conv2d, Linear, Network, SoftmaxCrossEntropy, TiedHead
from ...cython_src.typed_text import format_bytes
from ..tables import Column, text_column, text_table
from .memory import needs_text


def describe_input(shape: Sequence[int]) -> str:
    """Return the shape of an image, or the length of a sequence, in words."""
    return " x ".join(map(str, shape)) if len(shape) > 1 else f"{shape[0]} tokens"


def network_sizes(network: Network) -> dict[str, Any]:
    """Sizes of a network: name, input_shape, num_classes, num_layers, num_parameters; forward_flops, train_flops and
    activation_bytes of one sample. Products and sums of convolutions, linear layers and attention count; training has
    two more products of the same size, but no data gradient for layers that read the image."""
    forward, of_image, activations = 0.0, 0.0, 0
    inputs = network.inputs()
    shapes = network.parameter_shapes()
    for layer, before, after in network.shapes():
        if isinstance(layer, Conv2d):
            flops = 2.0 * math.prod(shapes[f"{layer.name}.weight"]) * math.prod(after[1:])
        elif isinstance(layer, Linear | TiedHead):
            flops = 2.0 * math.prod(after) * (before[1] if network.tokens else math.prod(before))
        elif isinstance(layer, Attention):
            flops = 4.0 * after[0] * math.prod(after) / (1 + layer.causal)
        else:
            flops = 0.0
        forward += flops
        of_image += flops if inputs[layer.name] == ("input",) else 0.0
        if not isinstance(layer, SoftmaxCrossEntropy):
            activations += 4 * math.prod(after)
    return {
        **{name: getattr(network, name) for name in ("name", "input_shape", "num_classes")},
        "num_layers": len(network.layers),
        "num_parameters": network.num_parameters,
        "forward_flops": forward,
        "train_flops": 3 * forward - of_image,
        "activation_bytes": activations,
    }


def networks_text(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the table of networks, from what `network_sizes` returns of each."""
    columns = (
        text_column("name", "network"),
        Column("input", lambda r: describe_input(r["input_shape"]), True),
        Column("classes", lambda r: str(r["num_classes"]), True),
        Column("layers", lambda r: str(r["num_layers"]), True),
        Column("parameters", lambda r: f"{r['num_parameters']:,}", True),
        Column("of a sample: GFLOP forward", lambda r: f"{r['forward_flops'] / 1e9:.4g}", True),
        Column("training", lambda r: f"{r['train_flops'] / 1e9:.4g}", True),
        Column("activations", lambda r: f"{r['activation_bytes'] / 1e6:.2f} MB", True),
    )
    return "\n".join(text_table(columns, rows))


PHASES = (
    text_column("phase"),
    Column("loops", lambda r: str(r["loops"]), True),
    Column("tasks", lambda r: str(r["tasks"]), True),
    Column("GFLOP", lambda r: f"{r['flops'] / 1e9:.4g}", True),
    Column("bytes moved", lambda r: format_bytes(r["bytes"]), True),
)
PURPOSES = (
    text_column("purpose", "memory"),
    Column("", lambda r: format_bytes(r["bytes"]), True),
    Column("share", lambda r: f"{r['share']:.1%}", True),
)


def plans_text(result: Mapping[str, Any]) -> str:
    """Return the tables of `describe_plans`, below those of "network", and a note on pictures, if any were drawn."""
    sizes = result["network"]
    lines = [networks_text([sizes]) if "num_layers" in sizes else sizes["name"]]  # a graph of the user's own
    for row in result["plans"]:
        others = describe(plan_options(row["options"]), leave_out=("batch",))
        chosen = ", ".join(filter(None, (f"batch {row['options']['batch']}", others)))
        if not row["planned"]:
            lines += ["", f"{chosen}: did not fit: {row['failure']}"]
            continue
        total = sum(row["planned"].values())
        planned = sorted(row["planned"].items(), key=lambda item: -item[1])
        parts = [{"purpose": name, "bytes": size, "share": size / total} for name, size in planned]
        lines += ["", f"{chosen}: {needs_text(total, result['free_bytes'])}", ""]
        lines += [*text_table(PHASES, row["phases"]), "", *text_table(PURPOSES, parts)]
        if "failure" in row:
            lines.append(f"did not fit: {row['failure']}")
    return "\n".join([*lines, *(["", *result["views"], result["graph"]] if "graph" in result else [])])
