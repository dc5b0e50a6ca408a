"""The float64 reference of images against finite differences; against PyTorch: `tests/random_networks`."""

import numpy as np
import pytest

from cython_src import reference
from forktask.cython_src.networks.layers import Conv2d, Linear, MaxPool, Network, ReLU, SoftmaxCrossEntropy

SMALL = Network(
    "small",
    (2, 7, 6),
    (
        Conv2d("conv1", 3, kernel=3, padding=1),
        ReLU("relu1"),
        MaxPool("pool1"),
        Conv2d("conv2", 4, kernel=3, padding=2),
        ReLU("relu2"),
        MaxPool("pool2", 3),
        Linear("fc", 5),
        SoftmaxCrossEntropy(),
    ),
)


def small_problem():
    rng = np.random.default_rng(3)
    parameters = {name: 0.3 * rng.standard_normal(shape) for name, shape in SMALL.parameter_shapes().items()}
    return parameters, rng.standard_normal((4, 2, 7, 6)), rng.integers(0, 5, 4)


def loss_of(parameters, images, labels):
    return reference.forward(SMALL, parameters, images, labels).loss


def test_gradients_equal_finite_differences():
    """Check that gradients of all parameters and of the input are slopes of the loss."""
    parameters, images, labels = small_problem()
    gradients = reference.forward_backward(SMALL, parameters, images, labels).gradients
    h = 1e-5
    rng = np.random.default_rng(0)
    for name, values in {**parameters, "input": images}.items():
        gradient = gradients[name]
        assert gradient.shape == values.shape
        for flat in rng.permutation(values.size)[:40]:
            index = np.unravel_index(flat, values.shape)
            slopes = []
            for shift in (h, -h):
                moved = values.copy()
                moved[index] += shift
                changed = {**parameters, name: moved}
                slopes.append(loss_of(changed, moved if name == "input" else images, labels))
            slope = (slopes[0] - slopes[1]) / (2 * h)
            assert gradient[index] == pytest.approx(slope, rel=1e-6, abs=1e-9), (name, index)


def test_softmax_stands_extreme_logits():
    """Check that huge logits give a finite loss and gradients."""
    network = Network("one", (1, 1, 1), (Linear("fc", 2), SoftmaxCrossEntropy()))
    parameters = {"fc.weight": np.array([[1000.0], [-1000.0]]), "fc.bias": np.zeros(2)}
    step = reference.forward_backward(network, parameters, np.ones((1, 1, 1, 1)), np.array([1]))
    assert step.loss == 2000.0 and np.isfinite(step.gradients["fc.weight"]).all()
