"""A training step of any network by PyTorch's own layers, in float64: the reference's reference."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

import forktask as ft
from forktask.cython_src.kernels.loss.loss import IGNORED


def torch_step(
    network: ft.Network, parameters: Mapping[str, np.ndarray], samples: np.ndarray, labels: np.ndarray
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


def _layer(layer: ft.Layer, w: Mapping, inputs: list):
    import torch
    import torch.nn.functional as f

    x, weight, bias = inputs[0], w.get(f"{layer.name}.weight"), w.get(f"{layer.name}.bias")
    match layer:
        case ft.Conv2d():
            return f.conv2d(x, weight, bias, layer.stride, layer.padding, layer.dilation, layer.groups)
        case ft.BatchNorm():
            mean, var = x.mean((0, 2, 3), keepdim=True), x.var((0, 2, 3), keepdim=True, unbiased=False)
            return (x - mean) / torch.sqrt(var + layer.eps) * weight[:, None, None] + bias[:, None, None]
        case ft.MaxPool():
            return f.max_pool2d(x, layer.size, layer.stride or layer.size, layer.padding)
        case ft.AveragePool():
            return f.avg_pool2d(x, layer.size, layer.stride or layer.size)
        case ft.GlobalAvgPool():
            return x.mean((2, 3))
        case ft.Linear() if x.ndim != 3:  # of images
            return f.linear(x.flatten(1), weight, bias)
        case ft.ReLU():
            return torch.relu(x)
        case ft.ReLU6():
            return f.relu6(x)
        case ft.Sigmoid():
            return torch.sigmoid(x)
        case ft.GELU():
            return f.gelu(x, approximate="tanh")
        case ft.Dropout():
            return x
        case ft.Add():
            return x + inputs[1]
        case ft.Embedding():
            y = f.embedding(x, weight)
            return y + w[f"{layer.positions}.weight"][: x.shape[1]] if layer.positions else y
        case ft.Positions():
            y = x + weight[: x.shape[1]]
            return y + w[f"{layer.types}.weight"][0] if layer.types else y
        case ft.Trigram():
            zeros = torch.zeros_like(x[:, :1])
            return torch.cat([torch.cat([x[:, 1:], zeros], 1), x, torch.cat([zeros, x[:, :-1]], 1)], -1)
        case ft.FirstToken():
            return x[:, :1]
        case ft.NoNorm():
            return x * weight + bias
        case ft.LayerNorm():
            return f.layer_norm(x, x.shape[-1:], weight, bias, layer.eps)
        case ft.Linear():
            return f.linear(x, weight, bias)
        case ft.Attention():
            q, k, v = (p.unflatten(-1, (layer.heads, -1)).transpose(1, 2) for p in torch.cat(inputs, -1).chunk(3, -1))
            y = f.scaled_dot_product_attention(q, k, v, is_causal=layer.causal)
            return y.transpose(1, 2).flatten(2)
        case ft.TiedHead():
            own = w.get(f"{layer.name}.dense.weight")
            tied = w[f"{layer.embedding}.weight"]
            return f.linear(x, tied if own is None else torch.cat([tied, own], 1), bias)
    raise TypeError(f"no form for {layer!r}")
