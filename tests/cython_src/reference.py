"""A training step in plain NumPy and float64: the truth that kernels and plans are checked against.

Nothing here knows of plans, blocks or layouts; of a network, only its description is shared. Each layer is a
forward formula and its derivative, written for reading; images are (N, C, H, W), weights have PyTorch's
layouts.

    Conv2d          Y[n, o, y, x] = b[o] + sum over c, i, j of W[o, c, i, j] * X[n, c, s y + d i - p, s x + d j - p],
                    c over the channels of o's group
    BatchNorm       Y = w (X - mean) / sqrt(var + eps) + b with mean and variance of the batch, or in evaluation with
                    the running ones: running = (1 - momentum) running + momentum new, the variance then unbiased
    ReLU, ReLU6     Y = max(X, 0), and min(Y, 6); the derivative is 0 where Y is 0 or 6
    Sigmoid         Y = 1 / (1 + exp(-X))
    Add             Y = X1 + X2
    MaxPool         Y = the largest X of each window; of equal ones the first in row order gets the gradient
    AveragePool     Y = the mean of each window
    Dropout         Y = X times the layer's mask, which is given; without one, X
    GlobalAvgPool   Y = the mean over all pixels
    Linear          Y = X @ W.T + b over the flattened image, in the order C, H, W
    SoftmaxCrossEntropy
                    probabilities; the loss is the mean of -log of the label's, or with label smoothing e of
                    (1 - e) of that and e times the mean of all classes'

The gradient of a layer's output is the sum of what all layers that take it send back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from forktask.cython_src.errors import UsageError
from forktask.cython_src.networks.layers import (
    Add,
    AveragePool,
    BatchNorm,
    Conv2d,
    Dropout,
    GlobalAvgPool,
    Linear,
    MaxPool,
    Network,
    ReLU,
    ReLU6,
    Sigmoid,
    SoftmaxCrossEntropy,
)


@dataclass
class Step:
    """What one step computed.

    Attributes
    ----------
    loss : float
        Mean cross-entropy of the batch.
    correct : int
        Images whose largest logit is that of their label.
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
    network: Network,
    parameters: Mapping[str, np.ndarray],
    images: np.ndarray,
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
    images : shape (N, C, H, W)
    labels : integers, shape (N,)
    statistics : mapping of str to ndarray, optional
        Running statistics; default: mean 0 and variance 1.
    training : bool
        Whether norms use the batch's statistics or the running ones.
    label_smoothing : float
    masks : mapping of str to ndarray, optional
        What dropout layers multiply with, by their names.
    """
    activations = {"input": np.asarray(images, np.float64)}
    running = {
        name: np.array(statistics[name], np.float64) if statistics else np.full(shape, float(name.endswith("_var")))
        for name, shape in network.statistic_shapes().items()
    }
    inputs = network.inputs()
    for layer in _layers_before_softmax(network):
        x = [activations[name] for name in inputs[layer.name]]
        if isinstance(layer, Dropout):
            activations[layer.name] = x[0] * (masks or {}).get(layer.name, 1.0)
            continue
        activations[layer.name] = _layer_forward(layer, parameters, x, running, training)
    logits = activations[inputs[network.layers[-1].name][0]]
    probabilities = activations["softmax"] = _softmax(logits)
    shifted = logits - logits.max(axis=1, keepdims=True)
    logs = np.log(np.exp(shifted).sum(axis=1, keepdims=True)) - shifted
    loss = float((_targets(labels, logits.shape[1], label_smoothing) * logs).sum(axis=1).mean())
    return Step(loss, int((probabilities.argmax(axis=1) == labels).sum()), activations, statistics=running)


def forward_backward(
    network: Network,
    parameters: Mapping[str, np.ndarray],
    images: np.ndarray,
    labels: np.ndarray,
    statistics: Mapping[str, np.ndarray] | None = None,
    label_smoothing: float = 0.0,
    masks: Mapping[str, np.ndarray] | None = None,
) -> Step:
    """`forward` in training, and the gradients of the mean loss for every parameter and activation."""
    step = forward(network, parameters, images, labels, statistics, True, label_smoothing, masks)
    inputs = network.inputs()
    # d loss / d logits = (softmax - target) / N
    logits = inputs[network.layers[-1].name][0]
    dy = step.activations["softmax"] - _targets(labels, network.num_classes, label_smoothing)
    step.gradients[logits] = dy / len(labels)
    for layer in reversed(_layers_before_softmax(network)):
        x = [step.activations[name] for name in inputs[layer.name]]
        dy, y = step.gradients[layer.name], step.activations[layer.name]
        if isinstance(layer, Dropout):
            parts = [dy * (masks or {}).get(layer.name, 1.0)]
        else:
            parts = _layer_backward(layer, parameters, x, y, dy, step.gradients)
        for name, dx in zip(inputs[layer.name], parts, strict=True):
            step.gradients[name] = step.gradients[name] + dx if name in step.gradients else dx
    return step


def _layers_before_softmax(network):
    if not network.layers or not isinstance(network.layers[-1], SoftmaxCrossEntropy):
        raise UsageError(f"the last layer of network {network.name!r} must be SoftmaxCrossEntropy")
    return network.layers[:-1]


def _targets(labels, classes, label_smoothing):
    """What the probabilities should be: (N, classes)."""
    targets = np.full((len(labels), classes), label_smoothing / classes)
    targets[np.arange(len(labels)), labels] += 1 - label_smoothing
    return targets


def _layer_forward(layer, parameters, inputs, statistics, training):
    x = inputs[0]
    match layer:
        case Conv2d():
            n, c = x.shape[:2]
            windows = _windows(x, layer)
            windows = windows.reshape(n, layer.groups, c // layer.groups, *windows.shape[2:])
            weight = np.asarray(parameters[f"{layer.name}.weight"], np.float64)
            weight = weight.reshape(layer.groups, -1, *weight.shape[1:])
            y = np.einsum("ngchwij,gocij->ngohw", windows, weight, optimize=True)
            y = y.reshape(n, -1, *y.shape[3:])
            return y + np.asarray(parameters[f"{layer.name}.bias"])[:, None, None] if layer.bias else y
        case BatchNorm():
            mean, var = statistics[f"{layer.name}.running_mean"], statistics[f"{layer.name}.running_var"]
            if training:
                batch_mean, batch_var = x.mean(axis=(0, 2, 3)), x.var(axis=(0, 2, 3))
                unbiased = batch_var * x[:, 0].size / max(x[:, 0].size - 1, 1)
                for kept, new in ((mean, batch_mean), (var, unbiased)):
                    kept += layer.momentum * (new - kept)
                mean, var = batch_mean, batch_var
            weight, bias = (np.asarray(parameters[f"{layer.name}.{kind}"], np.float64) for kind in ("weight", "bias"))
            scale = weight / np.sqrt(var + layer.eps)
            return (x - mean[:, None, None]) * scale[:, None, None] + bias[:, None, None]
        case ReLU():
            return np.maximum(x, 0.0)
        case ReLU6():
            return np.clip(x, 0.0, 6.0)
        case Sigmoid():
            return 1 / (1 + np.exp(-x))
        case Add():
            return x + inputs[1]
        case MaxPool():
            return _pool_windows(x, layer, -np.inf).max(axis=-1)
        case AveragePool():
            return _pool_windows(x, layer, 0.0).mean(axis=-1)
        case GlobalAvgPool():
            return x.mean(axis=(2, 3))
        case Linear():
            weight, bias = parameters[f"{layer.name}.weight"], parameters[f"{layer.name}.bias"]
            return x.reshape(len(x), -1) @ np.asarray(weight, np.float64).T + bias
    raise UsageError(f"the reference has no formula for {layer!r}; add one")


def _layer_backward(layer, parameters, inputs, y, dy, gradients):
    """Put parameter gradients into `gradients` and return the gradient of each input."""
    x = inputs[0]
    match layer:
        case Conv2d():
            weight = np.asarray(parameters[f"{layer.name}.weight"], np.float64)
            n, c = x.shape[:2]
            g, height, width = layer.groups, *dy.shape[2:]
            windows = _windows(x, layer)
            windows = windows.reshape(n, g, c // g, *windows.shape[2:])
            dy_groups = dy.reshape(n, g, -1, height, width)
            weight_groups = weight.reshape(g, -1, *weight.shape[1:])
            gradient = np.einsum("ngohw,ngchwij->gocij", dy_groups, windows, optimize=True)
            gradients[f"{layer.name}.weight"] = gradient.reshape(weight.shape)
            if layer.bias:
                gradients[f"{layer.name}.bias"] = dy.sum(axis=(0, 2, 3))
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
            return [dx.reshape(n, c, *dx.shape[3:])[:, :, p : p + x.shape[2], p : p + x.shape[3]]]
        case BatchNorm():
            weight = np.asarray(parameters[f"{layer.name}.weight"], np.float64)
            inv_std = 1 / np.sqrt(x.var(axis=(0, 2, 3)) + layer.eps)
            xhat = (x - x.mean(axis=(0, 2, 3))[:, None, None]) * inv_std[:, None, None]
            gradients[f"{layer.name}.weight"] = (dy * xhat).sum(axis=(0, 2, 3))
            gradients[f"{layer.name}.bias"] = dy.sum(axis=(0, 2, 3))
            mean_dy, mean_xhat = ((dy * v).mean(axis=(0, 2, 3))[:, None, None] for v in (np.ones_like(x), xhat))
            return [(weight * inv_std)[:, None, None] * (dy - mean_dy - xhat * mean_xhat)]
        case ReLU():
            return [dy * (x > 0)]
        case ReLU6():
            return [dy * ((x > 0) & (x < 6))]
        case Sigmoid():
            return [dy * y * (1 - y)]
        case Add():
            return [dy, dy]
        case MaxPool():
            windows = _pool_windows(x, layer, -np.inf)
            chosen = np.zeros_like(windows)
            np.put_along_axis(chosen, windows.argmax(axis=-1)[..., None], dy[..., None], axis=-1)
            return [_from_pool_windows(chosen, layer, x.shape)]
        case AveragePool():
            share = np.repeat(dy[..., None] / layer.size**2, layer.size**2, axis=-1)
            return [_from_pool_windows(share, layer, x.shape)]
        case GlobalAvgPool():
            return [np.broadcast_to(dy[:, :, None, None] / (x.shape[2] * x.shape[3]), x.shape)]
        case Linear():
            gradients[f"{layer.name}.weight"] = dy.T @ x.reshape(len(x), -1)
            gradients[f"{layer.name}.bias"] = dy.sum(axis=0)
            return [(dy @ parameters[f"{layer.name}.weight"]).reshape(x.shape)]
    raise UsageError(f"the reference has no derivative for {layer!r}; add one")


def _windows(x, layer):
    """Windows of the zero-padded input: a view (N, C, H_out, W_out, kernel, kernel)."""
    p, d, s = layer.padding, layer.dilation, layer.stride
    reach = (layer.kernel - 1) * d + 1
    padded = np.pad(x, ((0, 0), (0, 0), (p, p), (p, p)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (reach, reach), axis=(2, 3))
    return windows[:, :, ::s, ::s, ::d, ::d]


def _pool_geometry(layer):
    return layer.size, layer.stride or layer.size, layer.padding if isinstance(layer, MaxPool) else 0


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


def _softmax(logits):
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)
