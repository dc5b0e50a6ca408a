"""What a network is: layers in order, as in a paper's table. Lowering turns a description into a plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .errors import UsageError


@dataclass(frozen=True)
class Convolution:
    """Convolution with stride 1. `name` is the prefix of its parameters: name.weight (out, in, k, k),
    name.bias (out,)."""

    name: str
    out_channels: int
    kernel: int = 5
    padding: int = 2


@dataclass(frozen=True)
class ReLU:
    """max(x, 0)."""

    name: str


@dataclass(frozen=True)
class MaxPool:
    """Maximum of windows of size x size that do not overlap."""

    name: str
    size: int = 2


@dataclass(frozen=True)
class FullyConnected:
    """name.weight (out, in), name.bias (out,)."""

    name: str
    out_features: int


@dataclass(frozen=True)
class Softmax:
    """Class probabilities; cross-entropy with the labels in training."""

    name: str = "softmax"


Layer = Convolution | ReLU | MaxPool | FullyConnected | Softmax


@dataclass(frozen=True)
class NetworkSpec:
    """A chain of layers.

    Parameters
    ----------
    name : str
    input_shape : tuple of int
        Channels, height, width of an image.
    layers : tuple of Layer
    """

    name: str
    input_shape: tuple[int, int, int]
    layers: tuple[Layer, ...]

    def shapes(self) -> Iterator[tuple[Layer, tuple[int, ...], tuple[int, ...]]]:
        """Each layer with the shapes of one image before and after it."""
        shape: tuple[int, ...] = self.input_shape
        for layer in self.layers:
            before = shape
            if isinstance(layer, Convolution):
                grow = 2 * layer.padding - layer.kernel + 1
                shape = (layer.out_channels, shape[1] + grow, shape[2] + grow)
            elif isinstance(layer, MaxPool):
                shape = (shape[0], shape[1] // layer.size, shape[2] // layer.size)
            elif isinstance(layer, FullyConnected):
                shape = (layer.out_features,)
            yield layer, before, shape

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """PyTorch's name of each parameter -> its shape, in the order of the layers."""
        result: dict[str, tuple[int, ...]] = {}
        for layer, before, after in self.shapes():
            if isinstance(layer, Convolution):
                result[f"{layer.name}.weight"] = (after[0], before[0], layer.kernel, layer.kernel)
                result[f"{layer.name}.bias"] = (after[0],)
            elif isinstance(layer, FullyConnected):
                features = 1
                for n in before:
                    features *= n
                result[f"{layer.name}.weight"] = (after[0], features)
                result[f"{layer.name}.bias"] = (after[0],)
        return result

    @property
    def num_classes(self) -> int:
        *_, (_, _, shape) = self.shapes()
        return shape[0]


def convolutional_classifier(
    name: str, input_shape: tuple[int, int, int], channels: tuple[int, ...], num_classes: int
) -> NetworkSpec:
    """Stages of 5 x 5 convolution, ReLU and 2 x 2 pooling, then one fully connected layer and softmax."""
    layers: list[Layer] = []
    for i, out_channels in enumerate(channels, start=1):
        layers += [Convolution(f"conv{i}", out_channels), ReLU(f"relu{i}"), MaxPool(f"pool{i}")]
    layers += [FullyConnected("fc", num_classes), Softmax()]
    return NetworkSpec(name, input_shape, tuple(layers))


NETWORKS: dict[str, NetworkSpec] = {
    # The CIFAR-10 demonstration network of ConvNetJS, also in the notes of Stanford's CS231n.
    "cifar10_cnn": convolutional_classifier("cifar10_cnn", (3, 32, 32), (16, 20, 20), 10),
}


def get_network(name: str) -> NetworkSpec:
    """The network called `name`.

    Raises
    ------
    UsageError
        No network has this name.
    """
    if name not in NETWORKS:
        raise UsageError(f"network must be one of {', '.join(sorted(NETWORKS))}; got {name!r}")
    return NETWORKS[name]
