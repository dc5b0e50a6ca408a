"""From maps to vectors and back: compiled forms against their NumPy forms in float64, random shapes."""

import numpy as np
from cython_src.kernels.channels_testing import FEW, boxes, compare, empty_map, halos, maps, random_map, seeds, sizes
from cython_src.kernels.kernel_testing import fill
from hypothesis import given
from hypothesis import strategies as st


@FEW
@given(sizes, st.sampled_from([7, 16, 21, 37]), halos, st.sampled_from([0, 1]), seeds)
def test_flatten(size, width, halo, accumulate, seed):
    """Check that vectors have the elements of maps in the order channel, row, column, and the way back."""
    rng = np.random.default_rng(seed)
    (m,) = maps((*size[:3], width), halo)
    blocks = boxes(rng, m)
    x = random_map(rng, m)
    shape = (m.batch, m.channels * m.height * m.width, 1)
    operands = {"input": x, "output": fill(np.empty(shape, np.float32))}
    images = sorted({b[:2] for b in blocks})
    flat = compare("channels_flatten", operands, ["output"], m.attributes("in"), images, 0)["output"]
    natural = m.natural()({m.name: x})
    np.testing.assert_array_equal(flat.reshape(natural.shape), natural)
    output = random_map(rng, m) if accumulate else empty_map(m)
    operands = {"gradient": flat.astype(np.float32), "output": output}
    attributes = {**m.attributes("out"), "accumulate": accumulate}
    back = compare("channels_flatten_backward", operands, ["output"], attributes, blocks, accumulate)["output"]
    if not accumulate:
        np.testing.assert_array_equal(back, x)
