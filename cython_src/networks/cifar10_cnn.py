"""The CIFAR-10 demonstration network of ConvNetJS, also in the notes of Stanford's CS231n."""

from __future__ import annotations

from .layers import NetworkSpec
from .parts import convolutional_classifier


def network(name: str) -> NetworkSpec:
    """Three stages of 16, 20 and 20 channels, and one fully connected layer."""
    return convolutional_classifier(name, (3, 32, 32), (16, 20, 20), 10)
