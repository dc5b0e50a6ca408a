"""Algorithms of single convolutions, named by shape."""

from dataclasses import replace

import pytest

from forktask.cython_src.errors import UsageError
from forktask.cython_src.kernels.convolution.algorithms import loops_with_choice
from forktask.cython_src.kernels.convolution.specs import ALGORITHMS
from forktask.cython_src.lowering.lower import lower
from forktask.cython_src.lowering.options import PlanOptions
from forktask.cython_src.networks.layers import Conv2d, GlobalAvgPool, Linear, Network, SoftmaxCrossEntropy
from forktask.experiments.subjects.models import options_for
from forktask.experiments.sweep.configuration import Configuration, Grid
from forktask.experiments.training.train import configure

END = (GlobalAvgPool("pool"), Linear("linear", 2), SoftmaxCrossEntropy())
NETWORK = Network("two", (16, 8, 8), (Conv2d("first", 32, 3, 1), Conv2d("second", 32, 3, 1), *END))
SHAPES = [
    "forward:4x16x32x8x8",
    *(f"{direction}:4x32x32x8x8" for direction in ("forward", "data", "weights")),
    "weights:4x16x32x8x8",
]
OPTIONS = PlanOptions(batch=4, layout="nhwc")


def test_a_shape_has_the_algorithm_that_is_named():
    """Check that each named algorithm is that of the loops of its shape, and of no others; a GPU has none."""
    usual = loops_with_choice(lower(NETWORK, OPTIONS))
    assert sorted(usual) == sorted(SHAPES)
    for shape in SHAPES:
        for name in ALGORITHMS:
            plan = lower(NETWORK, OPTIONS, algorithms=f"{shape}={name}")
            assert loops_with_choice(plan) == {**usual, shape: name}
    assert options_for("gpu_stream", "auto", "auto")["algorithms"] == ""
    assert "algorithms" not in options_for("serial", "auto", "auto")


@pytest.mark.parametrize("text", ["fastest", "weights:4x16x32x8=direct", "weights:4x16x32x8x8=fft", "4x16x32x8x8"])
def test_what_names_no_algorithm_is_refused(text):
    """Check the sentence that refuses it."""
    with pytest.raises(UsageError, match="algorithms must name a direction"):
        PlanOptions(algorithms=text)


def test_a_shape_that_no_plan_has_is_refused():
    """Check a slip in a number, in a comparison and in a training; of several networks one is enough."""
    slip, right = "weights:4x256x256x8x9=direct", "weights:4x256x256x8x8=direct"
    grid = Grid(network=("cifar10_cnn", "resnet18"), batch=(4,), algorithms=(slip,), models=("serial",))
    with pytest.raises(UsageError, match=r"must name convolutions of these plans.*got weights:4x256x256x8x9; did you"):
        Configuration(grid=grid).check_algorithms()
    Configuration(grid=replace(grid, algorithms=("", right))).check_algorithms()
    with pytest.raises(UsageError, match="must name convolutions of these plans"):
        configure({"network": "resnet18", "batch": 8, "algorithms": right}, resume=False)
    assert configure({"network": "resnet18", "batch": 4, "algorithms": right}, resume=False).algorithms == right
