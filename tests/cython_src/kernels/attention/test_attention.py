"""Attention: compiled forms against NumPy forms and PyTorch, with any cut into blocks, and what blocks touch."""

import itertools

import numpy as np
import pytest
from cython_src.kernels.kernel_testing import INSTRUCTION_SETS, fill, pieces, run_kernel
from hypothesis import example, given, settings
from hypothesis import strategies as st


def make_operands(rng, batch, sequence, heads, size, scale=1.0):
    rows, features = batch * sequence, heads * size
    return {
        "qkv": (scale * rng.standard_normal((rows, 3 * features))).astype(np.float32),
        "gradient": rng.standard_normal((rows, features)).astype(np.float32),
        "output": fill(np.empty((rows, features), np.float32)),
        "logsumexp": fill(np.empty((heads, rows), np.float32)),
        "dqkv": fill(np.empty((rows, 3 * features), np.float32)),
    }


def attributes_of(batch, sequence, heads, size, causal):
    shape = {"sequence": sequence, "heads": heads, "features": heads * size, "rows": batch * sequence}
    return {**shape, "causal": int(causal)}


def run_passes(operands, attributes, bounds, *target):
    """Output, logarithms and gradients of the three kernels, each on what those before it left."""
    slices = sorted({block[4:] for block in bounds})
    shape = (len(slices) - 1) * attributes["rows"], attributes["features"]
    operands = operands | {"parts": fill(np.empty(shape, np.float32))} if shape[0] else dict(operands)

    def run(kernel, names, outputs, blocks):
        given = {n: operands[n] for n in names if n in operands}
        operands.update(run_kernel(kernel, given, outputs, attributes, blocks, *target))

    run("attention_forward", ["qkv", "output", "logsumexp"], ["output", "logsumexp"], bounds)
    names = ["qkv", "output", "gradient", "logsumexp", "dqkv", "parts"]
    parts = [(*block, slices.index(block[4:])) for block in bounds]
    run("attention_backward", names, ["dqkv", *["parts"] * bool(shape[0])], parts)
    parts = [(*b, part if attributes["causal"] else len(slices) - 1) for *b, part in parts]
    if shape[0]:
        run("attention_add_parts", ["parts", "dqkv"], ["dqkv"], [block for block in parts if block[-1]])
    return {name: operands[name] for name in ("output", "logsumexp", "dqkv")}


def grid(rng, batch, heads, sequence, slices=None):
    """Blocks that cut samples, heads and tokens at random, or tokens into given slices."""
    parts = (pieces(rng, batch, 2), pieces(rng, heads, 2), slices or pieces(rng, sequence, 3))
    return [tuple(itertools.chain(*block)) for block in itertools.product(*parts)]


@settings(max_examples=20)
@given(
    st.integers(1, 3), st.integers(1, 150), st.integers(1, 3), st.integers(1, 70), st.booleans(), st.integers(0, 2**32)
)
@example(1, 300, 1, 64, True, 1)
@example(1, 300, 1, 64, False, 1)
@example(2, 64, 2, 16, True, 2)
def test_kernels_equal_numpy_forms(batch, sequence, heads, size, causal, seed):
    """Check output and all gradients, causal or not; every element is written."""
    rng = np.random.default_rng(seed)
    operands = make_operands(rng, batch, sequence, heads, size)
    attributes = attributes_of(batch, sequence, heads, size, causal)
    bounds = grid(rng, batch, heads, sequence)
    expected = run_passes(operands, attributes, bounds, "float64")
    for instruction_set in INSTRUCTION_SETS:
        got = run_passes(operands, attributes, bounds, "cpu", instruction_set)
        for name, value in got.items():
            # Sums of up to `sequence` terms and scores of `size` terms, each rounded.
            tolerance = 4e-7 * (8 + np.sqrt(sequence) + np.sqrt(size)) * (1 + np.abs(expected[name]).max())
            np.testing.assert_allclose(
                value, expected[name], rtol=1e-5, atol=tolerance, err_msg=f"{name} {instruction_set}"
            )


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_bits_do_not_depend_on_the_cut(instruction_set, causal):
    """Check that blocks of any samples, heads and tokens leave the same bits, but for gradients of queries, which are
    sums over slices of keys: those do not depend on samples and heads."""
    rng = np.random.default_rng(7)
    batch, sequence, heads, size = 2, 350, 2, 24
    operands = make_operands(rng, batch, sequence, heads, size, scale=2.0)
    attributes = attributes_of(batch, sequence, heads, size, causal)
    whole = run_passes(operands, attributes, [(0, batch, 0, heads, 0, sequence)], "cpu", instruction_set)
    features = heads * size
    for _ in range(4):
        slices = pieces(rng, sequence, 3)
        first, other = (
            run_passes(operands, attributes, grid(rng, batch, heads, sequence, slices), "cpu", instruction_set)
            for _ in range(2)
        )
        for name, value in first.items():
            assert value.tobytes() == other[name].tobytes(), name
            start = features * (name == "dqkv")
            assert value[:, start:].tobytes() == whole[name][:, start:].tobytes(), name


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_large_scores_do_not_overflow(instruction_set):
    """Check scores of several hundreds: the largest score takes all."""
    rng = np.random.default_rng(3)
    operands = make_operands(rng, 1, 100, 1, 32, scale=12.0)
    attributes = attributes_of(1, 100, 1, 32, True)
    got = run_passes(operands, attributes, [(0, 1, 0, 1, 0, 100)], "cpu", instruction_set)
    expected = run_passes(operands, attributes, [(0, 1, 0, 1, 0, 100)], "float64")
    for name, value in got.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-3, atol=1e-3 * np.abs(expected[name]).max())
