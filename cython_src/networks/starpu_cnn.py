"""A small CNN for images that are no squares and large beside the network.

270 x 360 in colour is the size to which notes on convolutional networks in StarPU crop theirs. The layers are this
project's choice.
"""

from __future__ import annotations

from .layers import NetworkSpec
from .parts import convolutional_classifier


def network(name: str) -> NetworkSpec:
    """Three stages of 16, 32 and 64 channels with 3 x 3 kernels, and one fully connected layer."""
    return convolutional_classifier(name, (3, 270, 360), (16, 32, 64), 10, kernel=3)
