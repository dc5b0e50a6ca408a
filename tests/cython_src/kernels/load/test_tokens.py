"""Gathering tokens from a text."""

import numpy as np
import pytest
from cython_src.kernels.kernel_testing import fill, run_kernel

from forktask.cython_src.binding.bind import BlockFailure

SEQUENCE, BATCH, SAMPLES = 5, 4, 6
ATTRIBUTES = {"sequence": SEQUENCE, "batch": BATCH, "num_batches": 3, "num_images": SAMPLES}


def make_operands(order):
    return {
        "dataset_tokens": np.arange(SAMPLES * SEQUENCE + 1, dtype=np.int32) * 7 % 50,
        "batch_order": order,
        "tokens": fill(np.empty(BATCH * SEQUENCE, np.int32)),
        "targets": fill(np.empty(BATCH * SEQUENCE, np.int32)),
    }


@pytest.mark.parametrize("target", ["cpu", "numpy"])
def test_tokens_and_their_successors_arrive(target):
    """Check the iteration's row of the table; a target is the token one later, past the sample's end too."""
    order = np.random.default_rng(1).integers(0, SAMPLES, (3, BATCH)).astype(np.int32)
    order[2, 0] = SAMPLES - 1
    operands = make_operands(order)
    names = ["tokens", "targets"]
    got = run_kernel("tokens_load", operands, names, ATTRIBUTES, [(0, 1), (1, BATCH)], target, iteration=5)
    text = operands["dataset_tokens"]
    starts = order[2][:, None] * SEQUENCE + np.arange(SEQUENCE)
    np.testing.assert_array_equal(got["tokens"].reshape(BATCH, SEQUENCE), text[starts])
    np.testing.assert_array_equal(got["targets"].reshape(BATCH, SEQUENCE), text[starts + 1])


@pytest.mark.parametrize("target", ["cpu", "numpy"])
@pytest.mark.parametrize("answers", [1, SEQUENCE])
def test_tokens_and_their_labels_arrive(target, answers):
    """Check a label of each sample, and one of each token; a sample that is not there stops the run."""
    order = np.random.default_rng(1).integers(0, SAMPLES, (3, BATCH)).astype(np.int32)
    operands = {
        "dataset_tokens": np.arange(SAMPLES * SEQUENCE, dtype=np.int32),
        "dataset_labels": -np.arange(SAMPLES * answers, dtype=np.int32),
        "batch_order": order,
        "tokens": fill(np.empty(BATCH * SEQUENCE, np.int32)),
        "targets": fill(np.empty(BATCH * answers, np.int32)),
    }
    attributes, names = {**ATTRIBUTES, "answers": answers}, ["tokens", "targets"]
    blocks = [(0, 1), (1, BATCH)]
    got = run_kernel("tokens_load", operands, names, attributes, blocks, target, iteration=5)
    for name, source, length in (("tokens", "dataset_tokens", SEQUENCE), ("targets", "dataset_labels", answers)):
        expected = operands[source].reshape(SAMPLES, length)[order[2]]
        np.testing.assert_array_equal(got[name].reshape(BATCH, length), expected)
    order[2, 1] = SAMPLES
    with pytest.raises(BlockFailure, match="status 2"):
        run_kernel("tokens_load", operands, [], attributes, blocks, target, iteration=5)


@pytest.mark.parametrize("target", ["cpu", "numpy"])
@pytest.mark.parametrize("sample", [-1, SAMPLES])
def test_samples_outside_the_text_stop_the_run(target, sample):
    """Check that the kernel fails."""
    with pytest.raises(BlockFailure, match="status 2"):
        operands = make_operands(np.full((3, BATCH), sample, np.int32))
        run_kernel("tokens_load", operands, [], ATTRIBUTES, [(0, BATCH)], target)
