"""Parts that several networks have in common."""

from __future__ import annotations

from .layers import BatchNorm, Convolution, Layer, MaxPool, ReLU

SMALL_IMAGE = 32  # up to here networks begin without halving the image: their CIFAR-10 forms


def convolution(
    name: str, channels: int, kernel: int, stride: int = 1, groups: int = 1, after: str = ""
) -> Convolution:
    """Without bias; the padding keeps the size."""
    return Convolution(name, channels, kernel, kernel // 2, stride, groups, bias=False, after=after)


def convolution_norm(
    conv: str,
    norm: str,
    channels: int,
    kernel: int,
    stride: int = 1,
    groups: int = 1,
    after: str = "",
    relu: bool = True,
) -> list[Layer]:
    """Convolution and batch norm, and ReLU under the norm's name + ".relu"."""
    layers: list[Layer] = [convolution(conv, channels, kernel, stride, groups, after), BatchNorm(norm)]
    return [*layers, ReLU(f"{norm}.relu")] if relu else layers


def imagenet_pool(size: int) -> list[Layer]:
    """The pooling that ends the stem of a residual network, where images are large."""
    return [MaxPool("maxpool", 3, 2, 1)] if size > SMALL_IMAGE else []
