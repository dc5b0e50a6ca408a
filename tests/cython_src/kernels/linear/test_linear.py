"""Linear layers of tokens: compiled forms against NumPy forms, against PyTorch, and with any cut into blocks."""

from functools import partial

import numpy as np
import pytest
from cython_src.kernels.kernel_testing import (
    INSTRUCTION_SETS,
    against_float64,
    check_linear,
    draw,
    fill,
    pieces,
    run_kernel,
)
from hypothesis import example, given, settings
from hypothesis import strategies as st

from forktask.cython_src.kernels.interface.arguments import ACTIVATIONS
from forktask.cython_src.kernels.linear import linear
from forktask.cython_src.kernels.simd.activations import gelu, gelu_derivative
from forktask.experiments.sampling.generation import contestant_of
from forktask.experiments.subjects.models import parse_model

GELU = ACTIVATIONS.index("gelu")
SIZES = st.tuples(st.integers(1, 40), st.integers(1, 90), st.integers(1, 90))
LONG_SUMS = (17, 1100, 37)  # rows, inputs, outputs: three pieces of the sums
MANY_ROWS = (530, 33, 290)


def grid(rng, rows, columns):
    return [(*r, *c) for r in pieces(rng, rows) for c in pieces(rng, columns)]


def check_gelu(kernel, operands, outputs, attributes, bounds, terms):
    """Like `check_linear`, for a result that goes through GELU or its derivative: twice as steep at most, 5e-7 off."""
    for _, got, expected, what in against_float64(kernel, operands, outputs, attributes, bounds):
        tolerance = 2e-7 * np.sqrt(terms) * (4 + np.abs(expected).max())
        np.testing.assert_allclose(got, expected, rtol=1e-6, atol=tolerance, err_msg=what)


@settings(max_examples=40)
@given(
    SIZES,
    st.booleans(),
    st.sampled_from(["", "residual", "gelu", "gelu, kept"]),
    st.integers(0, 20),
    st.integers(0, 2**32 - 1),
)
@example(LONG_SUMS, True, "residual", 3, 1)
@example(LONG_SUMS, True, "gelu, kept", 0, 1)
@example((61, 70, 300), True, "", 0, 2)
def test_forward_equals_numpy_form(sizes, with_bias, then, spare, seed):
    """Check product, bias, residual, GELU with and without the value before it, and that nothing is written past the
    features."""
    rng = np.random.default_rng(seed)
    rows, inputs, outputs = sizes
    operands = {"input": draw(rng, rows, inputs), "weight": draw(rng, outputs, inputs)}
    if with_bias:
        operands["bias"] = draw(rng, outputs)
    if then == "residual":
        operands["residual"] = draw(rng, rows, outputs)
    if "gelu" in then:
        operands["weight"] /= np.float32(np.sqrt(inputs))
    if "kept" in then:
        operands["before"] = fill(draw(rng, rows, outputs))
    operands["output"] = np.full((rows, outputs + spare), 7, np.float32)
    attributes = {"inputs": inputs, "outputs": outputs, "output_pitch": outputs + spare}
    attributes["activation"] = GELU if "gelu" in then else 0
    bounds, names = grid(rng, rows, outputs), ["output", *["before"] * ("kept" in then)]
    check = check_gelu if "gelu" in then else check_linear
    check("linear_forward", operands, names, attributes, bounds, inputs + 2)
    for instruction_set in INSTRUCTION_SETS:
        got = run_kernel("linear_forward", operands, ["output"], attributes, bounds, "cpu", instruction_set)["output"]
        assert (got[:, outputs:] == 7).all()


@settings(max_examples=25)
@given(SIZES, st.booleans(), st.booleans(), st.integers(0, 20), st.integers(0, 2**32 - 1))
@example((17, 37, 1100), True, False, 3, 1)
@example((61, 300, 70), False, False, 0, 2)
def test_data_gradient_equals_numpy_form(sizes, accumulate, with_gelu, spare, seed):
    """Check dX, stored or added, with and without GELU's derivative; numbers past the gradient's features are not
    read."""
    rng = np.random.default_rng(seed)
    rows, inputs, outputs = sizes
    gradient = draw(rng, rows, outputs + spare)
    gradient[:, outputs:] = np.nan
    operands = {"gradient": gradient, "weight": draw(rng, outputs, inputs)}
    if with_gelu:
        operands["before"] = draw(rng, rows, inputs)
    output = draw(rng, rows, inputs)
    operands["output"] = output if accumulate else fill(output)
    attributes = {"inputs": inputs, "outputs": outputs, "gradient_pitch": outputs + spare}
    attributes["accumulate"] = int(accumulate)
    check = check_gelu if with_gelu else check_linear
    check("linear_backward_data", operands, ["output"], attributes, grid(rng, rows, inputs), outputs + 1)


@settings(max_examples=25)
@given(SIZES, st.booleans(), st.booleans(), st.integers(0, 20), st.integers(0, 2**32 - 1))
@example(MANY_ROWS, True, False, 3, 1)
@example(MANY_ROWS, True, True, 0, 2)
def test_weight_gradient_equals_numpy_form(sizes, with_bias, accumulate, spare, seed):
    """Check dW and the bias's gradient by partial buffers of rows, stored or added."""
    rng = np.random.default_rng(seed)
    rows, inputs, outputs = sizes
    slices = pieces(rng, rows)
    operands = {"gradient": draw(rng, rows, outputs + spare), "input": draw(rng, rows, inputs)}
    operands["weights"] = draw(rng, len(slices), outputs, inputs)
    if with_bias:
        operands["bias"] = draw(rng, len(slices), outputs)
    names = ["weights", "bias"] if with_bias else ["weights"]
    if not accumulate:
        for name in names:
            fill(operands[name])
    attributes = {"inputs": inputs, "outputs": outputs, "gradient_pitch": outputs + spare}
    attributes["accumulate"] = int(accumulate)
    bounds = [(*r, *o, partial) for partial, r in enumerate(slices) for o in pieces(rng, outputs)]
    check_linear("linear_backward_weights", operands, names, attributes, bounds, rows + 1)


def test_bits_do_not_depend_on_the_cut():
    """Check that blocks of any rows and columns leave the same bits, epilogues included, and tiles of 12 x 32 those of
    6 x 64."""
    rng = np.random.default_rng(4)
    rows, inputs, outputs = 61, 700, 530
    x, w, y = draw(rng, rows, inputs), draw(rng, outputs, inputs), draw(rng, rows, outputs)
    back = {"gradient_pitch": outputs, "accumulate": 0}
    for kernel, result, operands, attributes, (height, width), buffer in (
        (
            "linear_forward",
            "output",
            {"input": x, "weight": w, "bias": draw(rng, outputs), "before": fill(y.copy()), "output": fill(y.copy())},
            {"output_pitch": outputs, "activation": GELU},
            (rows, outputs),
            (),
        ),
        (
            "linear_backward_data",
            "output",
            {"gradient": y, "weight": w, "before": x, "output": fill(x.copy())},
            back,
            (rows, inputs),
            (),
        ),
        (
            "linear_backward_weights",
            "weights",
            {"gradient": y, "input": x, "weights": fill(np.empty((1, outputs, inputs), np.float32))},
            back,
            (rows, outputs),
            (0,),
        ),
    ):
        cuts = [[(0, height, 0, width, *buffer)]]
        for _ in range(6):
            # Weights are sums over the rows of a block.
            cuts.append(
                [
                    (*r, *c, *buffer)
                    for r in ([(0, height)] if buffer else pieces(rng, height))
                    for c in pieces(rng, width)
                ]
            )
        bits = {}
        for name in INSTRUCTION_SETS:
            attributes = {"inputs": inputs, "outputs": outputs, **attributes}
            runs = (run_kernel(kernel, operands, [result], attributes, bounds, "cpu", name) for bounds in cuts)
            (bits[name],) = {got[result].tobytes() for got in runs}
        assert bits.get("avx512_narrow", bits.get("avx512")) == bits.get("avx512"), kernel


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_gelu_and_its_derivative(instruction_set):
    """Check both within 5e-7 of float64 from -30 to 30, and that a NaN stays one: in layers that do nothing else."""
    x = np.linspace(-30, 30, 4096, dtype=np.float32).reshape(-1, 1)
    x[0] = np.nan
    one = np.ones((1, 1), np.float32)
    shape, bounds = {"inputs": 1, "outputs": 1}, [(0, len(x), 0, 1)]
    forward = {"input": x}, {"output_pitch": 1, "activation": GELU}
    backward = {"gradient": np.ones_like(x), "before": x}, {"gradient_pitch": 1, "accumulate": 0}
    for kernel, (inputs, more), exact in (
        ("linear_forward", forward, gelu),
        ("linear_backward_data", backward, gelu_derivative),
    ):
        operands = {**inputs, "weight": one, "output": fill(np.empty_like(x))}
        got = run_kernel(kernel, operands, ["output"], {**shape, **more}, bounds, "cpu", instruction_set)["output"]
        assert np.isnan(got[0])
        np.testing.assert_allclose(got[1:], exact(x[1:].astype(np.float64)), rtol=5e-7, atol=5e-7)


@pytest.mark.skipif("avx512" not in INSTRUCTION_SETS, reason="needs AVX-512")
def test_all_contestants_get_the_measured_tile(monkeypatch):
    """Check that a process keeps its choice, and that all contestants get it, but not another installation."""
    monkeypatch.delenv("FORKTASK_ISA", raising=False)
    chosen = linear.choose_instruction_set()
    assert chosen in ("avx512", "avx512_narrow")
    contestant = partial(contestant_of, "a", parse_model("serial"), 1, limit_s=1.0)
    assert {contestant().variables["FORKTASK_ISA"] for _ in range(3)} == {chosen}
    assert "FORKTASK_ISA" not in contestant(command=("python",)).variables


def six_products(rng, rows, inputs, outputs, scale=1.0):
    """The three kernels by six products of bfloat16, with cuts of any size: kernel, operands, result, attributes,
    bounds."""
    x, weight, gradient = draw(rng, rows, inputs), draw(rng, outputs, inputs), draw(rng, rows, outputs)
    x, scaled = x * np.float32(scale), weight * np.float32(scale)
    sizes = {"inputs": inputs, "outputs": outputs, "bf16x6": 1}
    back = {**sizes, "gradient_pitch": outputs, "accumulate": 0}
    forward, sums = (
        {**sizes, "output_pitch": outputs, "activation": 0},
        [(0, rows, *o, 0) for o in pieces(rng, outputs)],
    )
    return (
        ("linear_forward", {"input": x, "weight": weight}, gradient, forward, grid(rng, rows, outputs)),
        ("linear_backward_data", {"gradient": gradient, "weight": scaled}, x, back, grid(rng, rows, inputs)),
        ("linear_backward_weights", {"gradient": gradient, "input": x}, weight[None], back, sums),
    )


def one_block(bounds):
    """Bounds of a single block that covers others."""
    lowest, highest = np.min(bounds, axis=0), np.max(bounds, axis=0)
    return [(lowest[0], highest[1], lowest[2], highest[3], *lowest[4:])]


def run_six(case, target="cpu", instruction_set=None, **attributes):
    """Return the result of one of `six_products`."""
    kernel, operands, result, given, bounds = case
    name = "weights" if kernel.endswith("weights") else "output"
    operands = {**operands, name: fill(np.empty_like(result))}
    return run_kernel(kernel, operands, [name], {**given, **attributes}, bounds, target, instruction_set)[name]


@pytest.mark.parametrize("sizes", [(61, 300, 270), (300, 530, 33), (1, 256, 400), (33, 31, 7)])
@pytest.mark.parametrize("scale", [1.0, 1e-37, 3e-42])
def test_six_products_leave_the_same_bits_on_all_instruction_sets(sizes, scale):
    """Check AMX, where it is there ("avx512"), against the form for any processor, and cuts into blocks against one
    block: on normal numbers, on products that are denormal in part, and on denormal factors."""
    for case in six_products(np.random.default_rng(5), *sizes, scale):
        expected = run_six(case, instruction_set="generic").view(np.int32)
        assert np.any(expected) or scale < 1e-40, case[0]
        for instruction_set in INSTRUCTION_SETS:
            for one in (case, (*case[:4], one_block(case[4]))):
                got = run_six(one, instruction_set=instruction_set).view(np.int32)
                np.testing.assert_array_equal(got, expected, f"{case[0]} {instruction_set}")


def test_six_products_have_less_error_than_multiply_adds():
    """Check the root mean square against float64: below that of the chain of multiply-adds, in all three kernels."""
    for case in six_products(np.random.default_rng(6), 256, 768, 512):
        exact = run_six(case, "float64")
        six, chain = (np.sqrt(np.mean((run_six(case, bf16x6=six) - exact) ** 2)) for six in (1, 0))
        assert six < 0.8 * chain, (case[0], six, chain)


@settings(max_examples=15)
@given(SIZES, st.booleans(), st.integers(0, 2**32 - 1))
@example((300, 530, 410), True, 1)
def test_six_products_with_epilogues(sizes, accumulate, seed):
    """Check bias, GELU with the value before it, residual, and what is added to, against the NumPy forms."""
    rng = np.random.default_rng(seed)
    rows, inputs, outputs = sizes
    operands = {"input": draw(rng, rows, inputs), "weight": draw(rng, outputs, inputs) / np.float32(np.sqrt(inputs))}
    operands |= {"bias": draw(rng, outputs), "residual": draw(rng, rows, outputs)}
    operands |= {name: fill(draw(rng, rows, outputs)) for name in ("before", "output")}
    sizes = {"inputs": inputs, "outputs": outputs, "bf16x6": 1}
    attributes = {**sizes, "output_pitch": outputs, "activation": GELU}
    check_gelu("linear_forward", operands, ["before", "output"], attributes, grid(rng, rows, outputs), inputs)
    operands = {"gradient": draw(rng, rows, outputs), "input": draw(rng, rows, inputs)}
    operands |= {"weights": draw(rng, 1, outputs, inputs), "bias": draw(rng, 1, outputs)}
    bounds = [(0, rows, *o, 0) for o in pieces(rng, outputs)]
    attributes = {**sizes, "gradient_pitch": outputs, "accumulate": int(accumulate)}
    check_linear("linear_backward_weights", operands, ["weights", "bias"], attributes, bounds, rows + 1)
