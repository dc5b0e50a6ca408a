"""Layer normalisation of tokens: compiled forms against NumPy forms and against PyTorch."""

import numpy as np
from cython_src.kernels.kernel_testing import EPSILON, against_float64, draw, fill
from hypothesis import example, given, settings
from hypothesis import strategies as st

EPS = 1e-5


def check(kernel, operands, outputs, attributes, bounds):
    """Check that each compiled form is within rounding of the float64 form."""
    features, rows = attributes["features"], operands["input"].shape[0]
    for _, got, expected, what in against_float64(kernel, operands, outputs, attributes, bounds):
        largest = np.abs(expected).max() + np.abs(operands["input"]).max()
        tolerance = (8 + np.sqrt(features) + rows) * EPSILON * largest
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=tolerance, err_msg=what)


@settings(max_examples=25)
@given(st.integers(1, 9), st.integers(4, 200), st.sampled_from(["", "residual", "sum"]), st.integers(0, 2**32 - 1))
@example(3, 768, "sum", 1)
@example(3, 768, "residual", 1)
def test_forward_equals_numpy_form(rows, features, added, seed):
    """Check output, statistics and, with a residual, the sum where it is kept; the mean is far from zero."""
    rng = np.random.default_rng(seed)
    operands = {"input": draw(rng, rows, features) + 3}
    names = ["output", "statistics"]
    if added:
        operands["residual"] = draw(rng, rows, features)
    if added == "sum":
        operands["sum"] = fill(draw(rng, rows, features))
        names.append("sum")
    operands |= {"weight": draw(rng, features), "bias": draw(rng, features)}
    operands |= {"output": fill(draw(rng, rows, features)), "statistics": fill(draw(rng, rows, 2))}
    check("layernorm_forward", operands, names, {"features": features, "eps": EPS}, [(0, rows // 2), (rows // 2, rows)])


@settings(max_examples=25)
@given(st.integers(2, 9), st.integers(4, 200), st.booleans(), st.integers(0, 2**32 - 1))
@example(3, 768, True, 1)
def test_backward_equals_numpy_form(rows, features, with_residual, seed):
    """Check dx, with and without a gradient that is added, and the partial sums of two blocks."""
    rng = np.random.default_rng(seed)
    x = draw(rng, rows, features)
    statistics = np.stack([x.mean(axis=1), 1 / np.sqrt(x.var(axis=1) + EPS)], axis=1)
    operands = {"gradient": draw(rng, rows, features), "input": x, "weight": draw(rng, features)}
    operands["statistics"] = statistics.astype(np.float32)
    if with_residual:
        operands["residual"] = draw(rng, rows, features)
    operands["output"] = fill(draw(rng, rows, features))
    for name in ("weight_partials", "bias_partials"):
        operands[name] = fill(draw(rng, 2, features))
    bounds = [(0, rows // 2, 0), (rows // 2, rows, 1)]
    names = ["output", "weight_partials", "bias_partials"]
    check("layernorm_backward", operands, names, {"features": features}, bounds)


@settings(max_examples=25)
@given(st.integers(2, 9), st.integers(1, 200), st.sampled_from(["", "residual", "sum"]), st.integers(0, 2**32 - 1))
def test_no_norm_equals_numpy_forms(rows, features, added, seed):
    """Check scale and shift, with a residual and without, and all gradients by partial buffers of two blocks."""
    rng = np.random.default_rng(seed)
    residual = {"residual": draw(rng, rows, features)} if added else {}
    operands = {"input": draw(rng, rows, features), **residual}
    if added == "sum":
        operands["sum"] = fill(draw(rng, rows, features))
    operands |= {"weight": draw(rng, features), "bias": draw(rng, features)}
    operands["output"] = fill(draw(rng, rows, features))
    names = ["output", "sum"] if added == "sum" else ["output"]
    bounds = [(0, rows // 2), (rows // 2, rows)]
    check("layernorm_forward", operands, names, {"features": features, "eps": EPS}, bounds)
    operands = {"gradient": draw(rng, rows, features), "input": operands["input"], "weight": operands["weight"]}
    operands |= {**residual, "output": fill(draw(rng, rows, features))}
    operands |= {name: fill(draw(rng, 2, features)) for name in ("weight_partials", "bias_partials")}
    bounds = [(*block, number) for number, block in enumerate(bounds)]
    names = ["output", "weight_partials", "bias_partials"]
    check("layernorm_backward", operands, names, {"features": features}, bounds)
