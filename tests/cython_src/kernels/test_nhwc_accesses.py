"""Every kernel with the channels in the lanes: blocks touch and need what they declare."""

import pytest
from cython_src.networks_for_tests import fill

from forktask.cython_src.binding.checks import check_accesses, find_unused_reads
from forktask.cython_src.kernels import kernel_table
from forktask.cython_src.kernels.interface.kernel_spec import registered
from forktask.cython_src.lowering.lower import lower
from forktask.cython_src.networks.layers import (
    Add,
    AveragePool,
    BatchNorm,
    Convolution,
    Dropout,
    FullyConnected,
    GlobalPool,
    MaxPool,
    Network,
    ReLU,
    ReLU6,
    Softmax,
)

# Every layer that has such kernels; 19 channels, so that the last block of channels is not full.
NETWORK = Network(
    "every kernel",
    (3, 6, 6),
    (
        Convolution("conv1", 19, 3, 1, bias=False),
        BatchNorm("norm1"),
        ReLU("relu1"),
        Convolution("depthwise1", 19, 3, 1, groups=19, bias=False),
        BatchNorm("norm2"),
        ReLU6("relu2"),
        Convolution("depthwise2", 19, 3, 1, groups=19, bias=False),
        BatchNorm("norm3"),
        Add("sum1", ("norm3", "relu2")),
        ReLU("relu3"),
        Convolution("conv2", 19, 1, 0, bias=False),
        BatchNorm("norm4"),
        ReLU("relu4"),
        Add("sum2", ("relu3", "relu4")),
        ReLU("relu5"),
        Dropout("dropout", 0.25),
        MaxPool("largest", 3, 2, 1),
        AveragePool("average", 2, 1),
        ReLU6("relu6"),
        FullyConnected("flat", 24),
        GlobalPool("pool", after="relu6"),
        FullyConnected("pooled", 24),
        Add("sum3", ("flat", "pooled")),
        FullyConnected("linear", 10),
        Softmax(),
    ),
)
CASES = {
    "nothing joined": {"fusion": "none", "clip_norm": 0.01, "optimizer": "adamw"},
    "activations joined": {"fusion": "activation", "momentum": 0.9, "weight_gradients": "chain"},
    "all joined": {"momentum": 0.9},
    "evaluation": {"fusion": "none", "phase": "evaluate"},
}
PLANS = {
    case: lower(
        NETWORK,
        batch=2,
        num_images=5,
        num_batches=2,
        num_iterations_logged=2,
        granularity="images=1,channels=16,rows=3",
        layout="nhwc",
        **options,
    )
    for case, options in CASES.items()
}


def test_every_kernel_is_in_a_plan():
    """Check that the plans below have each kernel of channels, and those of clipping and of both optimisers."""
    kernel_table.get("nhwc_add")  # registers all
    wanted = {name for name in registered() if name.startswith(("nhwc_", "gradient_", "optimizer_"))}
    assert wanted <= {loop.kernel for plan in PLANS.values() for loop in plan.loops}


@pytest.mark.parametrize("target", ["cpu", "numpy"])
@pytest.mark.parametrize("case", CASES)
def test_kernels_touch_what_they_declare(case, target):
    """Check accesses on poisoned memory, and that no declared read of a compiled kernel is idle."""
    options = {"initialise": fill, "num_replays": 2, "blocks_per_loop": 6}
    assert check_accesses(PLANS[case], target, **options) > len(PLANS[case].loops)
    if target == "cpu":  # NumPy forms of depthwise convolutions do without the halo
        assert find_unused_reads(PLANS[case], target, **options) == []
