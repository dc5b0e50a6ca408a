"""Loading: images into maps with the images in the lanes, pixels of one image, tokens of a text."""

import numpy as np
import pytest
from cython_src.kernels.kernel_testing import INSTRUCTION_SETS, fill, run_kernel
from PIL import Image

from forktask.cython_src.binding.bind import BlockFailure
from forktask.cython_src.kernels.load.load import put, scale
from forktask.cython_src.kernels.maps.nchw import NchwMap
from forktask.cython_src.kernels.simd.instruction_sets import available


@pytest.mark.parametrize(("lanes", "batch", "width"), [(16, 16, 32), (16, 19, 20), (1, 2, 6)])
def test_load_is_exact(lanes, batch, width):
    """Check that images and labels of the iteration's row of the table arrive, zeros elsewhere."""
    rng = np.random.default_rng(1)
    target = NchwMap("output", 2, 3, 4, width, lanes, 2)
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


def test_bad_indices_stop_the_run():
    """Check that an index outside the data set makes the kernel fail."""
    target = NchwMap("output", 1, 1, 2, 2, 1, 2)
    operands = {
        "images": np.zeros((3, 1, 2, 2), np.float32),
        "dataset_labels": np.zeros(3, np.int32),
        "batch_order": np.full((1, 1), 3, np.int32),
        "output": np.zeros(target.shape, np.float32),
        "labels": np.zeros((1, 1), np.int32),
    }
    attributes = {**target.attributes("out"), "batch": 1, "num_batches": 1, "num_images": 3}
    for where in ("cpu", "float64"):
        with pytest.raises(BlockFailure, match="status 2"):
            run_kernel("load_images", operands, [], attributes, [(0, 1)], where)


@pytest.mark.parametrize(
    ("old", "rows", "columns", "new"),
    [
        ((480, 640), (0, 480), (0, 640), (270, 360)),
        ((48, 640), (0, 48), (80.5, 400), (27, 270)),
        ((61, 47), (3.25, 50.5), (0, 47), (20, 32)),
        ((20, 30), (0, 20), (4.5, 20), (45, 70)),
        ((97, 90), (0, 97), (0, 90), (7, 9)),
        ((33, 21), (0, 33), (0, 21), (33, 21)),
        ((1, 1), (0, 1), (0, 1), (3, 4)),
        ((1, 300), (0, 1), (0, 300), (1, 2)),
    ],
)
def test_scaled_pixels_are_those_of_pillow(old, rows, columns, new):
    """Check equal pixels of all instruction sets, within a level of Pillow's filter, which rounds elsewhere."""
    pixels = np.random.default_rng(1).integers(0, 256, (*old, 3), dtype=np.uint8)
    box = (columns[0], rows[0], sum(columns), sum(rows))
    expected = np.asarray(Image.fromarray(pixels).resize(new[::-1], Image.Resampling.BILINEAR, box=box))
    result = [scale(pixels, rows, columns, *new, instruction_set) for instruction_set in available()]
    assert result[0].shape == (3, *new)
    assert np.abs(result[0].transpose(1, 2, 0).astype(int) - expected).max() <= (0 if old == new else 1)
    assert all(np.array_equal(result[0], other) for other in result)


def test_levels_that_are_equal_stay():
    """Check the ends of the range: weights add up to 1 exactly."""
    for level in (0, 1, 255):
        for new in ((270, 360), (3, 5), (700, 900)):
            assert (scale(np.full((480, 640, 3), level, np.uint8), (0, 480), (0, 640), *new) == level).all()


def test_levels_become_values_and_images_move():
    """Check tables, flips and moves, also by more than the image, against NumPy."""
    generator = np.random.default_rng(2)
    pixels = generator.integers(0, 256, (3, 5, 7), dtype=np.uint8)
    tables = generator.normal(size=(3, 256)).astype(np.float32)
    values = np.stack([table[channel] for table, channel in zip(tables, pixels, strict=True)])
    for flipped, down, right in (
        (False, 0, 0),
        (True, 0, 0),
        (True, 2, -3),
        (False, -5, 0),
        (True, 0, 9),
        (False, 1, -7),
    ):
        out = np.full((3, 5, 7), np.nan, np.float32)
        put(pixels, tables, flipped, down, right, out)
        around = np.pad(values[:, :, :: -1 if flipped else 1], ((0, 0), (9, 9), (9, 9)))
        assert np.array_equal(out, around[:, 9 - down : 14 - down, 9 - right : 16 - right])


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
