"""Fully connected layer: compiled forms against the NumPy form."""

import numpy as np
import pytest
from cython_src.kernels.kernel_testing import check_linear, fill


@pytest.mark.parametrize("lanes", [16, 1])
@pytest.mark.parametrize("features", [1, 15, 64, 83, 320])
def test_fully_connected_equals_numpy_form(lanes, features):
    """Check the layer forward, its data gradient and its weight gradient."""
    rng = np.random.default_rng(features)
    groups, outputs = 3, 7
    x = rng.standard_normal((groups, features, lanes)).astype(np.float32)
    w = rng.standard_normal((outputs, features)).astype(np.float32)
    bias = rng.standard_normal(outputs).astype(np.float32)
    dy = rng.standard_normal((groups, outputs, lanes)).astype(np.float32)
    shape = {"features": features, "outputs": outputs, "lanes": lanes}
    check_linear(
        "fc_forward",
        {"input": x, "weight": w, "bias": bias, "output": fill(np.empty_like(dy))},
        ["output"],
        shape,
        [(0, 2), (2, 3)],
        features + 1,
    )
    check_linear(
        "fc_backward_data",
        {"gradient": dy, "weight": w, "output": fill(np.empty_like(x))},
        ["output"],
        shape,
        [(0, 2), (2, 3)],
        outputs,
    )
    for accumulate in (0, 1):
        out = rng.standard_normal((2, outputs, features + 1)).astype(np.float32)
        check_linear(
            "fc_backward_weights",
            {"gradient": dy, "input": x, "output": out if accumulate else fill(out)},
            ["output"],
            {**shape, "accumulate": accumulate},
            [(0, 0, 2), (1, 2, 3)],
            groups * lanes + 1,
        )
