"""LeNet-5: LeCun, Bottou, Bengio, Haffner, Gradient-based learning applied to document recognition, 1998.

In the form of today: ReLU, max-pooling, and every map of conv2 sees every map of pool1. Images of 28 x 28 are padded to
32 x 32.
"""

from __future__ import annotations

from .layers import Conv2d, Linear, MaxPool, Network, ReLU, SoftmaxCrossEntropy


def network(name: str) -> Network:
    """Two stages of 6 and 16 channels, and three fully connected layers."""
    layers = (
        Conv2d("conv1", 6, kernel=5, padding=0),
        ReLU("relu1"),
        MaxPool("pool1"),
        Conv2d("conv2", 16, kernel=5, padding=0),
        ReLU("relu2"),
        MaxPool("pool2"),
        Linear("fc1", 120),
        ReLU("relu3"),
        Linear("fc2", 84),
        ReLU("relu4"),
        Linear("fc3", 10),
        SoftmaxCrossEntropy(),
    )
    return Network(name, (1, 32, 32), layers)
