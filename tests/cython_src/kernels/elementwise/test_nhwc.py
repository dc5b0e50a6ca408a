"""Activation, sum and dropout, channels in the lanes: compiled forms against NumPy forms in float64, random shapes."""

import numpy as np
from cython_src.kernels.nhwc_testing import FEW, boxes, compare, empty_map, halos, maps, random_map, seeds, sizes
from hypothesis import given
from hypothesis import strategies as st

from forktask.cython_src.kernels.maps.nhwc import NhwcMap


@FEW
@given(sizes, halos, halos, st.sampled_from([0.0, 0.3, 0.9]), seeds)
def test_dropout(size, in_halo, out_halo, rate, seed):
    """Check that the mask is the generator's, whatever the blocks; the rest is scaled."""
    rng = np.random.default_rng(seed)
    source, target = maps(size, in_halo, out_halo)
    operands = {"input": random_map(rng, source), "output": empty_map(target)}
    attributes = {**source.attributes("in"), "out_halo": out_halo, "seed": seed * 7919, "layer": 3, "rate": rate}
    blocks = [b[:4] for b in boxes(rng, source, channels=False)]
    compare("nhwc_dropout", operands, ["output"], attributes, blocks, 2, iteration=2**32 + 5)


def test_generator_is_philox():
    """Check the words of the published test vectors, and that the share of kept elements is what was asked for."""
    from forktask.cython_src.kernels.elementwise.elementwise import dropout_mask, philox

    def words(counter, key):
        return [int(w) for w in philox(counter, key)]

    assert words((0,) * 4, (0, 0)) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    ones = 0xFFFFFFFF
    assert words((ones,) * 4, (ones,) * 2) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    m = NhwcMap("map", 8, 32, 16, 16)
    masks = [
        dropout_mask({**m.attributes("in"), "seed": 1, "layer": layer, "rate": 0.25}, 0, 8, 0, 16, iteration)
        for layer, iteration in ((0, 0), (1, 0), (0, 1))
    ]
    assert all(abs(mask.mean() - 0.75) < 0.01 for mask in masks)
    assert abs((masks[0] & masks[1]).mean() - 0.75**2) < 0.01
    assert abs((masks[0] & masks[2]).mean() - 0.75**2) < 0.01
