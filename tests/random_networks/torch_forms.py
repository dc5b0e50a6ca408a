"""A training step of any network by PyTorch's own layers, in float64: the reference's reference."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from forktask.cython_src.kernels.loss.loss import IGNORED
from forktask.cython_src.networks.layers import (
    GELU,
    Add,
    Attention,
    AveragePool,
    BatchNorm,
    Conv2d,
    Dropout,
    Embedding,
    FirstToken,
    GlobalAvgPool,
    Layer,
    LayerNorm,
    Linear,
    MaxPool,
    Network,
    NoNorm,
    Positions,
    ReLU,
    ReLU6,
    Sigmoid,
    TiedHead,
    Trigram,
)


def torch_step(
    network: Network, parameters: Mapping[str, np.ndarray], samples: np.ndarray, labels: np.ndarray
) -> tuple[float, dict[str, np.ndarray]]:
    """Return the mean loss and the gradients of all parameters, by name; dropout is left out."""
    import torch

    w = {name: torch.tensor(value, dtype=torch.float64, requires_grad=True) for name, value in parameters.items()}
    values = {"input": torch.tensor(samples, dtype=torch.int64 if network.tokens else torch.float64)}
    inputs = network.inputs()
    for layer in network.layers[:-1]:
        values[layer.name] = _layer(layer, w, [values[name] for name in inputs[layer.name]])
    logits = values[inputs[network.layers[-1].name][0]]
    targets = torch.tensor(np.array(labels), dtype=torch.int64).reshape(-1)
    counted = max(int((targets != IGNORED).sum()), 1)
    function = torch.nn.functional.cross_entropy
    loss = function(logits.reshape(len(targets), -1), targets, ignore_index=IGNORED, reduction="sum") / counted
    if w:  # a network of poolings alone learns nothing
        loss.backward()
    return loss.item(), {name: np.zeros(p.shape) if p.grad is None else p.grad.numpy() for name, p in w.items()}


def _layer(layer: Layer, w: Mapping, inputs: list):
    import torch
    import torch.nn.functional as f

    x, weight, bias = inputs[0], w.get(f"{layer.name}.weight"), w.get(f"{layer.name}.bias")
    match layer:
        case Conv2d():
            return f.conv2d(x, weight, bias, layer.stride, layer.padding, layer.dilation, layer.groups)
        case BatchNorm():
            mean, var = x.mean((0, 2, 3), keepdim=True), x.var((0, 2, 3), keepdim=True, unbiased=False)
            return (x - mean) / torch.sqrt(var + layer.eps) * weight[:, None, None] + bias[:, None, None]
        case MaxPool():
            return f.max_pool2d(x, layer.size, layer.stride or layer.size, layer.padding)
        case AveragePool():
            return f.avg_pool2d(x, layer.size, layer.stride or layer.size)
        case GlobalAvgPool():
            return x.mean((2, 3))
        case Linear() if x.ndim != 3:  # of images
            return f.linear(x.flatten(1), weight, bias)
        case ReLU():
            return torch.relu(x)
        case ReLU6():
            return f.relu6(x)
        case Sigmoid():
            return torch.sigmoid(x)
        case GELU():
            return f.gelu(x, approximate="tanh")
        case Dropout():
            return x
        case Add():
            return x + inputs[1]
        case Embedding():
            y = f.embedding(x, weight)
            return y + w[f"{layer.positions}.weight"][: x.shape[1]] if layer.positions else y
        case Positions():
            y = x + weight[: x.shape[1]]
            return y + w[f"{layer.types}.weight"][0] if layer.types else y
        case Trigram():
            zeros = torch.zeros_like(x[:, :1])
            return torch.cat([torch.cat([x[:, 1:], zeros], 1), x, torch.cat([zeros, x[:, :-1]], 1)], -1)
        case FirstToken():
            return x[:, :1]
        case NoNorm():
            return x * weight + bias
        case LayerNorm():
            return f.layer_norm(x, x.shape[-1:], weight, bias, layer.eps)
        case Linear():
            return f.linear(x, weight, bias)
        case Attention():
            q, k, v = (p.unflatten(-1, (layer.heads, -1)).transpose(1, 2) for p in torch.cat(inputs, -1).chunk(3, -1))
            y = f.scaled_dot_product_attention(q, k, v, is_causal=layer.causal)
            return y.transpose(1, 2).flatten(2)
        case TiedHead():
            own = w.get(f"{layer.name}.dense.weight")
            tied = w[f"{layer.embedding}.weight"]
            return f.linear(x, tied if own is None else torch.cat([tied, own], 1), bias)
    raise TypeError(f"no form for {layer!r}")
