"""What a network is: layers in order, as in a paper's table. Lowering turns a description into a plan."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ..errors import UsageError


@dataclass(frozen=True)
class Convolution:
    """Convolution. `name` is the prefix of its parameters: name.weight (out, in / groups, k, k), name.bias (out,).

    Depthwise where `groups` is the number of channels.
    """

    name: str
    out_channels: int
    kernel: int = 5
    padding: int = 2
    stride: int = 1
    groups: int = 1
    dilation: int = 1
    bias: bool = True
    after: str = ""


@dataclass(frozen=True)
class BatchNorm:
    """Batch normalisation over images and pixels: name.weight, name.bias, and the statistics name.running_mean and
    name.running_var, which evaluation uses."""

    name: str
    eps: float = 1e-5
    momentum: float = 0.1
    after: str = ""


@dataclass(frozen=True)
class ReLU:
    """max(x, 0)."""

    name: str
    after: str = ""


@dataclass(frozen=True)
class ReLU6:
    """min(max(x, 0), 6)."""

    name: str
    after: str = ""


@dataclass(frozen=True)
class Add:
    """Sum of two layers' outputs, `inputs`: the end of a residual block."""

    name: str
    inputs: tuple[str, str]


@dataclass(frozen=True)
class MaxPool:
    """Maximum of windows of size x size, `stride` apart (0: side by side)."""

    name: str
    size: int = 2
    stride: int = 0
    padding: int = 0
    after: str = ""


@dataclass(frozen=True)
class AveragePool:
    """Mean of windows of size x size, `stride` apart (0: side by side)."""

    name: str
    size: int = 2
    stride: int = 0
    after: str = ""


@dataclass(frozen=True)
class GlobalPool:
    """Mean over all pixels."""

    name: str
    after: str = ""


@dataclass(frozen=True)
class Dropout:
    """In training, zero with probability `rate`, and 1 / (1 - rate) times the rest."""

    name: str
    rate: float = 0.5
    after: str = ""


@dataclass(frozen=True)
class FullyConnected:
    """name.weight (out, in), name.bias (out,)."""

    name: str
    out_features: int
    after: str = ""


@dataclass(frozen=True)
class Softmax:
    """Class probabilities; cross-entropy with the labels in training."""

    name: str = "softmax"
    after: str = ""


Layer = (
    Convolution
    | BatchNorm
    | ReLU
    | ReLU6
    | Add
    | MaxPool
    | AveragePool
    | GlobalPool
    | Dropout
    | FullyConnected
    | Softmax
)


@dataclass(frozen=True, repr=False)
class Network:
    """Layers in order. Each takes the output of the one before it, or of the layer that it names as `after`; `Add`
    names two.

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

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.input_shape))
        return f"<network {self.name!r}: {len(self.layers)} layers on images of {shape}>"

    def inputs(self) -> dict[str, tuple[str, ...]]:
        """Name of each layer -> the layers whose outputs it takes; "input" is the image.

        Raises
        ------
        UsageError
            A name that comes twice, a layer that takes what comes later or nowhere, or one that nobody reads.
        """
        result: dict[str, tuple[str, ...]] = {}
        last = "input"
        for layer in self.layers:
            if layer.name in result or layer.name == "input":
                raise UsageError(f"names of layers must differ, got {layer.name!r} twice in {self.name!r}; rename one")
            names = layer.inputs if isinstance(layer, Add) else (layer.after or last,)
            for name in names:
                if name != "input" and name not in result:
                    raise UsageError(f"layer {layer.name!r} must come after its input {name!r}; move or rename it")
            result[layer.name] = names
            last = layer.name
        read = {name for names in result.values() for name in names}
        for name in result:
            if name not in read and name != last:
                raise UsageError(
                    f"what layer {name!r} computes must be read by another, in {self.name!r}; leave it out"
                )
        return result

    def shapes(self) -> Iterator[tuple[Layer, tuple[int, ...], tuple[int, ...]]]:
        """Each layer with the shapes of one image before it (of its first input) and after it."""
        inputs = self.inputs()
        shapes: dict[str, tuple[int, ...]] = {"input": self.input_shape}
        for layer in self.layers:
            before = [shapes[name] for name in inputs[layer.name]]
            shapes[layer.name] = _shape_after(layer, before)
            yield layer, before[0], shapes[layer.name]

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """PyTorch's name of each parameter -> its shape, in the order of the layers."""
        result: dict[str, tuple[int, ...]] = {}
        for layer, before, after in self.shapes():
            if isinstance(layer, Convolution):
                result[f"{layer.name}.weight"] = (after[0], before[0] // layer.groups, layer.kernel, layer.kernel)
                if layer.bias:
                    result[f"{layer.name}.bias"] = (after[0],)
            elif isinstance(layer, BatchNorm):
                result[f"{layer.name}.weight"] = (after[0],)
                result[f"{layer.name}.bias"] = (after[0],)
            elif isinstance(layer, FullyConnected):
                result[f"{layer.name}.weight"] = (after[0], math.prod(before))
                result[f"{layer.name}.bias"] = (after[0],)
        return result

    def statistic_shapes(self) -> dict[str, tuple[int, ...]]:
        """PyTorch's name of each running statistic -> its shape."""
        return {
            f"{layer.name}.{kind}": (after[0],)
            for layer, _, after in self.shapes()
            if isinstance(layer, BatchNorm)
            for kind in ("running_mean", "running_var")
        }

    @property
    def num_parameters(self) -> int:
        return sum(math.prod(shape) for shape in self.parameter_shapes().values())

    @property
    def num_classes(self) -> int:
        *_, (_, _, shape) = self.shapes()
        return shape[0]


NetworkSpec = Network

# What layers are made of, with the least value; a pool's stride of 0 is its size.
LEAST = {
    "out_channels": 1,
    "kernel": 1,
    "padding": 0,
    "stride": 1,
    "groups": 1,
    "dilation": 1,
    "size": 1,
    "out_features": 1,
}


def _check_layer(layer: Layer) -> None:
    """Raise `UsageError` for a number that makes no sense whatever comes before the layer."""
    pool = isinstance(layer, MaxPool | AveragePool)
    for field, least in LEAST.items():
        least = 0 if pool and field == "stride" else least
        value = getattr(layer, field, least)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise UsageError(f"{field} of {layer.name!r} must be a whole number of at least {least}, got {value!r}")
    if isinstance(layer, MaxPool) and 2 * layer.padding > layer.size:
        raise UsageError(
            f"padding of {layer.name!r} must be at most half of its size {layer.size}, got {layer.padding}; some "
            f"windows would hold nothing"
        )
    if isinstance(layer, Dropout) and not 0 <= layer.rate < 1:
        raise UsageError(f"rate of {layer.name!r} must be in [0, 1), got {layer.rate!r}")


def _shape_after(layer: Layer, before: list[tuple[int, ...]]) -> tuple[int, ...]:
    """Shape of one image after a layer.

    Raises
    ------
    UsageError
        The layer does not fit what comes before it.
    """
    _check_layer(layer)
    shape = before[0]
    if isinstance(layer, Add):
        if before[0] != before[1]:
            raise UsageError(f"inputs of {layer.name!r} must have one shape, got {before[0]} and {before[1]}")
        return shape
    if isinstance(layer, FullyConnected):
        return (layer.out_features,)
    if not isinstance(layer, Convolution | BatchNorm | MaxPool | AveragePool | GlobalPool):
        return shape
    if len(shape) != 3:
        raise UsageError(f"{layer.name!r} must come after a layer with channels, height and width, got shape {shape}")
    if isinstance(layer, BatchNorm):
        return shape
    if isinstance(layer, GlobalPool):
        return (shape[0],)
    if isinstance(layer, Convolution):
        if shape[0] % layer.groups or layer.out_channels % layer.groups:
            raise UsageError(
                f"groups of {layer.name!r} must divide its {shape[0]} and {layer.out_channels} channels, "
                f"got {layer.groups}"
            )
        reach, padding, stride = (layer.kernel - 1) * layer.dilation + 1, layer.padding, layer.stride
    else:
        reach, stride = layer.size, layer.stride or layer.size
        padding = layer.padding if isinstance(layer, MaxPool) else 0
    height, width = ((n + 2 * padding - reach) // stride + 1 for n in shape[1:])
    if min(height, width) < 1:
        raise UsageError(f"windows of {layer.name!r} must fit its input, got {reach} x {reach} on shape {shape}")
    return (layer.out_channels if isinstance(layer, Convolution) else shape[0], height, width)
