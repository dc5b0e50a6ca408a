"""SGD on the sum of partial gradients: compiled forms against the NumPy form."""

import numpy as np
import pytest
from cython_src.kernels.kernel_testing import EPSILON, INSTRUCTION_SETS, fill, run_kernel


@pytest.mark.parametrize("partials", [1, 3])
def test_update_equals_numpy_form(partials):
    """Check momentum, weight decay and the learning rate of the iteration."""
    rng = np.random.default_rng(2)
    outputs, inputs = 5, 37

    def draw(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    operands = {
        "partials": draw(partials, outputs, inputs + 1),
        "gradient": fill(draw(outputs, inputs + 1)),
        "weight": draw(outputs, inputs),
        "bias": draw(outputs),
        "weight_momentum": draw(outputs, inputs),
        "bias_momentum": draw(outputs),
        "learning_rates": draw(4),
    }
    attributes = {
        "num_partials": partials,
        "outputs": outputs,
        "inputs": inputs,
        "num_rates": 4,
        "momentum": 0.9,
        "weight_decay": 0.01,
    }
    outputs_of = ["gradient", "weight", "bias", "weight_momentum", "bias_momentum"]
    expected = run_kernel("sgd", operands, outputs_of, attributes, [(0, 2), (2, 5)], "float64", iteration=6)
    for instruction_set in INSTRUCTION_SETS:
        got = run_kernel("sgd", operands, outputs_of, attributes, [(0, 2), (2, 5)], "cpu", instruction_set, iteration=6)
        for name in outputs_of:
            # Sums of at most partials + 4 terms, each a few units at most.
            np.testing.assert_allclose(got[name], expected[name], rtol=0, atol=(partials + 4) * 8 * EPSILON)
