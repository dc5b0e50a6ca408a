"""Winograd form of the convolution: against the direct form in float64, its stated error, bits."""

from functools import partial

import numpy as np
import pytest
from cython_src.kernels.kernel_testing import (
    EPSILON,
    INSTRUCTION_SETS,
    cut,
    draw,
    empty_map,
    fill,
    random_map,
    run_kernel,
    run_maps,
)

from forktask.cython_src.errors import UsageError
from forktask.cython_src.kernels.maps.nchw import NchwMap
from forktask.cython_src.lowering.layouts.nchw.algorithms import choose_convolution
from forktask.cython_src.lowering.lower import lower
from forktask.cython_src.networks.parts import convolutional_classifier
from forktask.cython_src.plan.builder import ranges

# Whole tiles of 4 x 4, parts of tiles, and strips of one to more than four tiles.
SIZES = [(4, 4), (2, 6), (8, 8), (16, 16), (6, 32), (10, 12), (14, 20)]
# The documented bound: of any element, over the root mean square of the exact result, for normal numbers and any shape.
STATED_ERROR = 2e-4


def shapes(seed):
    rng = np.random.default_rng(seed)
    height, width = SIZES[seed % len(SIZES)]
    return rng, int(rng.integers(1, 3)), height, width, int(rng.integers(1, 24)), int(rng.integers(1, 24))


def check_error(kernel, operands, attributes, bounds, expected, limit=STATED_ERROR):
    """Check every instruction set against `expected`; returns the largest error over the root mean square."""
    largest = 0.0
    for instruction_set in INSTRUCTION_SETS:
        got = run_kernel(kernel, operands, ["output"], attributes, bounds, "cpu", instruction_set)["output"]
        error = np.abs(got - expected).max() / np.sqrt((expected**2).mean())
        assert error < limit, (kernel, instruction_set)
        largest = max(largest, error)
    return largest


def transformed(weight, flip, target, instruction_set=None):
    outputs, inputs = weight.shape[:2]
    if flip:
        outputs, inputs = inputs, outputs
    return run_kernel(
        "winograd_weights",
        {"weight": weight, "transformed": fill(np.empty((64, inputs, outputs), np.float32))},
        ["transformed"],
        {"outputs": outputs, "inputs": inputs, "flip": int(flip)},
        ranges(inputs, 3),
        target,
        instruction_set,
    )["transformed"]


@pytest.mark.parametrize("flip", [False, True])
def test_weights_are_transformed(flip):
    """Check the transformed weights of each instruction set, flipped or not, against float64."""
    weight = np.random.default_rng(1).standard_normal((19, 5, 5, 5)).astype(np.float32)
    expected = transformed(weight, flip, "float64")
    for instruction_set in INSTRUCTION_SETS:
        got = transformed(weight, flip, "cpu", instruction_set)
        np.testing.assert_allclose(got, expected, rtol=0, atol=30 * EPSILON * np.abs(weight).max())


@pytest.mark.parametrize("seed", range(14))
def test_forward_is_within_the_stated_error(seed):
    """Check the convolution, cut into blocks at random, against the direct convolution in float64."""
    rng, groups, height, width, c_in, c_out = shapes(seed)
    source = NchwMap("input", groups, c_in, height, width, 16, 2)
    target = NchwMap("output", groups, c_out, height, width, 16, 2 * int(rng.integers(2)))
    weight = draw(rng, c_out, c_in, 5, 5)
    operands = {"input": random_map(rng, source), "weight": weight, "bias": draw(rng, c_out)}
    operands["output"] = empty_map(target)
    attributes = {**source.attributes("in"), **target.attributes("out")}
    bounds = cut(rng, groups, c_out, height)
    expected = run_kernel("conv_forward", operands, ["output"], attributes, bounds, "float64")["output"]
    del operands["weight"]
    operands["transformed"] = transformed(weight, False, "cpu")
    check_error("winograd_forward", operands, attributes, bounds, expected)


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_fused_pooling_and_cuts_leave_the_bits(instruction_set):
    """Check that ReLU and pooling in the kernel give the bits of separate loops, however loops are cut by tiles."""
    rng = np.random.default_rng(4)
    source = NchwMap("input", 1, 5, 12, 20, 16, 2)
    linear = NchwMap("output", 1, 7, 12, 20, 16, 0)
    target = NchwMap("output", 1, 7, 6, 10, 16, 2)
    weight = draw(rng, 7, 5, 5, 5)
    inputs = {
        "input": random_map(rng, source),
        "transformed": transformed(weight, False, "cpu", instruction_set),
        "bias": draw(rng, 7),
    }
    pooled, plain = (empty_map(m) for m in (target, linear))
    index = fill(np.empty((1, 7, 6, 10, 16), np.uint8))

    run = partial(run_maps, instruction_set=instruction_set)
    whole = run("winograd_forward", {**inputs, "output": plain}, ["output"], source, linear, [(0, 1, 0, 7, 0, 12)])
    y = run(
        "relu_forward", {"input": whole["output"], "output": plain}, ["output"], linear, linear, [(0, 1, 0, 7, 0, 12)]
    )["output"]
    separate = run(
        "pool_forward", {"input": y, "output": pooled, "index": index}, ["output"], linear, target, [(0, 1, 0, 7, 0, 6)]
    )["output"]
    for c, rows in ((7, 6), (3, 2), (4, 4)):
        bounds = [(0, 1, *o, *r) for o in ranges(7, c) for r in ranges(6, rows)]
        got = run(
            "winograd_relu_pool", {**inputs, "output": pooled, "index": index}, ["output"], source, target, bounds
        )["output"]
        np.testing.assert_array_equal(got, separate)


def test_choice_is_by_cost_and_shown():
    """Check which form "auto" takes, that the plan says so, and that Winograd is refused in the layout "nchw"."""
    assert choose_convolution(16, 20, 16, 16) == "winograd"
    assert choose_convolution(1, 1, 16, 16) == "direct"
    network = convolutional_classifier("small", (2, 8, 8), (16,), 3)
    plan = lower(network, batch=16, conv="winograd")
    assert plan.attributes["conv"] == "winograd"
    assert plan.attributes["convolutions"] == {"conv1": "winograd", "conv1.weight_gradient": "winograd"}
    assert set(lower(network, batch=16, conv="direct").attributes["convolutions"].values()) == {"direct"}
    assert set(lower(network, batch=1).attributes["convolutions"].values()) == {"direct"}
    with pytest.raises(UsageError, match="in layout 'nchw', got 'winograd'"):
        lower(network, batch=16, conv="winograd", layout="nchw")
    with pytest.raises(UsageError, match="conv must be one of auto.* got .fft."):
        lower(network, batch=16, conv="fft")
