"""Convolution: compiled forms against the NumPy form, random shapes in both layouts."""

from functools import partial

import numpy as np
import pytest
from cython_src.kernels.kernel_testing import (
    INSTRUCTION_SETS,
    check_linear,
    cut,
    draw,
    empty_map,
    fill,
    random_map,
    run_maps,
)

from forktask.cython_src.kernels.maps.nchw import NchwMap
from forktask.cython_src.plan.builder import block_grid, ranges

# Sizes with rows of whole units, of parts of units, and of the network itself.
SIZES = [(2, 2), (4, 6), (8, 8), (16, 16), (6, 32), (10, 12), (4, 48)]


def shapes(seed):
    rng = np.random.default_rng(seed)
    height, width = SIZES[seed % len(SIZES)]
    groups, lanes = int(rng.integers(1, 3)), (16, 1)[seed % 2]
    return rng, groups, lanes, height, width, int(rng.integers(1, 7)), int(rng.integers(1, 24))


@pytest.mark.parametrize("seed", range(14))
def test_forward_equals_numpy_form(seed):
    """Check that the convolution, cut into blocks at random, equals its NumPy form, halo included."""
    rng, groups, lanes, height, width, c_in, c_out = shapes(seed)
    source = NchwMap("input", groups, c_in, height, width, lanes, 2)
    target = NchwMap("output", groups, c_out, height, width, lanes, 2 * int(rng.integers(2)))
    operands = {"input": random_map(rng, source), "weight": draw(rng, c_out, c_in, 5, 5), "bias": draw(rng, c_out)}
    operands["output"] = empty_map(target)
    attributes = {**source.attributes("in"), **target.attributes("out")}
    check_linear("conv_forward", operands, ["output"], attributes, cut(rng, groups, c_out, height), 25 * c_in + 1)


@pytest.mark.parametrize("seed", range(14))
def test_data_gradient_equals_numpy_form(seed):
    """Check the data gradient, cut into blocks at random, against its NumPy form."""
    rng, groups, lanes, height, width, c_in, c_out = shapes(seed)
    gradient = NchwMap("gradient", groups, c_out, height, width, lanes, 2)
    target = NchwMap("output", groups, c_in, height, width, lanes, 0)
    operands = {"gradient": random_map(rng, gradient), "weight": draw(rng, c_out, c_in, 5, 5)}
    operands["output"] = empty_map(target)
    attributes = {**gradient.attributes("in"), **target.attributes("out")}
    check_linear("conv_backward_data", operands, ["output"], attributes, cut(rng, groups, c_in, height), 25 * c_out)


@pytest.mark.parametrize("accumulate", [0, 1])
@pytest.mark.parametrize("seed", range(14))
def test_weight_gradient_equals_numpy_form(seed, accumulate):
    """Check the weight gradient against its NumPy form; accumulated, it adds to what was there."""
    rng, groups, lanes, height, width, c_in, c_out = shapes(seed)
    halo = 2 if lanes == 1 and width % 16 else 2 * int(rng.integers(2))
    gradient = NchwMap("gradient", groups, c_out, height, width, lanes, halo)
    source = NchwMap("input", groups, c_in, height, width, lanes, 2)
    before = draw(rng, 2, c_out, 25 * c_in + 1)
    operands = {"gradient": random_map(rng, gradient), "input": random_map(rng, source)}
    operands["output"] = before if accumulate else fill(before)
    attributes = {**gradient.attributes("dy"), **source.attributes("in"), "accumulate": accumulate}
    step = int(rng.integers(1, c_out + 1))
    bounds = [(p, 0, groups, *c) for p in (0, 1) for c in ranges(c_out, step)]
    check_linear("conv_backward_weights", operands, ["output"], attributes, bounds, height * width * groups * lanes + 1)


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("seed", range(14))
def test_fused_pooling_equals_separate_loops(seed, instruction_set):
    """Check that convolution, ReLU and pooling in one kernel give the bits of the three kernels in turn."""
    rng, groups, lanes, height, width, c_in, c_out = shapes(seed)
    source = NchwMap("input", groups, c_in, height, width, lanes, 2)
    linear = NchwMap("output", groups, c_out, height, width, lanes, 0)
    target = NchwMap("output", groups, c_out, height // 2, width // 2, lanes, 2)
    weights = {"input": random_map(rng, source), "weight": draw(rng, c_out, c_in, 5, 5), "bias": draw(rng, c_out)}
    index = fill(np.empty((groups, c_out, height // 2, width // 2, lanes), np.uint8))
    pooled, plain = empty_map(target), empty_map(linear)

    run = partial(run_maps, instruction_set=instruction_set)
    whole = [(0, groups, 0, c_out, 0, height)]
    half = [(0, groups, 0, c_out, 0, height // 2)]
    both, parts = ["output", "index"], cut(rng, groups, c_out, height // 2)
    fused = run("conv_relu_pool", {**weights, "output": pooled, "index": index}, both, source, target, parts)
    y = run("conv_forward", {**weights, "output": plain}, ["output"], source, linear, whole)["output"]
    z = run("relu_forward", {"input": y, "output": plain}, ["output"], linear, linear, whole)["output"]
    separate = run("pool_forward", {"input": z, "output": pooled, "index": index}, both, linear, target, half)
    np.testing.assert_array_equal(fused["output"], separate["output"])
    alive = separate["output"][:, :, 2 : 2 + height // 2, 2 : 2 + width // 2] > 0
    np.testing.assert_array_equal(fused["index"][alive], separate["index"][alive])
    assert (fused["index"][~alive] == 4).all()


def test_result_does_not_depend_on_block_size_or_layout():
    """Check that an output's bits are the same however the loop is cut, and in both layouts (FMA order is
    fixed)."""
    rng = np.random.default_rng(3)
    images = draw(rng, 16, 4, 8, 8)
    weights = {"weight": draw(rng, 9, 4, 5, 5), "bias": draw(rng, 9)}
    for instruction_set in INSTRUCTION_SETS:
        results = []
        for lanes in (16, 1):
            source = NchwMap("input", 16 // lanes, 4, 8, 8, lanes, 2)
            target = NchwMap("output", 16 // lanes, 9, 8, 8, lanes, 0)
            x = np.zeros(source.shape, np.float32)
            x[:, :, 2:10, 2:10] = images.reshape(16 // lanes, lanes, 4, 8, 8).transpose(0, 2, 3, 4, 1)
            for c, y in ((9, 8), (2, 2), (4, 3)):
                bounds = [(*g, *o, *r) for g, o, r in block_grid(ranges(16 // lanes, 1), ranges(9, c), ranges(8, y))]
                operands = {"input": x, **weights, "output": empty_map(target)}
                out = run_maps("conv_forward", operands, ["output"], source, target, bounds, instruction_set)["output"]
                results.append(out.transpose(0, 4, 1, 2, 3).reshape(16, 9, 8, 8))
        assert all((r == results[0]).all() for r in results), instruction_set


def test_nan_is_not_hidden_by_relu_and_pooling():
    """Check that a NaN among the parameters reaches the pooled output instead of becoming zero."""
    source = NchwMap("input", 1, 1, 4, 16, 1, 2)
    target = NchwMap("output", 1, 1, 2, 8, 1, 0)
    operands = {
        "input": random_map(np.random.default_rng(0), source),
        "weight": np.full((1, 1, 5, 5), np.nan, np.float32),
        "bias": np.zeros(1, np.float32),
        "output": np.zeros(target.shape, np.float32),
        "index": np.zeros((1, 1, 2, 8, 1), np.uint8),
    }
    for instruction_set in INSTRUCTION_SETS:
        out = run_maps("conv_relu_pool", operands, ["output"], source, target, [(0, 1, 0, 1, 0, 2)], instruction_set)
        assert np.isnan(out["output"]).all()
