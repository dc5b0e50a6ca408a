"""Parts that several networks have in common."""

from __future__ import annotations

from collections.abc import Callable

from .layers import Add, BatchNorm, Conv2d, GlobalAvgPool, Layer, Linear, MaxPool, Network, ReLU, SoftmaxCrossEntropy

SMALL_IMAGE = 32  # up to here networks begin without halving the image: their CIFAR-10 forms


def convolution(name: str, channels: int, kernel: int, stride: int = 1, groups: int = 1, after: str = "") -> Conv2d:
    """Without bias; the padding keeps the size."""
    return Conv2d(name, channels, kernel, kernel // 2, stride, groups, bias=False, after=after)


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


def add_shortcut(layers: list[Layer], name: str, source: str, channels: int, channels_out: int, stride: int) -> None:
    """Append the sum of a block's result and its source, which is projected where its shape changes."""
    last, shortcut = layers[-1].name, source
    if stride != 1 or channels != channels_out:
        shortcut = f"{name}.shortcut.1"
        layers += convolution_norm(f"{name}.shortcut.0", shortcut, channels_out, 1, stride, after=source, relu=False)
    layers.append(Add(f"{name}.sum", (last, shortcut)))


def residual_classifier(
    name: str,
    size: int,
    num_classes: int,
    blocks: tuple[int, ...],
    width: int,
    stem: list[Layer],
    block: Callable[[str, str, int, int, int], list[Layer]],
    widened: int = 1,
) -> Network:
    """The stem, which a pooling ends where images are large, stages of residual blocks, and a fully connected layer on
    the means of the last maps.

    `blocks`: blocks of each stage; all stages but the first begin with stride 2; `width`: channels of the stem; the
    first stage has `widened` times as many, each further one twice as many; `block`: `block(name, source, channels,
    channels_out, stride)` gives a block's layers; the last one ends it.
    """
    pool, channels = [MaxPool("maxpool", 3, 2, 1)] if size > SMALL_IMAGE else [], width
    layers = [*stem, *pool]
    for stage, count in enumerate(blocks):
        for number in range(count):
            channels_out, stride = widened * width << stage, 2 if stage and not number else 1
            layers += block(f"layer{stage + 1}.{number}", layers[-1].name, channels, channels_out, stride)
            channels = channels_out
    layers += [GlobalAvgPool("pool"), Linear("linear", num_classes), SoftmaxCrossEntropy()]
    return Network(name, (3, size, size), tuple(layers))


def convolutional_classifier(
    name: str, input_shape: tuple[int, int, int], channels: tuple[int, ...], num_classes: int, kernel: int = 5
) -> Network:
    """Stages of convolution, ReLU and 2 x 2 pooling, then one fully connected layer and softmax. The kernels are odd
    and the convolutions keep height and width."""
    layers: list[Layer] = []
    for i, out_channels in enumerate(channels, start=1):
        layers += [Conv2d(f"conv{i}", out_channels, kernel, kernel // 2), ReLU(f"relu{i}"), MaxPool(f"pool{i}")]
    layers += [Linear("fc", num_classes), SoftmaxCrossEntropy()]
    return Network(name, input_shape, tuple(layers))
