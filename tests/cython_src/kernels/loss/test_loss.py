"""Softmax and loss, of classes and of a vocabulary: compiled forms against NumPy forms."""

import numpy as np
import pytest
from cython_src.kernels.kernel_testing import EPSILON, INSTRUCTION_SETS, against_float64, fill, run_kernel
from hypothesis import example, given, settings
from hypothesis import strategies as st

from forktask.cython_src.binding.bind import BlockFailure
from forktask.cython_src.kernels.loss.loss import IGNORED


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
        for _, got, expected, what in against_float64(kernel, operands, outputs, chosen, groups_of):
            np.testing.assert_allclose(got, expected, rtol=lanes * relative, atol=relative, err_msg=what)
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


def make_operands(rng, rows, vocabulary, pitch, scale):
    logits = np.full((rows, pitch), np.nan, np.float32)
    logits[:, :vocabulary] = scale * rng.standard_normal((rows, vocabulary))
    return {
        "logits": logits,
        "targets": rng.integers(0, vocabulary, rows).astype(np.int32),
        "logsumexp": fill(np.empty(rows, np.float32)),
        "losses": fill(np.empty(rows, np.float32)),
        "correct": fill(np.empty(rows, np.int32)),
    }


def run_all(operands, attributes, bounds, *target):
    """Results of the fused kernel, of evaluation, and of the two kernels that together are the fused one."""

    def run(kernel, names, outputs, given=operands):
        return run_kernel(kernel, {n: given[n] for n in names}, outputs, attributes, bounds, *target)

    counts = ["losses", "correct"]
    fused = run("vocabulary_loss", ["logits", "targets", *counts], ["logits", *counts])
    evaluated = run("vocabulary_evaluate", ["logits", "targets", *counts], counts)
    first = run("vocabulary_evaluate", ["logits", "targets", "logsumexp", *counts], ["logsumexp", *counts])
    given = operands | {"logsumexp": first["logsumexp"]}
    second = run("vocabulary_gradient", ["logits", "targets", "logsumexp"], ["logits"], given)
    return fused, evaluated, first, second


@settings(max_examples=25)
@given(st.integers(1, 6), st.integers(1, 300), st.integers(0, 40), st.sampled_from([0.1, 3, 30]), st.integers(0, 2**32))
@example(2, 50257, 47, 5, 1)
def test_kernels_equal_numpy_forms(rows, vocabulary, spare, scale, seed):
    """Check losses, hits and gradients of all kernels; what lies past the vocabulary, NaN here, does not count."""
    rng = np.random.default_rng(seed)
    operands = make_operands(rng, rows, vocabulary, vocabulary + spare, scale)
    attributes = {"vocabulary": vocabulary, "pitch": vocabulary + spare, "rows": rows}
    bounds = [(0, rows // 2), (rows // 2, rows)]
    expected = run_all(operands, attributes, bounds, "float64")
    largest = np.abs(operands["logits"][:, :vocabulary]).max()
    relative = (2 * largest + 20) * EPSILON
    for instruction_set in INSTRUCTION_SETS:
        got = run_all(operands, attributes, bounds, "cpu", instruction_set)
        for ours, theirs in zip(got, expected, strict=True):
            for name, value in ours.items():
                np.testing.assert_allclose(value, theirs[name], rtol=relative, atol=relative, err_msg=instruction_set)
        for result in (got[0], got[3]):
            assert (result["logits"][:, vocabulary:] == 0).all()
        assert got[0]["losses"].tobytes() == got[1]["losses"].tobytes() == got[2]["losses"].tobytes()


@pytest.mark.parametrize("form", [("cpu",), ("float64",)])
@pytest.mark.parametrize("token", [-1, 40])
def test_targets_outside_the_vocabulary_stop_the_run(form, token):
    """Check that all kernels fail."""
    operands = make_operands(np.random.default_rng(0), 2, 40, 48, 1)
    operands["targets"][1] = token
    attributes = {"vocabulary": 40, "pitch": 48, "rows": 2}
    for kernel, names in (
        ("vocabulary_loss", ("logits", "targets", "losses", "correct")),
        ("vocabulary_evaluate", ("logits", "targets", "losses", "correct")),
        ("vocabulary_evaluate", ("logits", "targets", "logsumexp", "losses", "correct")),
        ("vocabulary_gradient", ("logits", "targets", "logsumexp")),
    ):
        with pytest.raises(BlockFailure, match="status 3"):
            run_kernel(kernel, {n: operands[n] for n in names}, [], attributes, [(0, 2)], *form)


@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_ignored_rows_have_neither_loss_nor_gradient(rows, share):
    """Check all kernels against those of the other rows alone, whose number divides the gradients; where all are
    ignored the loss is zero."""
    rng = np.random.default_rng(rows)
    vocabulary, pitch = 40, 48
    operands = make_operands(rng, rows, vocabulary, pitch, 3)
    ignored = rng.permutation(rows) < round(share * rows)
    chosen = {name: array[~ignored] for name, array in operands.items()}
    operands["targets"][ignored] = IGNORED
    attributes = {"vocabulary": vocabulary, "pitch": pitch, "rows": rows, "ignored": 1}
    bounds = [(0, rows // 2), (rows // 2, rows)]
    for form in [("cpu", name) for name in INSTRUCTION_SETS] + [("float64",)]:
        got = run_all(operands, attributes, bounds, *form)
        for result in got:
            for value in result.values():
                assert (value[ignored] == 0).all()
        if not ignored.all():
            count = int((~ignored).sum())
            shape = {"vocabulary": vocabulary, "pitch": pitch, "rows": count}
            for ours, others in zip(got, run_all(chosen, shape, [(0, count)], *form), strict=True):
                for name, value in ours.items():
                    np.testing.assert_array_equal(value[~ignored], others[name])
        log = {"loss_log": fill(np.empty(2, np.float32)), "correct_log": fill(np.empty(2, np.int32))}
        sums = {name: got[0][name] for name in ("losses", "correct")} | {"labels": operands["targets"]}
        shape = {"groups": rows, "batch": rows, "length": 2, "check_finite": 1}
        found = run_kernel("loss_sum", {**sums, **log}, list(log), shape, [()], *form)
        mean = got[0]["losses"][~ignored].astype(float).mean() if not ignored.all() else 0
        assert found["loss_log"][0] == pytest.approx(mean, rel=1e-5)
