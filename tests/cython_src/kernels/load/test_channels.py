"""Images into maps, channels in the lanes: compiled forms against NumPy forms in float64, random shapes."""

import numpy as np
from cython_src.kernels.channels_testing import FEW, compare, empty_map, halos, normal, seeds, sizes
from cython_src.kernels.kernel_testing import fill
from hypothesis import given
from hypothesis import strategies as st

from forktask.cython_src.kernels.maps.channels import ChannelsMap
from forktask.cython_src.plan.builder import ranges


@FEW
@given(sizes, halos, st.booleans(), seeds)
def test_load_images(size, halo, image, seed):
    """Check that images arrive with the channels last, their labels with them, zeros elsewhere."""
    rng = np.random.default_rng(seed)
    batch, channels, height, width = size
    target = ChannelsMap("target", batch, channels, height, width, halo, image)
    operands = {
        "images": normal(rng, 7, channels, height, width),
        "dataset_labels": rng.integers(0, 10, 7).astype(np.int32),
        "batch_order": rng.integers(0, 7, (3, batch)).astype(np.int32),
        "output": empty_map(target),
        "labels": fill(np.empty((batch, 1), np.int32)),
    }
    attributes = {**target.attributes("out"), "batch": batch, "num_batches": 3, "num_images": 7}
    blocks = ranges(batch, int(rng.integers(1, batch + 1)))
    got = compare("channels_load_images", operands, ["output", "labels"], attributes, blocks, 0, iteration=4)
    natural = target.natural()({target.name: got["output"]})
    np.testing.assert_array_equal(natural, operands["images"][operands["batch_order"][1]])
    assert np.isfinite(got["output"]).all()
