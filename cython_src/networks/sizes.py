"""Sizes of a network: parameters, operations and bytes of one sample."""

from __future__ import annotations

import math
from typing import Any

from .layers import Attention, Conv2d, Linear, Network, SoftmaxCrossEntropy, TiedHead


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
        "name": network.name,
        "input_shape": network.input_shape,
        "num_classes": network.num_classes,
        "num_layers": len(network.layers),
        "num_parameters": network.num_parameters,
        "forward_flops": forward,
        "train_flops": 3 * forward - of_image,
        "activation_bytes": activations,
    }
