"""A training step in plain NumPy and float64: the truth that kernels and plans are checked against.

Nothing here knows of plans, blocks or layouts; of a network, only its description is shared. Each layer is a
forward formula and its derivative, written for reading; images are (N, C, H, W), tokens (N, T, C): samples, tokens,
features. Weights have PyTorch's layouts.

    Conv2d          Y[n, o, y, x] = b[o] + sum over c, i, j of W[o, c, i, j] * X[n, c, s y + d i - p, s x + d j - p],
                    c over the channels of o's group
    BatchNorm       Y = w (X - mean) / sqrt(var + eps) + b with mean and variance of the batch, or in evaluation with
                    the running ones: running = (1 - momentum) running + momentum new, the variance then unbiased
    ReLU, ReLU6     Y = max(X, 0), and min(Y, 6); the derivative is 0 where Y is 0 or 6
    Sigmoid         Y = 1 / (1 + exp(-X))
    GELU            Y = 0.5 X (1 + tanh(sqrt(2 / pi) (X + 0.044715 X^3)))
    Add             Y = X1 + X2
    MaxPool         Y = the largest X of each window; of equal ones the first in row order gets the gradient
    AveragePool     Y = the mean of each window
    Dropout         Y = X times the layer's mask, which is given; without one, X
    GlobalAvgPool   Y = the mean over all pixels
    Linear          Y = X @ W.T + b, of an image over all of it, in the order C, H, W
    Embedding       Y[n, t] = W[token[n, t]] + P[t]
    Positions       Y[n, t] = X[n, t] + P[t] + S[0]
    Trigram         Y[n, t] = X[n, t + 1], X[n, t], X[n, t - 1] side by side, zeros outside of the sample
    FirstToken      Y[n] = X[n, 0]
    NoNorm          Y = w X + b
    LayerNorm       Y = w (X - mean) / sqrt(var + eps) + b, mean and variance of each token's features
    Attention       Y = softmax(Q K^T / sqrt(d)) V for each sample and head, without the later keys if it is causal
    TiedHead        Y = X @ W.T + b with the embedding's W, to which rows of the head's own may be joined
    SoftmaxCrossEntropy
                    probabilities; the loss is the mean, over labels that are not IGNORED, of -log of the label's, or
                    with label smoothing e of (1 - e) of that and e times the mean of all classes'

The gradient of a layer's output is the sum of what all layers that take it send back; that of tied weights is the sum
of the head's and the embedding's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

import forktask as ft
from forktask.cython_src.errors import UsageError

SCALE, CUBE = math.sqrt(2 / math.pi), 0.044715
IGNORED = -100


@dataclass
class Step:
    """What one step computed.

    Attributes
    ----------
    loss : float
        Mean cross-entropy of the batch.
    correct : int
        Labels that have the largest logit.
    activations : dict of str to float64 ndarray
        Output of each layer by its name.
    gradients : dict of str to float64 ndarray
        Of parameters by name, of activations under the layer's name.
    statistics : dict of str to float64 ndarray
        Running statistics after the step, by name.
    """

    loss: float
    correct: int
    activations: dict[str, np.ndarray]
    gradients: dict[str, np.ndarray] = field(default_factory=dict)
    statistics: dict[str, np.ndarray] = field(default_factory=dict)


def forward(
    network: ft.Network,
    parameters: Mapping[str, np.ndarray],
    samples: np.ndarray,
    labels: np.ndarray,
    statistics: Mapping[str, np.ndarray] | None = None,
    training: bool = True,
    label_smoothing: float = 0.0,
    masks: Mapping[str, np.ndarray] | None = None,
) -> Step:
    """Loss, number of right answers and all activations.

    Parameters
    ----------
    network : Network
        Its last layer is SoftmaxCrossEntropy.
    parameters : mapping of str to ndarray
    samples : images, shape (N, C, H, W), or tokens, (N, T)
    labels : integers, shape (N,); of tokens (N, T), or (N, 1) of classes
    statistics : mapping of str to ndarray, optional
        Running statistics; default: mean 0 and variance 1.
    training : bool
        Whether norms use the batch's statistics or the running ones.
    label_smoothing : float
    masks : mapping of str to ndarray, optional
        What dropout layers multiply with, by their names.
    """
    weights = {name: np.asarray(value, np.float64) for name, value in parameters.items()}
    activations = {"input": np.asarray(samples, np.int64 if network.tokens else np.float64)}
    running = {
        name: np.array(statistics[name], np.float64) if statistics else np.full(shape, float(name.endswith("_var")))
        for name, shape in network.statistic_shapes().items()
    }
    inputs = network.inputs()
    for layer in network.layers[:-1]:
        x = [activations[name] for name in inputs[layer.name]]
        if isinstance(layer, ft.Dropout):
            activations[layer.name] = x[0] * (masks or {}).get(layer.name, 1.0)
        else:
            activations[layer.name] = _layer_forward(layer, weights, x, running, training)
    logits = activations[inputs[network.layers[-1].name][0]]
    shifted = logits - logits.max(axis=-1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    activations["softmax"] = np.exp(logs)
    targets, counted = _targets(labels, logits.shape[-1], label_smoothing)
    loss = -float((targets * logs).sum()) / max(counted.sum(), 1)
    return Step(loss, int((logits.argmax(axis=-1) == labels).sum()), activations, statistics=running)


def forward_backward(
    network: ft.Network,
    parameters: Mapping[str, np.ndarray],
    samples: np.ndarray,
    labels: np.ndarray,
    statistics: Mapping[str, np.ndarray] | None = None,
    label_smoothing: float = 0.0,
    masks: Mapping[str, np.ndarray] | None = None,
) -> Step:
    """`forward` in training, and the gradients of the mean loss for every parameter and activation."""
    step = forward(network, parameters, samples, labels, statistics, True, label_smoothing, masks)
    weights = {name: np.asarray(value, np.float64) for name, value in parameters.items()}
    inputs, softmax = network.inputs(), step.activations["softmax"]
    # d loss / d logits = (softmax - target) / number of labels
    targets, counted = _targets(labels, softmax.shape[-1], label_smoothing)
    step.gradients[inputs[network.layers[-1].name][0]] = (softmax - targets) * counted / max(counted.sum(), 1)
    for layer in reversed(network.layers[:-1]):
        x = [step.activations[name] for name in inputs[layer.name]]
        dy, y = step.gradients[layer.name], step.activations[layer.name]
        if isinstance(layer, ft.Dropout):
            parts, own = [dy * (masks or {}).get(layer.name, 1.0)], {}
        else:
            parts, own = _layer_backward(layer, weights, x, y, dy)
        for name, dx in (*zip(inputs[layer.name], parts, strict=False), *own.items()):
            step.gradients[name] = step.gradients[name] + dx if name in step.gradients else dx
    return step


def _targets(labels, classes, label_smoothing):
    """What the probabilities should be, (..., classes), and whether a label counts, (..., 1)."""
    counted = np.asarray(labels)[..., None] != IGNORED
    hits = np.asarray(labels)[..., None] == np.arange(classes)
    return (label_smoothing / classes + (1 - label_smoothing) * hits) * counted, counted


def _layer_forward(layer, weights, inputs, statistics, training):
    x, weight, bias = inputs[0], weights.get(f"{layer.name}.weight"), weights.get(f"{layer.name}.bias")
    match layer:
        case ft.Conv2d():
            n, c = x.shape[:2]
            windows = _windows(x, layer)
            windows = windows.reshape(n, layer.groups, c // layer.groups, *windows.shape[2:])
            weight = weight.reshape(layer.groups, -1, *weight.shape[1:])
            y = np.einsum("ngchwij,gocij->ngohw", windows, weight, optimize=True)
            y = y.reshape(n, -1, *y.shape[3:])
            return y + bias[:, None, None] if layer.bias else y
        case ft.BatchNorm():
            mean, var = statistics[f"{layer.name}.running_mean"], statistics[f"{layer.name}.running_var"]
            if training:
                batch_mean, batch_var = x.mean(axis=(0, 2, 3)), x.var(axis=(0, 2, 3))
                unbiased = batch_var * x[:, 0].size / max(x[:, 0].size - 1, 1)
                for kept, new in ((mean, batch_mean), (var, unbiased)):
                    kept += layer.momentum * (new - kept)
                mean, var = batch_mean, batch_var
            scale = weight / np.sqrt(var + layer.eps)
            return (x - mean[:, None, None]) * scale[:, None, None] + bias[:, None, None]
        case ft.ReLU():
            return np.maximum(x, 0.0)
        case ft.ReLU6():
            return np.clip(x, 0.0, 6.0)
        case ft.Sigmoid():
            return 1 / (1 + np.exp(-x))
        case ft.Add():
            return x + inputs[1]
        case ft.MaxPool():
            return _pool_windows(x, layer, -np.inf).max(axis=-1)
        case ft.AveragePool():
            return _pool_windows(x, layer, 0.0).mean(axis=-1)
        case ft.GlobalAvgPool():
            return x.mean(axis=(2, 3))
        case ft.Linear():
            y = _rows(x) @ weight.T
            return y + bias if layer.bias else y
        case ft.Embedding():
            y = weight[x]
            return y + weights[f"{layer.positions}.weight"][: x.shape[1]] if layer.positions else y
        case ft.Positions():
            y = x + weight[: x.shape[1]]
            return y + weights[f"{layer.types}.weight"][0] if layer.types else y
        case ft.Trigram():
            return np.concatenate([_shifted(x, 1), x, _shifted(x, -1)], axis=-1)
        case ft.FirstToken():
            return x[:, :1]
        case ft.NoNorm():
            return x * weight + bias
        case ft.LayerNorm():
            return _normalised(layer, x)[0] * weight + bias
        case ft.Attention():
            _, _, v, p = _attention(layer, np.concatenate(inputs, axis=-1))
            return _joined(p @ v)
        case ft.GELU():
            return 0.5 * x * (1 + np.tanh(SCALE * (x + CUBE * x**3)))
        case ft.TiedHead():
            y = x @ _head_weights(layer, weights).T
            return y + bias if layer.bias else y
    raise UsageError(f"the reference has no formula for {layer!r}; add one")


def _layer_backward(layer, weights, inputs, y, dy):
    """Return the gradients of the inputs, and of the parameters by name."""
    x = inputs[0]
    weight, bias = f"{layer.name}.weight", f"{layer.name}.bias"
    match layer:
        case ft.Conv2d():
            n, c = x.shape[:2]
            g, height, width = layer.groups, *dy.shape[2:]
            windows = _windows(x, layer)
            windows = windows.reshape(n, g, c // g, *windows.shape[2:])
            dy_groups = dy.reshape(n, g, -1, height, width)
            weight_groups = weights[weight].reshape(g, -1, *weights[weight].shape[1:])
            gradient = np.einsum("ngohw,ngchwij->gocij", dy_groups, windows, optimize=True)
            own = {weight: gradient.reshape(weights[weight].shape)}
            if layer.bias:
                own[bias] = dy.sum(axis=(0, 2, 3))
            # Every output pixel sends dY * W back to the window it came from.
            p, s, d = layer.padding, layer.stride, layer.dilation
            dx = np.zeros((n, g, c // g, x.shape[2] + 2 * p, x.shape[3] + 2 * p))
            for i in range(layer.kernel):
                for j in range(layer.kernel):
                    rows = slice(d * i, d * i + (height - 1) * s + 1, s)
                    columns = slice(d * j, d * j + (width - 1) * s + 1, s)
                    dx[..., rows, columns] += np.einsum(
                        "ngohw,goc->ngchw", dy_groups, weight_groups[..., i, j], optimize=True
                    )
            return [dx.reshape(n, c, *dx.shape[3:])[:, :, p : p + x.shape[2], p : p + x.shape[3]]], own
        case ft.BatchNorm():
            inv_std = 1 / np.sqrt(x.var(axis=(0, 2, 3)) + layer.eps)
            xhat = (x - x.mean(axis=(0, 2, 3))[:, None, None]) * inv_std[:, None, None]
            own = {weight: (dy * xhat).sum(axis=(0, 2, 3)), bias: dy.sum(axis=(0, 2, 3))}
            mean_dy, mean_xhat = ((dy * v).mean(axis=(0, 2, 3))[:, None, None] for v in (np.ones_like(x), xhat))
            return [(weights[weight] * inv_std)[:, None, None] * (dy - mean_dy - xhat * mean_xhat)], own
        case ft.ReLU():
            return [dy * (x > 0)], {}
        case ft.ReLU6():
            return [dy * ((x > 0) & (x < 6))], {}
        case ft.Sigmoid():
            return [dy * y * (1 - y)], {}
        case ft.Add():
            return [dy, dy], {}
        case ft.MaxPool():
            windows = _pool_windows(x, layer, -np.inf)
            chosen = np.zeros_like(windows)
            np.put_along_axis(chosen, windows.argmax(axis=-1)[..., None], dy[..., None], axis=-1)
            return [_from_pool_windows(chosen, layer, x.shape)], {}
        case ft.AveragePool():
            share = np.repeat(dy[..., None] / layer.size**2, layer.size**2, axis=-1)
            return [_from_pool_windows(share, layer, x.shape)], {}
        case ft.GlobalAvgPool():
            return [np.broadcast_to(dy[:, :, None, None] / (x.shape[2] * x.shape[3]), x.shape)], {}
        case ft.Linear():
            own = {weight: np.einsum("...o,...i->oi", dy, _rows(x), optimize=True)}
            if layer.bias:
                own[bias] = dy.reshape(-1, dy.shape[-1]).sum(axis=0)
            return [(dy @ weights[weight]).reshape(x.shape)], own
        case ft.Embedding():
            own = {weight: np.zeros_like(weights[weight])}
            np.add.at(own[weight], x, dy)
            if layer.positions:
                place = own[f"{layer.positions}.weight"] = np.zeros_like(weights[f"{layer.positions}.weight"])
                place[: x.shape[1]] = dy.sum(axis=0)
            return [], own
        case ft.Positions():
            own = {weight: np.zeros_like(weights[weight])}
            own[weight][: x.shape[1]] = dy.sum(axis=0)
            if layer.types:
                kind = own[f"{layer.types}.weight"] = np.zeros_like(weights[f"{layer.types}.weight"])
                kind[0] = dy.sum(axis=(0, 1))
            return [dy], own
        case ft.Trigram():
            after, at, before = np.split(dy, 3, axis=-1)
            return [_shifted(after, -1) + at + _shifted(before, 1)], {}
        case ft.FirstToken():
            dx = np.zeros_like(x)
            dx[:, :1] = dy
            return [dx], {}
        case ft.NoNorm():
            return [dy * weights[weight]], {weight: (dy * x).sum(axis=(0, 1)), bias: dy.sum(axis=(0, 1))}
        case ft.LayerNorm():
            normal, inverse = _normalised(layer, x)
            own = {weight: (dy * normal).sum(axis=(0, 1)), bias: dy.sum(axis=(0, 1))}
            d = dy * weights[weight]
            means = [part.mean(axis=-1, keepdims=True) for part in (d, d * normal)]
            return [inverse * (d - means[0] - normal * means[1])], own
        case ft.Attention():
            q, k, v, p = _attention(layer, np.concatenate(inputs, axis=-1))
            dy = _heads(dy, layer.heads)
            dp = dy @ v.swapaxes(-1, -2)
            ds = p * (dp - (dp * p).sum(axis=-1, keepdims=True)) / math.sqrt(q.shape[-1])
            parts = ds @ k, ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ dy
            joined = [_joined(part) for part in parts]
            return (joined if layer.inputs else [np.concatenate(joined, axis=-1)]), {}
        case ft.GELU():
            t = np.tanh(SCALE * (x + CUBE * x**3))
            return [dy * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * SCALE * (1 + 3 * CUBE * x**2))], {}
        case ft.TiedHead():
            tied, joined = f"{layer.embedding}.weight", _head_weights(layer, weights)
            gradient, width = np.einsum("nto,nti->oi", dy, x, optimize=True), weights[tied].shape[1]
            own = {tied: gradient[:, :width]}
            if joined.shape[1] > width:
                own[f"{layer.name}.dense.weight"] = gradient[:, width:]
            if layer.bias:
                own[bias] = dy.sum(axis=(0, 1))
            return [dy @ joined], own
    raise UsageError(f"the reference has no derivative for {layer!r}; add one")


def _rows(x):
    """What a linear layer multiplies: tokens as they are, the flattened image."""
    return x if x.ndim == 3 else x.reshape(len(x), -1)


def _windows(x, layer):
    """Windows of the zero-padded input: a view (N, C, H_out, W_out, kernel, kernel)."""
    p, d, s = layer.padding, layer.dilation, layer.stride
    reach = (layer.kernel - 1) * d + 1
    padded = np.pad(x, ((0, 0), (0, 0), (p, p), (p, p)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (reach, reach), axis=(2, 3))
    return windows[:, :, ::s, ::s, ::d, ::d]


def _pool_geometry(layer):
    return layer.size, layer.stride or layer.size, layer.padding if isinstance(layer, ft.MaxPool) else 0


def _pool_windows(x, layer, outside):
    """Windows, each flattened row by row: (N, C, H_out, W_out, size * size); `outside` is the padding's value."""
    size, stride, p = _pool_geometry(layer)
    padded = np.pad(x, ((0, 0), (0, 0), (p, p), (p, p)), constant_values=outside)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (size, size), axis=(2, 3))[:, :, ::stride, ::stride]
    return windows.reshape(*windows.shape[:4], size * size)


def _from_pool_windows(windows, layer, shape):
    """Add up what each pixel gets from the windows it lies in."""
    size, stride, p = _pool_geometry(layer)
    n, c, height, width = shape
    rows, columns = windows.shape[2:4]
    x = np.zeros((n, c, height + 2 * p, width + 2 * p))
    for i in range(size):
        for j in range(size):
            where = (slice(i, i + (rows - 1) * stride + 1, stride), slice(j, j + (columns - 1) * stride + 1, stride))
            x[:, :, where[0], where[1]] += windows[..., i * size + j]
    return x[:, :, p : p + height, p : p + width]


def _head_weights(layer, weights):
    """The embedding's weights, with those of the head's own beside them."""
    tied, own = weights[f"{layer.embedding}.weight"], weights.get(f"{layer.name}.dense.weight")
    return tied if own is None else np.concatenate([tied, own], axis=1)


def _shifted(x, by):
    """Features of the token `by` further on, zeros outside of the sample."""
    y = np.zeros_like(x)
    y[:, : len(x[0]) - by] = x[:, by:] if by > 0 else 0
    if by < 0:
        y[:, -by:] = x[:, :by]
    return y


def _normalised(layer, x):
    """Features with mean 0 and variance 1, and what they were multiplied with."""
    inverse = 1 / np.sqrt(x.var(axis=-1, keepdims=True) + layer.eps)
    return (x - x.mean(axis=-1, keepdims=True)) * inverse, inverse


def _attention(layer, x):
    """Queries, keys and values (N, heads, T, d), and the probabilities (N, heads, T, T)."""
    q, k, v = (_heads(part, layer.heads) for part in np.split(x, 3, axis=-1))
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    if layer.causal:
        length = x.shape[1]
        scores = np.where(np.tri(length, length, dtype=bool), scores, -np.inf)
    p = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return q, k, v, p / p.sum(axis=-1, keepdims=True)


def _heads(x, heads):
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def _joined(x):
    return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1)
