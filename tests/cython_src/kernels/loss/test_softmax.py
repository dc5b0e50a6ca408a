"""Softmax and its loss: compiled forms against the NumPy form."""

import numpy as np
import pytest
from cython_src.kernels.kernel_testing import EPSILON, INSTRUCTION_SETS, fill, run_kernel

from forktask.cython_src.binding.bind import BlockFailure


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("lanes", "batch"), [(16, 16), (16, 21), (1, 2)])
def test_softmax_equals_numpy_form(lanes, batch, smoothing):
    """Check probabilities, loss, gradient and count of right answers; lanes without an image get no
    gradient."""
    rng = np.random.default_rng(batch)
    groups, classes = 2, 10
    logits = (rng.standard_normal((groups, classes, lanes)) * 20).astype(np.float32)
    labels = rng.integers(0, classes, (groups, lanes)).astype(np.int32)
    attributes = {"classes": classes, "lanes": lanes, "batch": batch}
    train_attributes = {**attributes, "label_smoothing": smoothing}
    train = {
        "logits": logits,
        "labels": labels,
        "gradient": fill(np.empty_like(logits)),
        "losses": fill(np.empty(groups, np.float32)),
        "correct": fill(np.empty(groups, np.int32)),
    }
    infer = {
        "logits": logits,
        "probabilities": fill(np.empty((batch, classes), np.float32)),
        "predictions": fill(np.empty(batch, np.int32)),
    }
    groups_of = [(g, g + 1) for g in range((batch + lanes - 1) // lanes)]
    # exp of a difference rounded to |z| eps; a handful of further roundings.
    relative = (2 * np.abs(logits).max() + 20) * EPSILON
    for kernel, operands, outputs, chosen in (
        ("softmax_loss", train, ["gradient", "losses", "correct"], train_attributes),
        ("softmax", infer, ["probabilities", "predictions"], attributes),
    ):
        expected = run_kernel(kernel, operands, outputs, chosen, groups_of, "float64")
        for instruction_set in INSTRUCTION_SETS:
            got = run_kernel(kernel, operands, outputs, chosen, groups_of, "cpu", instruction_set)
            for name in outputs:
                np.testing.assert_allclose(got[name], expected[name], rtol=lanes * relative, atol=relative)
    if batch % lanes:
        gradient = run_kernel("softmax_loss", train, ["gradient"], train_attributes, groups_of, "cpu")["gradient"]
        assert (gradient[-1, :, batch % lanes :] == 0).all()


def test_bad_labels_stop_the_run():
    """Check that a label outside the classes makes the kernel fail."""
    logits = np.zeros((1, 10, 1), np.float32)
    operands = {
        "logits": logits,
        "labels": np.full((1, 1), 10, np.int32),
        "gradient": logits,
        "losses": np.zeros(1, np.float32),
        "correct": np.zeros(1, np.int32),
    }
    attributes = {"classes": 10, "lanes": 1, "batch": 1, "label_smoothing": 0.0}
    for where in ("cpu", "float64"):
        with pytest.raises(BlockFailure, match="status 3"):
            run_kernel("softmax_loss", operands, [], attributes, [(0, 1)], where)
