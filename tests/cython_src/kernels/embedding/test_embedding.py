"""Token and position embeddings: compiled forms against NumPy forms."""

import numpy as np
import pytest
from cython_src.kernels.kernel_testing import INSTRUCTION_SETS, draw, fill, run_kernel

from forktask.cython_src.binding.bind import BlockFailure

BATCH, SEQUENCE, VOCABULARY, POSITIONS = 3, 7, 11, 10
ROWS = BATCH * SEQUENCE
FORMS = [("cpu", name) for name in INSTRUCTION_SETS] + [("numpy", None)]


def draw_tokens(rng, rows=ROWS):
    return rng.integers(0, VOCABULARY, rows).astype(np.int32)


@pytest.mark.parametrize("features", [1, 20, 64])
@pytest.mark.parametrize("with_positions", [True, False])
def test_forward_is_exact(features, with_positions):
    """Check the sum of a token's and its position's row; blocks begin within samples."""
    rng = np.random.default_rng(features)
    operands = {"tokens": draw_tokens(rng), "token_weight": draw(rng, VOCABULARY, features)}
    expected = operands["token_weight"][operands["tokens"]]
    if with_positions:
        operands["position_weight"] = draw(rng, POSITIONS, features)
        expected = expected + np.tile(operands["position_weight"][:SEQUENCE], (BATCH, 1))
    operands["output"] = fill(draw(rng, ROWS, features))
    attributes = {"sequence": SEQUENCE, "features": features, "vocabulary": VOCABULARY}
    for target, name in FORMS:
        got = run_kernel("embedding_forward", operands, ["output"], attributes, [(0, 5), (5, ROWS)], target, name)
        np.testing.assert_array_equal(got["output"], expected, err_msg=f"{target} {name}")


@pytest.mark.parametrize(("features", "rows"), [(1, ROWS), (20, ROWS), (64, ROWS), (3, 5000)])
@pytest.mark.parametrize("accumulate", [0, 1])
def test_token_gradient_adds_rows_in_order(features, rows, accumulate):
    """Check the gradient bit for bit, whatever the cut of the features; only the first partial buffer is written."""
    rng = np.random.default_rng(features)
    output = draw(rng, 2, VOCABULARY, features)
    operands = {"tokens": draw_tokens(rng, rows), "gradient": draw(rng, rows, features), "output": output}
    expected = output.copy() if accumulate else np.zeros_like(output)
    for row, token in enumerate(operands["tokens"]):
        expected[0, token] += operands["gradient"][row]
    expected[1] = output[1]
    attributes = {"rows": rows, "features": features, "vocabulary": VOCABULARY, "accumulate": accumulate}
    for bounds in ([(0, features)], [(0, features // 3), (features // 3, features)]):
        for target, name in FORMS:
            got = run_kernel("embedding_token_gradient", operands, ["output"], attributes, bounds, target, name)
            np.testing.assert_array_equal(got["output"], expected, err_msg=f"{target} {name}")


def test_position_gradient_adds_samples_in_order():
    """Check sums over samples bit for bit, and zeros at positions that no sample reaches."""
    rng = np.random.default_rng(1)
    features = 21
    gradient = draw(rng, ROWS, features)
    operands = {"gradient": gradient, "output": fill(draw(rng, 1, POSITIONS, features))}
    expected = np.zeros((POSITIONS, features), np.float32)
    expected[:SEQUENCE] = (gradient[:SEQUENCE] + gradient[SEQUENCE : 2 * SEQUENCE]) + gradient[2 * SEQUENCE :]
    attributes = {"sequence": SEQUENCE, "batch": BATCH, "features": features}
    for target, name in FORMS:
        bounds = [(0, 3), (3, 8), (8, POSITIONS)]
        got = run_kernel("embedding_position_gradient", operands, ["output"], attributes, bounds, target, name)
        np.testing.assert_array_equal(got["output"][0], expected, err_msg=f"{target} {name}")


@pytest.mark.parametrize("with_types", [True, False])
@pytest.mark.parametrize(("target", "name"), FORMS)
def test_positions_and_types_are_added(target, name, with_types):
    """Check the sums bit for bit, and that the first type's gradient is the sum of the positions'."""
    rng = np.random.default_rng(2)
    features = 21
    operands = {"input": draw(rng, ROWS, features), "position_weight": draw(rng, POSITIONS, features)}
    expected = operands["input"] + np.tile(operands["position_weight"][:SEQUENCE], (BATCH, 1))
    if with_types:
        operands["type_weight"] = draw(rng, 2, features)
        expected = expected + operands["type_weight"][0]
    operands["output"] = fill(draw(rng, ROWS, features))
    attributes = {"sequence": SEQUENCE, "features": features}
    got = run_kernel("positions_forward", operands, ["output"], attributes, [(0, 5), (5, ROWS)], target, name)
    np.testing.assert_array_equal(got["output"], expected)
    gradient = draw(rng, 1, POSITIONS, features)
    operands = {"position_gradient": gradient, "output": fill(draw(rng, 1, 2, features))}
    attributes["types"] = 2
    got = run_kernel("type_gradient", operands, ["output"], attributes, [(0, 5), (5, features)], target, name)["output"]
    np.testing.assert_allclose(got[0, 0], gradient[0, :SEQUENCE].sum(axis=0), rtol=1e-5, atol=1e-6)
    assert (got[0, 1] == 0).all()


@pytest.mark.parametrize(("target", "name"), FORMS)
def test_neighbours_are_those_of_the_sample(target, name):
    """Check trigrams and the first token of each sample, and that what they send back is the transposed map."""
    rng = np.random.default_rng(3)
    features = 21
    x = draw(rng, ROWS, features)
    samples = np.pad(x.reshape(BATCH, SEQUENCE, features), ((0, 0), (1, 1), (0, 0)))
    expected = np.concatenate([samples[:, 2:], samples[:, 1:-1], samples[:, :-2]], axis=-1).reshape(ROWS, -1)
    shape = {"sequence": SEQUENCE, "features": features}
    rows = [(0, 5), (5, ROWS)]
    operands = {"input": x, "output": fill(np.empty_like(expected))}
    got = run_kernel("trigram_forward", operands, ["output"], shape, rows, target, name)["output"]
    np.testing.assert_array_equal(got, expected)
    gradient = draw(rng, ROWS, 3 * features)
    operands = {"gradient": gradient, "output": fill(np.empty_like(x))}
    back = run_kernel("trigram_backward", operands, ["output"], shape, rows, target, name)["output"]
    assert (got.astype(float) * gradient).sum() == pytest.approx((back.astype(float) * x).sum(), rel=1e-5)
    samples = [(0, 1), (1, BATCH)]
    operands = {"input": x, "output": fill(draw(rng, BATCH, features))}
    first = run_kernel("first_token_forward", operands, ["output"], shape, samples, target, name)["output"]
    np.testing.assert_array_equal(first, x[::SEQUENCE])
    operands = {"gradient": first, "output": fill(np.empty_like(x))}
    back = run_kernel("first_token_backward", operands, ["output"], shape, samples, target, name)["output"]
    np.testing.assert_array_equal(back, np.where(np.arange(ROWS)[:, None] % SEQUENCE == 0, x, 0))


@pytest.mark.parametrize("target", ["cpu", "numpy"])
@pytest.mark.parametrize("token", [-1, VOCABULARY])
def test_tokens_outside_the_vocabulary_stop_the_run(target, token):
    """Check that both kernels that look tokens up fail."""
    rng = np.random.default_rng(0)
    tokens = draw_tokens(rng)
    tokens[-1] = token
    shape = {"features": 4, "vocabulary": VOCABULARY}
    forward = {"tokens": tokens, "token_weight": draw(rng, VOCABULARY, 4), "output": draw(rng, ROWS, 4)}
    backward = {"tokens": tokens, "gradient": draw(rng, ROWS, 4), "output": draw(rng, 1, VOCABULARY, 4)}
    with pytest.raises(BlockFailure, match="status 3"):
        run_kernel("embedding_forward", forward, [], {**shape, "sequence": SEQUENCE}, [(0, ROWS)], target)
    with pytest.raises(BlockFailure, match="status 3"):
        attributes = {**shape, "rows": ROWS, "accumulate": 0}
        run_kernel("embedding_token_gradient", backward, [], attributes, [(0, 4)], target)
