"""Linear layers of tokens that read or write columns of wider maps, with two weights, and with ReLU."""

import numpy as np
import pytest
from cython_src.kernels.kernel_testing import INSTRUCTION_SETS, check_linear, draw, fill, run_kernel
from hypothesis import example, given, settings
from hypothesis import strategies as st

from forktask.cython_src.kernels.linear.linear import RELU

SIZES = st.tuples(st.integers(1, 20), st.integers(1, 60), st.integers(1, 90))
OFFSETS = st.tuples(st.integers(0, 20), st.integers(0, 20))


def placed(array, before, after):
    """The array within wider rows, NaN around it."""
    wide = np.full((len(array), before + array.shape[1] + after), np.nan, np.float32)
    wide[:, before : before + array.shape[1]] = array
    return wide


@settings(max_examples=20)
@given(SIZES, OFFSETS, st.integers(0, 2**32 - 1))
@example((9, 600, 140), (3, 5), 1)
def test_columns_of_wider_maps_are_those_of_dense_ones(sizes, around, seed):
    """Check that all three kernels leave the bits of dense maps, and nothing around their columns."""
    rng = np.random.default_rng(seed)
    (rows, inputs, outputs), (before, after) = sizes, around
    x, w, dy = draw(rng, rows, inputs), draw(rng, outputs, inputs), draw(rng, rows, outputs)
    shape, pitch = {"inputs": inputs, "outputs": outputs}, before + after
    # Kernel, operands with their NaN results, the operand that is written, attributes, and those of wider maps.
    cases = (
        (
            "linear_forward",
            {"input": x, "weight": w},
            ("output", (rows, outputs)),
            {"output_pitch": outputs, "activation": 0},
            {"output_pitch": outputs + pitch, "output_offset": before},
            (0, rows, 0, outputs),
        ),
        (
            "linear_backward_data",
            {"gradient": dy, "weight": w},
            ("output", (rows, inputs)),
            {"gradient_pitch": outputs, "accumulate": 0},
            {
                "gradient_pitch": outputs + pitch,
                "gradient_offset": before,
                "output_pitch": inputs + pitch,
                "output_offset": before,
            },
            (0, rows, 0, inputs),
        ),
        (
            "linear_backward_weights",
            {"gradient": dy, "input": x},
            ("weights", (1, outputs, inputs)),
            {"gradient_pitch": outputs, "accumulate": 0},
            {
                "gradient_pitch": outputs + pitch,
                "gradient_offset": before,
                "input_pitch": inputs + pitch,
                "input_offset": before,
            },
            (0, rows, 0, outputs, 0),
        ),
    )
    for kernel, operands, (written, size), attributes, wider, block in cases:
        for target, name in [("cpu", i) for i in INSTRUCTION_SETS] + [("numpy", None)]:
            dense = {**operands, written: fill(np.empty(size, np.float32))}
            got = run_kernel(kernel, dense, [written], {**shape, **attributes}, [block], target, name)[written]
            wide = {n: a if n == "weight" else placed(a, before, after) for n, a in operands.items()}
            if kernel == "linear_forward":
                wide["input"] = x
            columns = slice(before, before + size[-1]) if kernel != "linear_backward_weights" else slice(None)
            if kernel == "linear_backward_weights":
                wide[written] = dense[written]
            else:
                wide[written] = np.full((rows, size[1] + pitch), 7, np.float32)
            attributes_of_wide = {**shape, **attributes, **wider}
            found = run_kernel(kernel, wide, [written], attributes_of_wide, [block], target, name)[written]
            # A product of the BLAS library may add in another order when the distance between rows is another one.
            most = 1e-5 if target == "numpy" or name == "cublas" else 0
            np.testing.assert_allclose(found[..., columns], got, most, most, err_msg=f"{kernel} {target} {name}")
            assert (np.delete(found, np.r_[columns], axis=-1) == 7).all() or columns == slice(None)


@settings(max_examples=20)
@given(SIZES, st.integers(1, 70), st.booleans(), st.integers(0, 2**32 - 1))
@example((5, 128, 300), 384, True, 1)
@example((3, 700, 140), 600, True, 2)
def test_two_weights_are_one_of_both(sizes, further, with_bias, seed):
    """Check the product of a row's first features with one weight and of the others with another, cut anywhere."""
    rng = np.random.default_rng(seed)
    rows, inputs, outputs = sizes
    operands = {"input": draw(rng, rows, inputs + further), "weight": draw(rng, outputs, inputs)}
    operands["further_weight"] = draw(rng, outputs, further)
    if with_bias:
        operands["bias"] = draw(rng, outputs)
    operands["output"] = fill(draw(rng, rows, outputs))
    attributes = {"inputs": inputs, "outputs": outputs, "output_pitch": outputs, "activation": 0}
    attributes["further_inputs"] = further
    half = int(rng.integers(outputs + 1))
    bounds = [(0, rows, 0, half), (0, rows, half, outputs)]
    check_linear("linear_forward", operands, ["output"], attributes, bounds, inputs + further + 2)
    for name in INSTRUCTION_SETS:
        parts = run_kernel("linear_forward", operands, ["output"], attributes, bounds, "cpu", name)["output"]
        whole = [(0, rows, 0, outputs)]
        got = run_kernel("linear_forward", operands, ["output"], attributes, whole, "cpu", name)["output"]
        assert got.tobytes() == parts.tobytes()


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("outputs", [5, 16, 83, 200])
def test_relu_is_that_of_a_loop_of_its_own(instruction_set, outputs):
    """Check ReLU in the product's loop, and the gradient that passes where its result is positive, bit for bit."""
    rng = np.random.default_rng(outputs)
    rows, inputs = 7, 40
    operands = {"input": draw(rng, rows, inputs), "weight": draw(rng, outputs, inputs), "bias": draw(rng, outputs)}
    operands["output"] = fill(draw(rng, rows, outputs))
    shape = {"inputs": inputs, "outputs": outputs, "output_pitch": outputs}
    found = {}
    for activation in (0, RELU):
        attributes = {**shape, "activation": activation}
        found[activation] = run_kernel(
            "linear_forward", operands, ["output"], attributes, [(0, rows, 0, outputs)], "cpu", instruction_set
        )["output"]
    np.testing.assert_array_equal(found[RELU], np.where(found[0] <= 0, 0, found[0]))
    assert (found[RELU] == 0).any() and (found[RELU] > 0).any()
    back = {"gradient": draw(rng, rows, inputs), "weight": draw(rng, inputs, outputs)}
    back["output"] = fill(draw(rng, rows, outputs))
    shape = {"inputs": outputs, "outputs": inputs, "gradient_pitch": inputs, "accumulate": 0}
    bounds = [(0, rows, 0, outputs)]
    plain = run_kernel("linear_backward_data", back, ["output"], shape, bounds, "cpu", instruction_set)["output"]
    back["before"] = found[RELU]
    got = run_kernel("linear_backward_data", back, ["output"], {**shape, "relu": 1}, bounds, "cpu", instruction_set)
    np.testing.assert_array_equal(got["output"], np.where(found[RELU] > 0, plain, 0))
