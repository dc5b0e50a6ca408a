"""ReLU with the images in the lanes: compiled forms against NumPy forms."""

import numpy as np
import pytest
from cython_src.kernels.kernel_testing import INSTRUCTION_SETS, fill, random_map, run_kernel

from forktask.cython_src.kernels.maps.lanes import LanesMap


@pytest.mark.parametrize("lanes", [16, 1])
@pytest.mark.parametrize("size", [(2, 2), (4, 8), (8, 6), (2, 20), (6, 32), (4, 50)])
def test_relu_is_exact(lanes, size):
    """Check both ways, bit for bit, zeros included."""
    rng = np.random.default_rng(7)
    source, target = (LanesMap(name, 2, 3, *size, lanes, halo) for name, halo in (("source", 0), ("target", 2)))
    x = rng.integers(-2, 3, source.shape).astype(np.float32)
    activation = rng.integers(0, 3, source.shape).astype(np.float32)
    output = fill(np.empty(target.shape, np.float32))
    attributes = {**source.attributes("in"), **target.attributes("out")}
    blocks = [(0, 2, 0, 2, 0, size[0]), (0, 2, 2, 3, 0, size[0])]
    for kernel, operands, maps in (
        ("relu_forward", {"input": x}, {}),
        (
            "relu_backward",
            {"gradient": random_map(rng, source), "activation": activation},
            source.attributes("activation"),
        ),
    ):
        operands["output"] = output
        attributes |= maps
        expected = run_kernel(kernel, operands, ["output"], attributes, blocks, "float64")["output"]
        for instruction_set in INSTRUCTION_SETS:
            got = run_kernel(kernel, operands, ["output"], attributes, blocks, "cpu", instruction_set)["output"]
            np.testing.assert_array_equal(got, expected, err_msg=f"{kernel} {instruction_set}")
