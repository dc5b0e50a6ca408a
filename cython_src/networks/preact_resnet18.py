"""PreActResNet18: He et al., Identity Mappings in Deep Residual Networks, 2016.

As ResNet18, with norm and ReLU before each convolution; nothing is done to a sum, and a shortcut is projected by a
convolution alone.
"""

from __future__ import annotations

from .layers import Add, BatchNorm, Layer, Network, ReLU
from .parts import SMALL_IMAGE, convolution, residual_classifier


def network(name: str, size: int, num_classes: int, width: int = 64, blocks: tuple[int, ...] = (2, 2, 2, 2)) -> Network:
    """The network for images of size x size; `width` channels in the first stage, twice as many in each further one."""
    kernel, stride = (3, 1) if size <= SMALL_IMAGE else (7, 2)
    stem: list[Layer] = [convolution("conv1", width, kernel, stride)]
    return residual_classifier(name, size, num_classes, blocks, width, stem, _block)


def _block(name: str, source: str, channels: int, channels_out: int, stride: int) -> list[Layer]:
    """conv(relu(bn(conv(a)))) + x with a = relu(bn(x)), or + projection of a where the shape changes."""
    first = [BatchNorm(f"{name}.bn1", after=source), ReLU(f"{name}.relu1")]
    layers: list[Layer] = [
        *first,
        convolution(f"{name}.conv1", channels_out, 3, stride),
        BatchNorm(f"{name}.bn2"),
        ReLU(f"{name}.relu2"),
        convolution(f"{name}.conv2", channels_out, 3),
    ]
    shortcut = source
    if stride != 1 or channels != channels_out:
        shortcut = f"{name}.shortcut.0"
        layers.append(convolution(shortcut, channels_out, 1, stride, after=f"{name}.relu1"))
    return [*layers, Add(f"{name}.sum", (f"{name}.conv2", shortcut))]
