"""Forms of convolution that are compared with the direct one, images in the vector lanes."""

import numpy as np
import pytest
from cython_src.kernels.kernel_testing import INSTRUCTION_SETS, cut, fill, random_map, run_kernel

from forktask.cython_src.kernels.convolution.specs import NCHW16_FORMS
from forktask.cython_src.kernels.maps.nchw import NchwMap

# Rows of the result: fewer than a strip of "pad", more, and no multiple of a tile.
SIZES = [(2, 2), (6, 14), (18, 6), (34, 10)]


def problem(seed):
    """Random map, weights and blocks; the padding is the map's halo."""
    rng = np.random.default_rng(seed)
    height, width = SIZES[seed % len(SIZES)]
    halo = int(rng.integers(0, 3))
    source = NchwMap("source", 2, int(rng.integers(1, 5)), height + 4 - 2 * halo, width + 4 - 2 * halo, 16, halo)
    return rng, source, (int(rng.integers(1, 9)), height, width)


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("seed", range(8))
def test_every_form_has_the_direct_forms_bits(seed, instruction_set):
    """Check the forward pass and the data gradient, alone and fused with pooling, cut at random."""
    rng, source, (channels, height, width) = problem(seed)
    halo = int(rng.integers(0, 3))
    weights = rng.standard_normal((channels, source.channels, 5, 5)).astype(np.float32)
    for kernel in ("forward", "relu_pool", "backward_data", "backward_data_unpool"):
        pooled, spread = kernel == "relu_pool", kernel.endswith("unpool")
        size = (height // 2, width // 2) if pooled else (2 * height, 2 * width) if spread else (height, width)
        target = NchwMap("target", 2, channels, *size, 16, halo)
        operands = {"gradient" if "data" in kernel else "input": random_map(rng, source), "weight": weights}
        if "data" in kernel:
            operands["weight"] = np.ascontiguousarray(weights.swapaxes(0, 1))
        else:
            operands["bias"] = rng.standard_normal(channels).astype(np.float32)
        operands["output"] = fill(np.empty(target.shape, np.float32))
        outputs = ["output"]
        if pooled:
            operands["index"] = fill(np.empty((2, channels, *size, 16), np.uint8))
            outputs.append("index")
        elif spread:
            operands["index"] = rng.integers(0, 5, (2, channels, height, width, 16)).astype(np.uint8)
        attributes = {**source.attributes("in"), **target.attributes("out")}
        bounds = cut(rng, 2, channels, height // 2 if pooled else height)
        expected = run_kernel(f"conv_{kernel}", operands, outputs, attributes, bounds, "cpu", instruction_set)
        for algorithm in NCHW16_FORMS[1:]:
            attributes["algorithm"] = NCHW16_FORMS.index(algorithm)
            got = run_kernel(f"conv_{kernel}", operands, outputs, attributes, bounds, "cpu", instruction_set)
            for name in outputs:
                np.testing.assert_array_equal(got[name], expected[name], err_msg=f"{kernel} {algorithm} {name}")
