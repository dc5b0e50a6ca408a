"""JAX's functions of forktask's networks, layer by layer from their descriptions."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from itertools import product
from typing import Any

from ...cython_src.errors import UsageError
from ...cython_src.kernels.loss.loss import IGNORED
from ...cython_src.networks import layers as nn


def forward(network: nn.Network, values: Mapping[str, Any], samples: Any, key: Any = None) -> tuple[Any, dict]:
    """Return a network's logits and the statistics after the step; `key`: of random numbers in training, else None.

    Parameters
    ----------
    values : mapping
        Parameters and statistics by PyTorch's names and in its shapes, but of convolutions (rows, columns, in, out).
    samples : array
        Tokens, or images with their channels in the innermost dimension.
    """
    tensors, statistics = {"input": samples}, {}
    inputs = network.inputs()
    for number, layer in enumerate(network.layers):
        if isinstance(layer, nn.SoftmaxCrossEntropy):
            continue  # the loss computes it
        parts = [tensors[name] for name in inputs[layer.name]]
        if isinstance(layer, nn.BatchNorm):
            x, of_step = _batch_norm(layer, values, parts[0], key is not None)
            statistics |= of_step
        elif isinstance(layer, nn.Dropout):
            x = _dropout(layer, parts[0], key, number)
        else:
            x = _applied(network, layer, values, parts)
        last = tensors[layer.name] = x
    return last, statistics


def mean_loss(logits: Any, labels: Any, smoothing: float) -> Any:
    """Return the mean cross-entropy, with label smoothing, over the samples or tokens whose label counts."""
    import jax
    import jax.numpy as jnp

    logs = jax.nn.log_softmax(logits)
    counted = labels != IGNORED
    picked = jnp.take_along_axis(logs, jnp.where(counted, labels, 0)[..., None], -1)[..., 0]
    losses = -(1 - smoothing) * picked - smoothing * logs.mean(-1)
    return jnp.sum(jnp.where(counted, losses, 0.0)) / jnp.sum(counted)


def _applied(network: nn.Network, layer: nn.Layer, values: Mapping[str, Any], parts: list) -> Any:
    """Return the output of a layer of its inputs alone."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    x, weight, bias = parts[0], values.get(f"{layer.name}.weight"), values.get(f"{layer.name}.bias")
    match layer:
        case nn.Conv2d():
            axes = ("NHWC", "HWIO", "NHWC")
            edges, dilation = [(layer.padding, layer.padding)] * 2, (layer.dilation,) * 2
            strides = (layer.stride,) * 2
            x = lax.conv_general_dilated(x, weight, strides, edges, None, dilation, axes, layer.groups)
            return x if bias is None else x + bias
        case nn.Linear():
            x = x.transpose(0, 3, 1, 2).reshape(len(x), -1) if x.ndim == 4 else x  # weights are of channels first
            x = x @ weight.T
            return x if bias is None else x + bias
        case nn.ReLU() | nn.ReLU6() | nn.Sigmoid():
            return getattr(jax.nn, type(layer).__name__.lower())(x)
        case nn.GELU():
            return jax.nn.gelu(x, approximate=True)
        case nn.Add():
            return x + parts[1]
        case nn.MaxPool():
            return _windows(x, layer, jnp.maximum, layer.padding)
        case nn.AveragePool():
            return _windows(x, layer, jnp.add) / layer.size**2
        case nn.GlobalAvgPool():
            return x.mean((1, 2))
        case nn.Embedding():
            places = values[f"{layer.positions}.weight"][: x.shape[1]] if layer.positions else 0.0
            return weight[x] + places
        case nn.Positions():
            types = values[f"{layer.types}.weight"][0] if layer.types else 0.0
            return x + weight[: x.shape[1]] + types
        case nn.Trigram():
            padded = jnp.pad(x, ((0, 0), (1, 1), (0, 0)))
            return jnp.concatenate([padded[:, 2:], x, padded[:, :-2]], -1)
        case nn.FirstToken():
            return x[:, :1]
        case nn.NoNorm():
            return x * weight + bias
        case nn.LayerNorm():
            centred = x - x.mean(-1, keepdims=True)
            return centred * lax.rsqrt((centred**2).mean(-1, keepdims=True) + layer.eps) * weight + bias
        case nn.Attention():
            three = parts if len(parts) == 3 else jnp.split(x, 3, -1)
            heads = [part.reshape(*part.shape[:2], layer.heads, -1) for part in three]
            return jax.nn.dot_product_attention(*heads, is_causal=layer.causal).reshape(three[0].shape)
        case nn.TiedHead():
            table = values[f"{layer.embedding}.weight"]
            width = table.shape[1]
            y = x[..., :width] @ table.T
            if (further := values.get(f"{layer.name}.dense.weight")) is not None:
                y = y + x[..., width:] @ further.T
            return y if bias is None else y + bias
    raise UsageError(f"model 'jax' has no function for {layer!r} of network {network.name!r}; leave it out")


def _windows(x: Any, layer: nn.MaxPool | nn.AveragePool, fold: Any, padding: int = 0) -> Any:
    """Return each window's elements folded into one, as slices of the images: the gradient of XLA's own windows takes
    4 to 30 times as long."""
    import jax.numpy as jnp

    edges, stride = (padding, padding), layer.stride or layer.size
    x = jnp.pad(x, ((0, 0), edges, edges, (0, 0)), constant_values=-jnp.inf)
    rows, columns = ((n - layer.size) // stride * stride + 1 for n in x.shape[1:3])
    places = product(range(layer.size), repeat=2)
    return reduce(fold, (x[:, i : i + rows : stride, j : j + columns : stride] for i, j in places))


def _batch_norm(layer: nn.BatchNorm, values: Mapping[str, Any], x: Any, training: bool) -> tuple[Any, dict]:
    """Return normalized images, and the running statistics after a step."""
    from jax import lax

    names = [f"{layer.name}.running_{kind}" for kind in ("mean", "var")]
    running = [values[name] for name in names]
    mean, variance = running
    statistics = {}
    if training:
        mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
        count = x.size // x.shape[-1]
        of_step = mean, variance * (count / max(count - 1, 1))
        moved = [old + layer.momentum * (new - old) for old, new in zip(running, of_step, strict=True)]
        statistics = dict(zip(names, moved, strict=True))
    scale = lax.rsqrt(variance + layer.eps) * values[f"{layer.name}.weight"]
    return (x - mean) * scale + values[f"{layer.name}.bias"], statistics


def _dropout(layer: nn.Dropout, x: Any, key: Any, number: int) -> Any:
    import jax
    import jax.numpy as jnp

    if key is None:
        return x
    kept = jax.random.bernoulli(jax.random.fold_in(key, number), 1 - layer.rate, x.shape)
    return jnp.where(kept, x / (1 - layer.rate), 0.0)
