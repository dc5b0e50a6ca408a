"""Element-wise layers of tokens: compiled forms against NumPy forms."""

import numpy as np
import pytest
from cython_src.kernels.kernel_testing import against_float64, fill

KERNELS = [
    *(("rows_activation", ("input",), {"activation": code}) for code in (1, 3, 4)),
    *(("rows_activation_backward", ("gradient", "values"), {"activation": code}) for code in (1, 3, 4)),
    ("rows_add", ("first", "second"), {}),
]


@pytest.mark.parametrize("features", [1, 5, 16, 83, 768])
@pytest.mark.parametrize(("kernel", "inputs", "own"), KERNELS)
def test_layers_equal_numpy_forms(kernel, inputs, own, features):
    """Check ReLU, GELU, sigmoid, their gradients and sums within 5e-7; rows outside the block keep what they hold."""
    rng = np.random.default_rng(features)
    operands = {name: 4 * rng.standard_normal((5, features)).astype(np.float32) for name in inputs}
    operands["output"] = fill(np.empty((5, features), np.float32))
    attributes, bounds = {"features": features, **own}, [(1, 3), (3, 4)]
    for _, got, expected, what in against_float64(kernel, operands, ["output"], attributes, bounds):
        np.testing.assert_allclose(got, expected, rtol=5e-7, atol=5e-7, err_msg=what)
        assert np.isnan(got[[0, 4]]).all()
