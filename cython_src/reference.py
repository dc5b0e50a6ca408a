"""A training step in plain NumPy and float64: the truth that kernels and plans are checked against.

Nothing here knows of plans, blocks or layouts. Each layer is a forward formula and its derivative, written for reading;
images are (N, C, H, W), weights have PyTorch's layouts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from .errors import UsageError


@dataclass(frozen=True)
class Conv:
    """Y[n, o] = sum_c X[n, c] * W[o, c] + b[o], cross-correlation as in PyTorch's Conv2d."""

    name: str
    out_channels: int
    kernel: int
    padding: int = 0
    stride: int = 1


@dataclass(frozen=True)
class Relu:
    """Y = max(X, 0); its derivative at 0 is 0."""

    name: str


@dataclass(frozen=True)
class MaxPool:
    """Y = the largest X of each `size` x `size` window, windows side by side; of equal ones the first counts."""

    name: str
    size: int = 2


@dataclass(frozen=True)
class Dense:
    """Y = X @ W.T + b over the flattened image, in the order C, H, W."""

    name: str
    out_features: int


# The network of ConvNetJS's CIFAR-10 demonstration, which CS231n made known.
CIFAR10_CNN = (
    Conv("conv1", 16, 5, padding=2),
    Relu("relu1"),
    MaxPool("pool1"),
    Conv("conv2", 20, 5, padding=2),
    Relu("relu2"),
    MaxPool("pool2"),
    Conv("conv3", 20, 5, padding=2),
    Relu("relu3"),
    MaxPool("pool3"),
    Dense("fc", 10),
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
    """

    loss: float
    correct: int
    activations: dict[str, np.ndarray]
    gradients: dict[str, np.ndarray] = field(default_factory=dict)


def initial_parameters(
    layers: Sequence, seed: int, input_shape: tuple[int, int, int] = (3, 32, 32)
) -> dict[str, np.ndarray]:
    """Random float64 parameters by PyTorch name: He's normal weights, zero biases."""
    generator = np.random.default_rng(seed)
    parameters = {}
    for name, shape in parameter_shapes(layers, input_shape).items():
        if name.endswith(".bias"):
            parameters[name] = np.zeros(shape)
        else:
            parameters[name] = generator.standard_normal(shape) * np.sqrt(2.0 / np.prod(shape[1:]))
    return parameters


def parameter_shapes(
    layers: Sequence, input_shape: tuple[int, int, int] = (3, 32, 32)
) -> dict[str, tuple[int, ...]]:
    """Shapes of all parameters, in PyTorch's order."""
    shape: tuple[int, ...] = input_shape
    shapes = {}
    for layer in layers:
        match layer:
            case Conv():
                shapes[f"{layer.name}.weight"] = (layer.out_channels, shape[0], layer.kernel, layer.kernel)
                shapes[f"{layer.name}.bias"] = (layer.out_channels,)
                side = [(n + 2 * layer.padding - layer.kernel) // layer.stride + 1 for n in shape[1:]]
                shape = (layer.out_channels, *side)
            case MaxPool():
                shape = (shape[0], shape[1] // layer.size, shape[2] // layer.size)
            case Dense():
                shapes[f"{layer.name}.weight"] = (layer.out_features, int(np.prod(shape)))
                shapes[f"{layer.name}.bias"] = (layer.out_features,)
                shape = (layer.out_features,)
    return shapes


def forward(
    layers: Sequence, parameters: Mapping[str, np.ndarray], images: np.ndarray, labels: np.ndarray
) -> Step:
    """Loss, number of right answers and all activations.

    Parameters
    ----------
    layers : sequence of Conv, Relu, MaxPool, Dense
    parameters : mapping of str to ndarray
    images : shape (N, C, H, W)
    labels : integers, shape (N,)
    """
    x = np.asarray(images, np.float64)
    activations = {"input": x}
    for layer in layers:
        x = activations[layer.name] = _layer_forward(layer, parameters, x)
    probabilities = activations["softmax"] = _softmax(x)
    rows = np.arange(len(labels))
    shifted = x - x.max(axis=1, keepdims=True)
    losses = np.log(np.exp(shifted).sum(axis=1)) - shifted[rows, labels]
    return Step(float(losses.mean()), int((probabilities.argmax(axis=1) == labels).sum()), activations)


def forward_backward(
    layers: Sequence, parameters: Mapping[str, np.ndarray], images: np.ndarray, labels: np.ndarray
) -> Step:
    """`forward`, and the gradients of the mean loss for every parameter and activation."""
    step = forward(layers, parameters, images, labels)
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

    def step(self, layers: Sequence, images: np.ndarray, labels: np.ndarray) -> Step:
        """One training step: gradients at the current parameters, then the update."""
        step = forward_backward(layers, self.parameters, images, labels)
        for name, p in self.parameters.items():
            v = self.velocities[name]
            v *= self.momentum
            v += step.gradients[name] + self.weight_decay * p
            p -= self.learning_rate * v
        return step


def _layer_forward(layer, parameters, x):
    match layer:
        case Conv():
            windows = _windows(x, layer)
            y = np.einsum("nchwij,ocij->nohw", windows, parameters[f"{layer.name}.weight"], optimize=True)
            return y + np.asarray(parameters[f"{layer.name}.bias"])[:, None, None]
        case Relu():
            return np.maximum(x, 0.0)
        case MaxPool():
            return _pool_windows(x, layer.size).max(axis=-1)
        case Dense():
            weight, bias = parameters[f"{layer.name}.weight"], parameters[f"{layer.name}.bias"]
            return x.reshape(len(x), -1) @ np.asarray(weight, np.float64).T + bias
    raise UsageError(f"a layer must be Conv, Relu, MaxPool or Dense, got {layer!r}")


def _layer_backward(layer, parameters, x, y, dy, gradients):
    """Put parameter gradients into `gradients` and return dX."""
    match layer:
        case Conv():
            weight = parameters[f"{layer.name}.weight"]
            gradients[f"{layer.name}.weight"] = np.einsum("nohw,nchwij->ocij", dy, _windows(x, layer), optimize=True)
            gradients[f"{layer.name}.bias"] = dy.sum(axis=(0, 2, 3))
            # Every output pixel sends dY * W back to the window it came from.
            p, s = layer.padding, layer.stride
            dx = np.zeros((*x.shape[:2], x.shape[2] + 2 * p, x.shape[3] + 2 * p))
            height, width = dy.shape[2:]
            for i in range(layer.kernel):
                for j in range(layer.kernel):
                    dx[:, :, i : i + s * height : s, j : j + s * width : s] += np.einsum(
                        "nohw,oc->nchw", dy, weight[:, :, i, j], optimize=True
                    )
            return dx[:, :, p : p + x.shape[2], p : p + x.shape[3]]
        case Relu():
            return dy * (x > 0)
        case MaxPool():
            windows = _pool_windows(x, layer.size)
            chosen = np.zeros_like(windows)
            np.put_along_axis(chosen, windows.argmax(axis=-1)[..., None], dy[..., None], axis=-1)
            return _from_pool_windows(chosen, layer.size, x.shape)
        case Dense():
            gradients[f"{layer.name}.weight"] = dy.T @ x.reshape(len(x), -1)
            gradients[f"{layer.name}.bias"] = dy.sum(axis=0)
            return (dy @ parameters[f"{layer.name}.weight"]).reshape(x.shape)
    raise UsageError(f"a layer must be Conv, Relu, MaxPool or Dense, got {layer!r}")


def _windows(x, layer):
    """Windows of the zero-padded input: a view (N, C, H_out, W_out, kernel, kernel)."""
    p, k = layer.padding, layer.kernel
    padded = np.pad(x, ((0, 0), (0, 0), (p, p), (p, p)))
    view = np.lib.stride_tricks.sliding_window_view(padded, (k, k), axis=(2, 3))
    return view[:, :, :: layer.stride, :: layer.stride]


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
