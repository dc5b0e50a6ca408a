"""ResNeXt29 (2x64d): Xie et al., Aggregated Residual Transformations for Deep Neural Networks, 2016.

stem     1x1, 64                         (large images: 7x7, 64, stride 2; 3x3 max pool, stride 2)
layer1   [1x1, 128; 3x3, 128 in 2 groups; 1x1, 256]  x 3
layer2   [1x1, 256; 3x3, 256 in 2 groups; 1x1, 512]  x 3, stride 2
layer3   [1x1, 512; 3x3, 512 in 2 groups; 1x1, 1024] x 3, stride 2
global average pool, fully connected
"""

from __future__ import annotations

from .layers import Layer, Network, ReLU
from .parts import SMALL_IMAGE, add_shortcut, convolution_norm, residual_classifier

GROUPS = 2


def network(name: str, size: int, num_classes: int, width: int = 64, blocks: tuple[int, ...] = (3, 3, 3)) -> Network:
    """The network for images of size x size; `width` channels a group in the first stage."""
    kernel, stride = (1, 1) if size <= SMALL_IMAGE else (7, 2)
    stem = convolution_norm("conv1", "bn1", width, kernel, stride)
    return residual_classifier(name, size, num_classes, blocks, width, stem, _block, 2 * GROUPS)


def _block(name: str, source: str, channels: int, channels_out: int, stride: int) -> list[Layer]:
    """relu(bn(1x1) of relu(bn(3x3 in groups)) of relu(bn(1x1)) of x + x), with x projected where its shape changes."""
    layers = [
        *convolution_norm(f"{name}.conv1", f"{name}.bn1", channels_out // 2, 1, after=source),
        *convolution_norm(f"{name}.conv2", f"{name}.bn2", channels_out // 2, 3, stride, GROUPS),
        *convolution_norm(f"{name}.conv3", f"{name}.bn3", channels_out, 1, relu=False),
    ]
    add_shortcut(layers, name, source, channels, channels_out, stride)
    return [*layers, ReLU(f"{name}.relu")]
