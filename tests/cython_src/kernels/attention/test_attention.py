"""Attention: compiled forms against NumPy forms and PyTorch, with any cut into blocks, and what blocks touch."""

import itertools

import numpy as np
import pytest
from cython_src.kernels.kernel_testing import INSTRUCTION_SETS, fill, pieces, run_kernel
from hypothesis import example, given, settings
from hypothesis import strategies as st

from forktask.cython_src.binding.checks import check_accesses, find_unused_reads
from forktask.cython_src.plan.builder import PlanBuilder
from forktask.cython_src.plan.model import Block, read, update, write


def make_operands(rng, batch, sequence, heads, size, scale=1.0):
    rows, features = batch * sequence, heads * size
    return {
        "qkv": (scale * rng.standard_normal((rows, 3 * features))).astype(np.float32),
        "gradient": rng.standard_normal((rows, features)).astype(np.float32),
        "output": fill(np.empty((rows, features), np.float32)),
        "logsumexp": fill(np.empty((heads, rows), np.float32)),
        "dqkv": fill(np.empty((rows, 3 * features), np.float32)),
    }


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
    attributes = {
        "sequence": sequence,
        "heads": heads,
        "features": heads * size,
        "causal": int(causal),
        "rows": batch * sequence,
    }
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
    attributes = {
        "sequence": sequence,
        "heads": heads,
        "features": heads * size,
        "causal": causal,
        "rows": batch * sequence,
    }
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
    attributes = {"sequence": 100, "heads": 1, "features": 32, "causal": 1, "rows": 100}
    got = run_passes(operands, attributes, [(0, 1, 0, 1, 0, 100)], "cpu", instruction_set)
    expected = run_passes(operands, attributes, [(0, 1, 0, 1, 0, 100)], "float64")
    for name, value in got.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-3, atol=1e-3 * np.abs(expected[name]).max())


def attention_plan(causal, sequence=70, heads=2, size=5, batch=2):
    """A plan of the three kernels, in blocks of a head and about a third of a sample's tokens."""
    features, rows = heads * size, batch * sequence
    builder = PlanBuilder("attention")
    builder.buffer("qkv", (rows, 3 * features), role="dataset")
    builder.buffer("gradient", (rows, features), role="dataset")
    for name, shape in {
        "output": (rows, features),
        "logsumexp": (heads, rows),
        "dqkv": (rows, 3 * features),
        "parts": (2 * rows, features),
    }.items():
        builder.buffer(name, shape, role="parameter")
    attributes = {"sequence": sequence, "heads": heads, "features": features, "causal": causal, "rows": rows}

    slices = ((0, 20), (20, 66), (66, sequence))

    def blocks(accesses, loop):
        for n, h, (part, t) in itertools.product(range(batch), range(heads), enumerate(slices)):
            number = part if loop == "attention_backward" or causal else len(slices) - 1
            if loop != "attention_add_parts" or number:
                bounds = (n, n + 1, h, h + 1, *t, number)[: None if loop != "attention_forward" else 6]
                yield Block(bounds, tuple(accesses(n * sequence, h, *t, number)))

    def tokens(n, start, stop):
        return n + start, n + stop

    def columns(h, third=0):
        start = third * features + h * size
        return start, start + size

    def of_part(part, tokens):
        return tokens[0] + (part - 1) * rows, tokens[1] + (part - 1) * rows

    def forward(n, h, t0, t1, _):
        own, keys = tokens(n, t0, t1), tokens(n, 0, t1 if causal else sequence)
        yield read("qkv", own, columns(h))
        yield from (read("qkv", keys, columns(h, third)) for third in (1, 2))
        yield write("output", own, columns(h))
        yield write("logsumexp", (h, h + 1), own)

    def backward(n, h, t0, t1, part):
        own, seen = tokens(n, t0, t1), tokens(n, t0 if causal else 0, sequence)
        yield from (read(name, seen, columns(h)) for name in ("qkv", "output", "gradient"))
        yield read("logsumexp", (h, h + 1), seen)
        for third in (1, 2):
            yield read("qkv", own, columns(h, third))
            yield write("dqkv", own, columns(h, third))
        yield write("parts", of_part(part, seen), columns(h)) if part else write("dqkv", seen, columns(h))

    def add_parts(n, h, t0, t1, number):
        own = tokens(n, t0, t1)
        yield update("dqkv", own, columns(h))
        yield from (read("parts", of_part(part, own), columns(h)) for part in range(1, number + 1))

    passes = {
        "attention_forward": (forward, ("qkv", "output", "logsumexp")),
        "attention_backward": (backward, ("qkv", "output", "gradient", "logsumexp", "dqkv", "parts")),
        "attention_add_parts": (add_parts, ("parts", "dqkv")),
    }
    for kernel, (accesses, names) in passes.items():
        operands = {name: name for name in names}
        builder.loop(kernel, kernel, operands, list(blocks(accesses, kernel)), attributes=attributes)
    return builder.build()


def initialise(bound):
    rng = np.random.default_rng(0)
    for array in bound.arrays.values():
        array[...] = rng.standard_normal(array.shape)


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("target", ["cpu", "numpy"])
def test_kernels_touch_what_they_declare(target, causal):
    """Check the accesses of all three kernels in both forms, causal and not."""
    plan = attention_plan(causal)
    assert check_accesses(plan, target, initialise=initialise, num_replays=1, blocks_per_loop=6) > len(plan.loops)


@pytest.mark.parametrize("causal", [0, 1])
def test_declared_reads_are_used(causal):
    """Check that no kernel's region is too wide."""
    assert find_unused_reads(attention_plan(causal), "cpu", initialise=initialise, num_replays=1) == []


@pytest.mark.torch
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize(("sequence", "size"), [(64, 64), (512, 64), (100, 40)])
def test_error_is_pytorchs(sequence, size, causal):
    """Check output and gradients against float64: the largest error is at most four times PyTorch's."""
    import torch

    batch, heads = 1, 2
    operands = make_operands(np.random.default_rng(sequence), batch, sequence, heads, size)
    features = heads * size

    def pytorch(dtype):
        qkv = torch.tensor(operands["qkv"], dtype=dtype, requires_grad=True)
        q, k, v = qkv.reshape(sequence, 3, heads, size).permute(1, 2, 0, 3)
        o = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=bool(causal))
        o = o.permute(1, 0, 2).reshape(sequence, features)
        o.backward(torch.tensor(operands["gradient"], dtype=dtype))
        return o.detach().numpy(), *np.split(qkv.grad.numpy(), 3, axis=1)

    exact, theirs = pytorch(torch.float64), pytorch(torch.float32)
    attributes = {"sequence": sequence, "heads": heads, "features": features, "causal": causal, "rows": sequence}
    for instruction_set in INSTRUCTION_SETS:
        got = run_passes(operands, attributes, [(0, 1, 0, heads, 0, sequence)], "cpu", instruction_set)
        ours = got["output"], *np.split(got["dqkv"], 3, axis=1)
        for mine, other, truth in zip(ours, theirs, exact, strict=True):
            assert np.abs(mine - truth).max() <= 4 * np.abs(other - truth).max(), instruction_set
