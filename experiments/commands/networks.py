"""`forktask networks`: the networks there are, with their sizes."""

from __future__ import annotations

import json
import math
from argparse import Namespace
from typing import Any

from ...cython_src.networks.layers import Convolution, FullyConnected, NetworkSpec, Softmax
from ...cython_src.networks.registry import get_network, network_names


def add_parser(subparsers) -> None:
    """Add `networks`."""
    parser = subparsers.add_parser(
        "networks",
        help="list the networks with parameters, FLOPs and activation bytes",
        description="List the networks: input, classes, layers, parameters, and for one image the floating-point "
        "operations of inference and of a training step (convolutions counted in direct form) and the bytes of all "
        "layers' outputs in float32.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run_networks)


def describe(network: NetworkSpec) -> dict[str, Any]:
    """Sizes of a network.

    Returns
    -------
    dict
        name, input_shape, num_classes, num_layers, num_parameters; forward_flops, train_flops and activation_bytes of
        one image. Products and sums of convolutions and fully connected layers count; training has two more
        products of the same size, but no data gradient for layers that read the image.
    """
    forward, of_image, activations = 0.0, 0.0, 0
    inputs = network.inputs()
    shapes = network.parameter_shapes()
    for layer, _, after in network.shapes():
        if isinstance(layer, Convolution | FullyConnected):
            flops = 2.0 * math.prod(shapes[f"{layer.name}.weight"]) * math.prod(after[1:])
            forward += flops
            of_image += flops if inputs[layer.name] == ("input",) else 0.0
        if not isinstance(layer, Softmax):
            activations += 4 * math.prod(after)
    return {
        "name": network.name,
        "input_shape": network.input_shape,
        "num_classes": network.num_classes,
        "num_layers": len(network.layers),
        "num_parameters": network.num_parameters,
        "forward_flops": forward,
        "train_flops": 3 * forward - of_image,
        "activation_bytes": activations,
    }


def run_networks(arguments: Namespace) -> int:
    """`forktask networks`."""
    rows = [describe(get_network(name)) for name in network_names()]
    if arguments.json:
        print(json.dumps(rows, indent=1))
        return 0
    print(
        f"{'network':22} {'input':>12} {'classes':>8} {'layers':>7} {'parameters':>11}   of one image: "
        f"{'MFLOP forward':>13} {'MFLOP training':>15} {'activations':>12}"
    )
    for row in rows:
        shape = " x ".join(map(str, row["input_shape"]))
        print(
            f"{row['name']:22} {shape:>12} {row['num_classes']:8} {row['num_layers']:7} {row['num_parameters']:11,} "
            f"{row['forward_flops'] / 1e6:28.1f} {row['train_flops'] / 1e6:15.1f} "
            f"{row['activation_bytes'] / 1e6:9.2f} MB"
        )
    return 0
