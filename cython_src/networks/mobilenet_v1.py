"""MobileNetV1: Howard et al., MobileNets, 2017, table 1.

stem     3x3, 32                         (large images: stride 2)
blocks   [3x3 depthwise; 1x1] with channels 64, 128/2, 128, 256/2, 256, 512/2, 512 x 5, 1024/2, 1024 (/stride)
global average pool, fully connected
"""

from __future__ import annotations

from .layers import GlobalAvgPool, Layer, Linear, Network, SoftmaxCrossEntropy
from .parts import SMALL_IMAGE, convolution_norm

BLOCKS = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1))


def network(
    name: str, size: int, num_classes: int, width: int = 32, blocks: tuple[tuple[int, int], ...] = BLOCKS
) -> Network:
    """The network for images of size x size; `blocks` are (channels, stride), `width` the channels of the stem."""
    channels = width
    layers: list[Layer] = convolution_norm("conv1", "bn1", channels, 3, 1 if size <= SMALL_IMAGE else 2)
    for number, (channels_out, stride) in enumerate(blocks):
        block = f"layers.{number}"
        layers += convolution_norm(f"{block}.conv1", f"{block}.bn1", channels, 3, stride, groups=channels)
        layers += convolution_norm(f"{block}.conv2", f"{block}.bn2", channels_out, 1)
        channels = channels_out
    layers += [GlobalAvgPool("pool"), Linear("linear", num_classes), SoftmaxCrossEntropy()]
    return Network(name, (3, size, size), tuple(layers))
