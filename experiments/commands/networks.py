"""`forktask networks`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from typing import Any

from .arguments import add_json, show

HELP = "list the networks with parameters, FLOPs and activation bytes"
DESCRIPTION = (
    "List the networks: input, classes, layers, parameters, and for one sample the floating-point operations of "
    "inference and of a training step (convolutions counted in direct form) and the bytes of all layers' outputs in "
    "float32."
)


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    add_json(parser)


def call(arguments: Namespace) -> int:
    """List the networks."""
    from ...cython_src.networks.registry import get_network, network_names
    from ...cython_src.networks.sizes import network_sizes

    show(arguments, [network_sizes(get_network(name)) for name in network_names()], _as_text)
    return 0


def describe_input(shape: Sequence[int]) -> str:
    """Return the shape of an image, or the length of a sequence, in words."""
    return " x ".join(map(str, shape)) if len(shape) > 1 else f"{shape[0]} tokens"


def _as_text(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = [
        f"{'network':22} {'input':>12} {'classes':>8} {'layers':>7} {'parameters':>11}   of a sample:  "
        f"{'MFLOP forward':>13} {'MFLOP training':>15} {'activations':>12}"
    ]
    for row in rows:
        shape = describe_input(row["input_shape"])
        lines.append(
            f"{row['name']:22} {shape:>12} {row['num_classes']:8} {row['num_layers']:7} {row['num_parameters']:11,} "
            f"{row['forward_flops'] / 1e6:28.1f} {row['train_flops'] / 1e6:15.1f} "
            f"{row['activation_bytes'] / 1e6:9.2f} MB"
        )
    return "\n".join(lines)
