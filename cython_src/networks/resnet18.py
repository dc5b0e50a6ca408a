"""ResNet18: He et al., Deep Residual Learning for Image Recognition, 2015, table 1.

stem     3x3, 64                         (large images: 7x7, 64, stride 2; 3x3 max pool, stride 2)
layer1   [3x3, 64;  3x3, 64]  x 2
layer2   [3x3, 128; 3x3, 128] x 2, stride 2
layer3   [3x3, 256; 3x3, 256] x 2, stride 2
layer4   [3x3, 512; 3x3, 512] x 2, stride 2
global average pool, fully connected
"""

from __future__ import annotations

from .layers import Layer, Network, ReLU
from .parts import SMALL_IMAGE, add_shortcut, convolution_norm, residual_classifier


def network(name: str, size: int, num_classes: int, width: int = 64, blocks: tuple[int, ...] = (2, 2, 2, 2)) -> Network:
    """The network for images of size x size; `width` channels in the first stage, twice as many in each further one."""
    kernel, stride = (3, 1) if size <= SMALL_IMAGE else (7, 2)
    stem = convolution_norm("conv1", "bn1", width, kernel, stride)
    return residual_classifier(name, size, num_classes, blocks, width, stem, _block)


def _block(name: str, source: str, channels: int, channels_out: int, stride: int) -> list[Layer]:
    """relu(bn(conv(relu(bn(conv(x))))) + x), with x projected where its shape changes."""
    layers = [
        *convolution_norm(f"{name}.conv1", f"{name}.bn1", channels_out, 3, stride, after=source),
        *convolution_norm(f"{name}.conv2", f"{name}.bn2", channels_out, 3, relu=False),
    ]
    add_shortcut(layers, name, source, channels, channels_out, stride)
    return [*layers, ReLU(f"{name}.relu")]
