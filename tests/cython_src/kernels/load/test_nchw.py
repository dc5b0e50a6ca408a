"""Images into maps with the images in the lanes: what arrives, and what is refused."""

import numpy as np
import pytest
from cython_src.kernels.kernel_testing import INSTRUCTION_SETS, fill, run_kernel

from forktask.cython_src.binding.bind import BlockFailure
from forktask.cython_src.kernels.maps.nchw import NchwMap


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
