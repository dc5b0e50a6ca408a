"""Pooling, channels in the lanes: compiled forms against NumPy forms in float64, random shapes."""

import numpy as np
import pytest
from cython_src.kernels.kernel_testing import against_float64, fill
from cython_src.kernels.nhwc_testing import FEW, boxes, compare, empty_map, gradient_target, random_map, window_cases
from hypothesis import given

from forktask.cython_src.kernels.maps.nhwc import NhwcMap


@FEW
@given(window_cases(lambda kernel: kernel // 2))
def test_pooling(case):
    """Check maximum and average pooling and their gradients, ties included; nothing outside the map counts."""
    large, small, window, accumulate, rng = case
    forward = {**large.attributes("in"), **small.attributes("out"), **window}
    backward = {**small.attributes("in"), **large.attributes("out"), **window, "accumulate": accumulate}
    x = np.round(2 * random_map(rng, large))
    index = fill(np.empty((small.batch, small.height, small.width, small.pitch), np.uint8))
    operands = {"input": x, "output": empty_map(small), "index": index}
    got = compare("nhwc_pool", operands, ["output", "index"], forward, boxes(rng, small), 0)
    gradient = random_map(rng, small)
    operands = {"gradient": gradient, "index": got["index"], "output": gradient_target(rng, large, accumulate)}
    taps = window["kernel"] ** 2
    compare("nhwc_pool_backward", operands, ["output"], backward, boxes(rng, large), taps + 2)
    operands = {"input": x, "output": empty_map(small)}
    compare("nhwc_pool", operands, ["output"], forward, boxes(rng, small), taps + 4)
    operands = {"gradient": gradient, "output": gradient_target(rng, large, accumulate)}
    compare("nhwc_pool_backward", operands, ["output"], backward, boxes(rng, large), taps + 4)


@pytest.mark.parametrize("kernel, stride, padding", [(2, 2, 0), (3, 2, 1), (3, 1, 1)])
def test_maximum_of_special_numbers(kernel, stride, padding):
    """Check that a NaN is a window's maximum, wherever it stands, and what infinities of both signs give."""
    large = NhwcMap("large", 1, 150, 10, 10)
    side = (10 + 2 * padding - kernel) // stride + 1
    small = NhwcMap("small", 1, 150, side, side)
    x = random_map(np.random.default_rng(0), large)
    x[0, 4, 4, ::7] = np.nan
    x[0, 5, 5, ::5] = np.inf
    x[0, 5, 6, ::3] = -np.inf
    x[0, 5:, 5:, 33] = -np.inf
    operands = {"input": x, "output": empty_map(small), "index": fill(np.empty(small.shape, np.uint8))}
    attributes = {**large.attributes("in"), **small.attributes("out")}
    attributes |= {"kernel": kernel, "stride": stride, "padding": padding}
    blocks = [(0, 1, 0, side, 0, 150)]
    for _, got, expected, what in against_float64("nhwc_pool", operands, ["output", "index"], attributes, blocks):
        np.testing.assert_array_equal(got, expected, err_msg=what)
