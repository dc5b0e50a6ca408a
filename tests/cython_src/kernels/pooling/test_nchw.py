"""Pooling with the images in the lanes: compiled forms against NumPy forms."""

import numpy as np
import pytest
from cython_src.kernels.kernel_testing import against_float64, fill, random_map

from forktask.cython_src.kernels.maps.nchw import NchwMap

SIZES = [(2, 2), (4, 8), (8, 6), (2, 20), (6, 32), (4, 50)]
LAYOUTS = [(16, size) for size in SIZES] + [(1, size) for size in SIZES]


@pytest.mark.parametrize(("lanes", "size"), LAYOUTS)
def test_pooling_is_exact(lanes, size):
    """Check both ways, bit for bit, ties and zeros included."""
    rng = np.random.default_rng(7)
    height, width = size
    large = NchwMap("large", 2, 3, height, width, lanes, 0)
    small = NchwMap("small", 2, 3, height // 2, width // 2, lanes, 0)
    padded = NchwMap("padded", 2, 3, height, width, lanes, 2)
    x = rng.integers(-2, 3, large.shape).astype(np.float32)
    dy = random_map(rng, small)
    index = rng.integers(0, 5, dy.shape).astype(np.uint8)
    half = [(0, 2, 0, 2, 0, height // 2), (0, 2, 2, 3, 0, height // 2)]
    output = fill(np.empty(padded.shape, np.float32))
    cases = [
        (
            "pool_forward",
            {"input": x, "output": fill(np.empty_like(dy)), "index": fill(np.empty_like(index))},
            ["output", "index"],
            large,
            small,
            half,
        ),
        ("pool_backward", {"gradient": dy, "index": index, "output": output}, ["output"], small, padded, half),
    ]
    for kernel, operands, outputs, source, target, bounds in cases:
        attributes = {**source.attributes("in"), **target.attributes("out")}
        for _, got, expected, what in against_float64(kernel, operands, outputs, attributes, bounds):
            np.testing.assert_array_equal(got, expected, err_msg=what)
