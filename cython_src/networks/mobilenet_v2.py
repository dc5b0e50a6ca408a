"""MobileNetV2: Sandler et al., Inverted Residuals and Linear Bottlenecks, 2018, table 2.

stem     3x3, 32                         (large images: stride 2, and ReLU6 as in the paper instead of ReLU)
blocks   [1x1 to expansion x channels; 3x3 depthwise; 1x1 linear], STAGES
1x1, 1280; global average pool, fully connected
"""

from __future__ import annotations

from .layers import GlobalAvgPool, Layer, Linear, Network, ReLU, ReLU6, SoftmaxCrossEntropy
from .parts import SMALL_IMAGE, add_shortcut, convolution_norm

# Expansion, channels, blocks, stride of the first of them. The second stage halves large images only.
STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


def network(
    name: str,
    size: int,
    num_classes: int,
    width: int = 32,
    stages: tuple[tuple[int, ...], ...] = STAGES,
    last: int = 1280,
) -> Network:
    """The network for images of size x size. Its CIFAR-10 form projects the shortcut of a block that changes the number
    of channels, and expands by 1 with a convolution too; the other form leaves out both."""
    small = size <= SMALL_IMAGE
    layers: list[Layer] = convolution_norm("conv1", "bn1", width, 3, 1 if small else 2)
    channels, number = width, 0
    for expansion, channels_out, count, first_stride in stages:
        for block in range(count):
            stride = 1 if block or (small and channels_out == stages[1][1]) else first_stride
            layers += _block(f"layers.{number}", layers[-1].name, channels, expansion, channels_out, stride, small)
            channels, number = channels_out, number + 1
    layers += convolution_norm("conv2", "bn2", last, 1)
    layers += [GlobalAvgPool("pool"), Linear("linear", num_classes), SoftmaxCrossEntropy()]
    if not small:
        layers = [ReLU6(layer.name, layer.after) if isinstance(layer, ReLU) else layer for layer in layers]
    return Network(name, (3, size, size), tuple(layers))


def _block(
    name: str, source: str, channels: int, expansion: int, channels_out: int, stride: int, project: bool
) -> list[Layer]:
    """bn(1x1) of relu(bn(depthwise)) of relu(bn(1x1)) of x, and + x where the shape is the same (or is projected)."""
    inner = expansion * channels
    expand = (
        convolution_norm(f"{name}.conv1", f"{name}.bn1", inner, 1, after=source) if expansion > 1 or project else []
    )
    layers = [
        *expand,
        *convolution_norm(f"{name}.conv2", f"{name}.bn2", inner, 3, stride, groups=inner),
        *convolution_norm(f"{name}.conv3", f"{name}.bn3", channels_out, 1, relu=False),
    ]
    if stride == 1 and (channels == channels_out or project):
        add_shortcut(layers, name, source, channels, channels_out, stride)
    return layers
