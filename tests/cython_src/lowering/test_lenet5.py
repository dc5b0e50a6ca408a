"""LeNet-5: convolutions without padding, several fully connected layers with ReLU."""

import numpy as np
import pytest
from cython_src.lowering.test_lowering import prepare, reference_steps, run

from forktask.cython_src.errors import UsageError
from forktask.cython_src.kernels.simd import instruction_sets
from forktask.cython_src.lowering.lower import initialise, lower
from forktask.cython_src.networks.layers import Convolution, FullyConnected, MaxPool, Network, ReLU, Softmax
from forktask.cython_src.networks.registry import get_network

# Every padding, odd numbers of features, one fully connected layer that is wider than the one before it.
SMALL = Network(
    "small",
    (2, 14, 18),
    (
        Convolution("c1", 3, padding=1),
        ReLU("r1"),
        MaxPool("p1"),
        Convolution("c2", 7, padding=2),
        ReLU("r2"),
        MaxPool("p2"),
        FullyConnected("f1", 19),
        ReLU("r3"),
        FullyConnected("f2", 23),
        ReLU("r4"),
        FullyConnected("f3", 5),
        Softmax(),
    ),
)
CASES = [
    ("lenet5", 16, {}),
    ("lenet5", 5, {"fusion": False, "conv": "winograd"}),
    (SMALL, 20, {}),
    (SMALL, 20, {"conv": "winograd", "weight_gradients": "chain"}),
    (SMALL, 17, {"conv": "direct", "fusion": False, "memory": "shared"}),
    (SMALL, 32, {"conv": "winograd", "granularity": "images=16,channels=2,rows=2", "memory": "shared"}),
]


@pytest.mark.parametrize(("network", "batch", "options"), CASES)
def test_plan_equals_independent_step(network, batch, options):
    """Check losses, parameters and gradients of two steps: NumPy form to float64's rounding, compiled to float32's."""
    spec = get_network(network) if isinstance(network, str) else network
    plan = lower(network, batch=batch, num_images=batch + 3, **options)
    bound = prepare(plan, "float64")
    sgd, step, losses, correct = reference_steps(bound, spec, 2)
    run(bound, 2)
    np.testing.assert_allclose(bound.view("losses")[:2], losses, rtol=1e-11)
    np.testing.assert_array_equal(bound.view("correct")[:2], correct)
    for name, value in sgd.parameters.items():
        np.testing.assert_allclose(bound.view(name), value, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(bound.view(f"{name}.grad"), step.gradients[name], rtol=1e-8, atol=1e-12)
    if options.get("memory") != "shared":
        for name, value in step.activations.items():
            if name in plan.attributes["aliases"]:
                np.testing.assert_allclose(bound.view(name), value, rtol=1e-9, atol=1e-11)
    for instruction_set in instruction_sets.available():
        got = run(prepare(plan, "cpu", instruction_set), 2)
        np.testing.assert_allclose(got.view("losses")[:2], losses, rtol=1e-4)
        for name in sgd.parameters:
            scale = np.abs(step.gradients[name]).max()
            np.testing.assert_allclose(
                got.view(f"{name}.grad"), step.gradients[name], rtol=0, atol=1e-4 * scale, err_msg=name
            )


def test_flops_are_those_of_the_paper_s_sizes():
    """Check the FLOPs of a forward pass: maps of 28 and 10 pixels, 400, 120 and 84 features."""
    plan = lower("lenet5", batch=16, phase="forward")
    one = 2 * (25 * 6 * 28**2 + 25 * 6 * 16 * 10**2 + 400 * 120 + 120 * 84 + 84 * 10)
    assert sum(loop.flops for loop in plan.loops) == pytest.approx(16 * one)


def test_other_paddings_need_the_lane_layout():
    """Check the layouts that are chosen, channels where hardly a lane would hold an image, and the sentence if another
    is asked for."""
    chosen = [lower("lenet5", batch=n).attributes["layout"] for n in (1, 2, 3, 16)]
    assert chosen == ["channels", "channels", "lanes", "lanes"]
    for options in ({"conv": "direct"}, {"granularity": "images=16"}, {"fusion": "pooling"}):
        assert lower("lenet5", batch=1, **options).attributes["layout"] == "lanes"
    with pytest.raises(UsageError, match="padding 2"):
        lower("lenet5", batch=1, layout="flat")


def test_parameters_are_initialised():
    """Check that every parameter of the plan is one of the network, and weights are drawn."""
    bound = prepare(lower("lenet5", batch=16))
    initialise(bound, 2)
    assert set(bound.plan.attributes["parameters"]) == set(get_network("lenet5").parameter_shapes())
    assert all(bound.arrays[n].any() for n in bound.plan.attributes["parameters"] if n.endswith("weight"))
