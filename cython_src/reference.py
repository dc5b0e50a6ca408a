"""A training step in plain NumPy and float64: the truth that kernels and plans are checked against.

Nothing here knows of plans, blocks or layouts; of a network, only its description is shared. Each layer is a
forward formula and its derivative, written for reading; images are (N, C, H, W), weights have PyTorch's
layouts.

    Convolution     Y[n, o, y, x] = b[o] + sum over c, i, j of W[o, c, i, j] * X[n, c, y + i - p, x + j - p]
    ReLU            Y = max(X, 0); its derivative at 0 is 0
    MaxPool         Y = the largest X of each window; of equal ones the first in row order gets the gradient
    FullyConnected  Y = X @ W.T + b over the flattened image, in the order C, H, W
    Softmax         probabilities; the loss is the mean of -log of the label's
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from .errors import UsageError
from .network import Convolution, FullyConnected, MaxPool, NetworkSpec, ReLU, Softmax


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
    """

    loss: float
    correct: int
    activations: dict[str, np.ndarray]
    gradients: dict[str, np.ndarray] = field(default_factory=dict)


def forward(
    network: NetworkSpec, parameters: Mapping[str, np.ndarray], images: np.ndarray, labels: np.ndarray
) -> Step:
    """Loss, number of right answers and all activations.

    Parameters
    ----------
    network : NetworkSpec
        Its last layer is Softmax.
    parameters : mapping of str to ndarray
    images : shape (N, C, H, W)
    labels : integers, shape (N,)
    """
    x = np.asarray(images, np.float64)
    activations = {"input": x}
    for layer in _layers_before_softmax(network):
        x = activations[layer.name] = _layer_forward(layer, parameters, x)
    probabilities = activations["softmax"] = _softmax(x)
    rows = np.arange(len(labels))
    shifted = x - x.max(axis=1, keepdims=True)
    losses = np.log(np.exp(shifted).sum(axis=1)) - shifted[rows, labels]
    return Step(float(losses.mean()), int((probabilities.argmax(axis=1) == labels).sum()), activations)


def forward_backward(
    network: NetworkSpec, parameters: Mapping[str, np.ndarray], images: np.ndarray, labels: np.ndarray
) -> Step:
    """`forward`, and the gradients of the mean loss for every parameter and activation."""
    step = forward(network, parameters, images, labels)
    layers = _layers_before_softmax(network)
    rows = np.arange(len(labels))
    # d loss / d logits = (softmax - one-hot) / N
    dy = step.activations["softmax"].copy()
    dy[rows, labels] -= 1
    dy /= len(labels)
    for position in reversed(range(len(layers))):
        layer = layers[position]
        x = step.activations[layers[position - 1].name if position else "input"]
        step.gradients[layer.name] = dy
        dy = _layer_backward(layer, parameters, x, step.activations[layer.name], dy, step.gradients)
    step.gradients["input"] = dy
    return step


class Sgd:
    """Stochastic gradient descent as torch.optim.SGD writes it.

    g = gradient + weight_decay * p;  v = momentum * v + g;  p = p - learning_rate * v

    Parameters
    ----------
    parameters : mapping of str to ndarray
        Copied, in float64.
    learning_rate, momentum, weight_decay : float

    Attributes
    ----------
    parameters, velocities : dict of str to float64 ndarray
    """

    def __init__(self, parameters, learning_rate: float, momentum: float = 0.0, weight_decay: float = 0.0):
        self.parameters = {name: np.array(value, np.float64) for name, value in parameters.items()}
        self.velocities = {name: np.zeros_like(value) for name, value in self.parameters.items()}
        self.learning_rate = learning_rate
        self.momentum = momentum
        self.weight_decay = weight_decay

    def step(self, network: NetworkSpec, images: np.ndarray, labels: np.ndarray) -> Step:
        """One training step: gradients at the current parameters, then the update."""
        step = forward_backward(network, self.parameters, images, labels)
        for name, p in self.parameters.items():
            v = self.velocities[name]
            v *= self.momentum
            v += step.gradients[name] + self.weight_decay * p
            p -= self.learning_rate * v
        return step


def _layers_before_softmax(network):
    if not network.layers or not isinstance(network.layers[-1], Softmax):
        raise UsageError(f"the last layer of network {network.name!r} must be Softmax")
    return network.layers[:-1]


def _layer_forward(layer, parameters, x):
    match layer:
        case Convolution():
            windows = _windows(x, layer)
            y = np.einsum("nchwij,ocij->nohw", windows, parameters[f"{layer.name}.weight"], optimize=True)
            return y + np.asarray(parameters[f"{layer.name}.bias"])[:, None, None]
        case ReLU():
            return np.maximum(x, 0.0)
        case MaxPool():
            return _pool_windows(x, layer.size).max(axis=-1)
        case FullyConnected():
            weight, bias = parameters[f"{layer.name}.weight"], parameters[f"{layer.name}.bias"]
            return x.reshape(len(x), -1) @ np.asarray(weight, np.float64).T + bias
    raise UsageError(f"a layer must be Convolution, ReLU, MaxPool or FullyConnected, got {layer!r}")


def _layer_backward(layer, parameters, x, y, dy, gradients):
    """Put parameter gradients into `gradients` and return dX."""
    match layer:
        case Convolution():
            weight = parameters[f"{layer.name}.weight"]
            gradients[f"{layer.name}.weight"] = np.einsum(
                "nohw,nchwij->ocij", dy, _windows(x, layer), optimize=True
            )
            gradients[f"{layer.name}.bias"] = dy.sum(axis=(0, 2, 3))
            # Every output pixel sends dY * W back to the window it came from.
            p = layer.padding
            dx = np.zeros((*x.shape[:2], x.shape[2] + 2 * p, x.shape[3] + 2 * p))
            height, width = dy.shape[2:]
            for i in range(layer.kernel):
                for j in range(layer.kernel):
                    dx[:, :, i : i + height, j : j + width] += np.einsum(
                        "nohw,oc->nchw", dy, weight[:, :, i, j], optimize=True
                    )
            return dx[:, :, p : p + x.shape[2], p : p + x.shape[3]]
        case ReLU():
            return dy * (x > 0)
        case MaxPool():
            windows = _pool_windows(x, layer.size)
            chosen = np.zeros_like(windows)
            np.put_along_axis(chosen, windows.argmax(axis=-1)[..., None], dy[..., None], axis=-1)
            return _from_pool_windows(chosen, layer.size, x.shape)
        case FullyConnected():
            gradients[f"{layer.name}.weight"] = dy.T @ x.reshape(len(x), -1)
            gradients[f"{layer.name}.bias"] = dy.sum(axis=0)
            return (dy @ parameters[f"{layer.name}.weight"]).reshape(x.shape)
    raise UsageError(f"a layer must be Convolution, ReLU, MaxPool or FullyConnected, got {layer!r}")


def _windows(x, layer):
    """Windows of the zero-padded input: a view (N, C, H_out, W_out, kernel, kernel)."""
    p, k = layer.padding, layer.kernel
    padded = np.pad(x, ((0, 0), (0, 0), (p, p), (p, p)))
    return np.lib.stride_tricks.sliding_window_view(padded, (k, k), axis=(2, 3))


def _pool_windows(x, size):
    """Windows side by side, each flattened row by row: (N, C, H // size, W // size, size * size)."""
    n, c, h, w = x.shape
    h, w = h // size, w // size
    x = x[:, :, : h * size, : w * size].reshape(n, c, h, size, w, size)
    return x.transpose(0, 1, 2, 4, 3, 5).reshape(n, c, h, w, size * size)


def _from_pool_windows(windows, size, shape):
    """The inverse of `_pool_windows`; pixels that no window covers are 0."""
    n, c, h, w, _ = windows.shape
    x = np.zeros(shape)
    x[:, :, : h * size, : w * size] = (
        windows.reshape(n, c, h, w, size, size).transpose(0, 1, 2, 4, 3, 5).reshape(n, c, h * size, w * size)
    )
    return x


def _softmax(logits):
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)
