"""Pooling, ReLU, fully connected layer, softmax, update and input: compiled forms against NumPy forms."""

import numpy as np
import pytest
from cython_src.kernel_testing import EPSILON, INSTRUCTION_SETS, check_linear, fill, random_map, run_kernel

from forktask.cython_src.binding.bind import BlockFailure
from forktask.cython_src.lowering.layouts.lanes.maps import FeatureMap

SIZES = [(2, 2), (4, 8), (8, 6), (2, 20), (6, 32), (4, 50)]
LAYOUTS = [(16, size) for size in SIZES] + [(1, size) for size in SIZES]


@pytest.mark.parametrize(("lanes", "size"), LAYOUTS)
def test_pooling_and_relu_are_exact(lanes, size):
    """Check pooling and ReLU both ways, bit for bit, ties and zeros included."""
    rng = np.random.default_rng(7)
    height, width = size
    large = FeatureMap("large", 2, 3, height, width, lanes, 0)
    small = FeatureMap("small", 2, 3, height // 2, width // 2, lanes, 0)
    padded = FeatureMap("padded", 2, 3, height, width, lanes, 2)
    x = rng.integers(-2, 3, large.shape).astype(np.float32)
    dy = random_map(rng, small)
    index = rng.integers(0, 5, dy.shape).astype(np.uint8)
    positive = rng.integers(0, 3, large.shape).astype(np.float32)
    half, whole = [(0, 2, 0, 2, 0, height // 2), (0, 2, 2, 3, 0, height // 2)], [(0, 2, 0, 3, 0, height)]
    output = fill(np.empty(padded.shape, np.float32))
    cases = [
        (
            "pool_forward",
            {"input": x, "output": fill(np.empty_like(dy)), "index": fill(np.empty_like(index))},
            ["output", "index"],
            large,
            small,
            half,
        ),
        ("pool_backward", {"gradient": dy, "index": index, "output": output}, ["output"], small, padded, half),
        ("relu_forward", {"input": x, "output": output}, ["output"], large, padded, whole),
        (
            "relu_backward",
            {"gradient": random_map(rng, large), "activation": positive, "output": output},
            ["output"],
            large,
            padded,
            whole,
        ),
    ]
    for kernel, operands, outputs, source, target, bounds in cases:
        attributes = {**source.attributes("in"), **target.attributes("out")}
        expected = run_kernel(kernel, operands, outputs, attributes, bounds, "float64")
        for instruction_set in INSTRUCTION_SETS:
            got = run_kernel(kernel, operands, outputs, attributes, bounds, "cpu", instruction_set)
            for name in outputs:
                np.testing.assert_array_equal(got[name], expected[name], err_msg=f"{kernel} {instruction_set}")


@pytest.mark.parametrize("lanes", [16, 1])
@pytest.mark.parametrize("features", [1, 15, 64, 83, 320])
def test_fully_connected_equals_numpy_form(lanes, features):
    """Check the layer forward, its data gradient and its weight gradient."""
    rng = np.random.default_rng(features)
    groups, outputs = 3, 7
    x = rng.standard_normal((groups, features, lanes)).astype(np.float32)
    w = rng.standard_normal((outputs, features)).astype(np.float32)
    bias = rng.standard_normal(outputs).astype(np.float32)
    dy = rng.standard_normal((groups, outputs, lanes)).astype(np.float32)
    shape = {"features": features, "outputs": outputs, "lanes": lanes}
    check_linear(
        "fc_forward",
        {"input": x, "weight": w, "bias": bias, "output": fill(np.empty_like(dy))},
        ["output"],
        shape,
        [(0, 2), (2, 3)],
        features + 1,
    )
    check_linear(
        "fc_backward_data",
        {"gradient": dy, "weight": w, "output": fill(np.empty_like(x))},
        ["output"],
        shape,
        [(0, 2), (2, 3)],
        outputs,
    )
    for accumulate in (0, 1):
        out = rng.standard_normal((2, outputs, features + 1)).astype(np.float32)
        check_linear(
            "fc_backward_weights",
            {"gradient": dy, "input": x, "output": out if accumulate else fill(out)},
            ["output"],
            {**shape, "accumulate": accumulate},
            [(0, 0, 2), (1, 2, 3)],
            groups * lanes + 1,
        )


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


def test_bad_labels_and_indices_stop_the_run():
    """Check that a label outside the classes, or an index outside the data set, makes the kernel fail."""
    logits = np.zeros((1, 10, 1), np.float32)
    operands = {
        "logits": logits,
        "labels": np.full((1, 1), 10, np.int32),
        "gradient": logits,
        "losses": np.zeros(1, np.float32),
        "correct": np.zeros(1, np.int32),
    }
    target = FeatureMap("output", 1, 1, 2, 2, 1, 2)
    load = {
        "images": np.zeros((3, 1, 2, 2), np.float32),
        "dataset_labels": np.zeros(3, np.int32),
        "batch_order": np.full((1, 1), 3, np.int32),
        "output": np.zeros(target.shape, np.float32),
        "labels": np.zeros((1, 1), np.int32),
    }
    sizes = {**target.attributes("out"), "batch": 1, "num_batches": 1, "num_images": 3}
    for where in ("cpu", "float64"):
        with pytest.raises(BlockFailure, match="status 3"):
            sizes_of = {"classes": 10, "lanes": 1, "batch": 1, "label_smoothing": 0.0}
            run_kernel("softmax_loss", operands, [], sizes_of, [(0, 1)], where)
        with pytest.raises(BlockFailure, match="status 2"):
            run_kernel("load_images", load, [], sizes, [(0, 1)], where)


@pytest.mark.parametrize(("lanes", "batch", "width"), [(16, 16, 32), (16, 19, 20), (1, 2, 6)])
def test_load_is_exact(lanes, batch, width):
    """Check that images and labels of the iteration's row of the table arrive, zeros elsewhere."""
    rng = np.random.default_rng(1)
    target = FeatureMap("output", 2, 3, 4, width, lanes, 2)
    operands = {
        "images": rng.standard_normal((30, 3, 4, width)).astype(np.float32),
        "dataset_labels": rng.integers(0, 10, 30).astype(np.int32),
        "batch_order": rng.integers(0, 30, (3, batch)).astype(np.int32),
        "output": fill(np.empty(target.shape, np.float32)),
        "labels": fill(np.empty((2, lanes), np.int32)),
    }
    attributes = {**target.attributes("out"), "batch": batch, "num_batches": 3, "num_images": 30}
    bounds = [(0, 1), (1, 2)] if batch > lanes else [(0, 1)]
    for where, name in [("cpu", i) for i in INSTRUCTION_SETS] + [("float64", None)]:
        got = run_kernel("load_images", operands, ["output", "labels"], attributes, bounds, where, name, iteration=5)
        inside = got["output"][: len(bounds), :, 2:6, 2 : 2 + width]
        images = inside.transpose(0, 4, 1, 2, 3).reshape(-1, 3, 4, width)
        order = operands["batch_order"][2]
        np.testing.assert_array_equal(images[:batch], operands["images"][order])
        assert (images[batch:] == 0).all()
        np.testing.assert_array_equal(got["labels"].ravel()[:batch], operands["dataset_labels"][order])
        assert got["output"][: len(bounds)].sum() == pytest.approx(images.sum(), rel=1e-4, abs=1e-2)  # halo is zero


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
        "partials": partials,
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
