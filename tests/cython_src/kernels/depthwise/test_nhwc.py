"""Depthwise convolution, channels in the lanes: compiled forms against NumPy forms in float64, random shapes."""

import numpy as np
from cython_src.kernels.kernel_testing import fill
from cython_src.kernels.nhwc_testing import (
    FEW,
    boxes,
    compare,
    empty_map,
    gradient_target,
    normal,
    random_map,
    vector,
    window_cases,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from forktask.cython_src.kernels.maps.nhwc import statistics_shape


@settings(FEW, max_examples=60)
@given(window_cases(lambda kernel: kernel - 1), st.booleans(), st.booleans(), st.sampled_from([0, 1, 2]))
def test_depthwise(case, with_bias, with_statistics, activation):
    """Check depthwise convolution, also of an input that is normalised where it is loaded, with bias, statistics and
    activation, and both gradients."""
    large, small, window, accumulate, rng = case
    channels, kernel = large.channels, window["kernel"]
    weight, gradient, x = (normal(rng, channels, 1, kernel, kernel), random_map(rng, small), random_map(rng, large))
    operands = {"input": x, "weight": weight, "output": empty_map(small)}
    outputs = ["output"]
    cut = boxes(rng, small)
    rows = sorted({b[:4] for b in cut})
    blocks = [(*b, rows.index(b[:4])) for b in cut]
    if with_bias:
        operands["bias"] = normal(rng, channels)
    if with_statistics:
        operands["statistics"] = fill(np.empty(statistics_shape(len(rows), small.pitch), np.float32))
        outputs.append("statistics")
    attributes = {**large.attributes("in"), **small.attributes("out"), **window, "activation": activation}
    tolerance = 2 * kernel**2 + 10 + small.height * small.width * small.batch
    got = compare("nhwc_depthwise_forward", operands, outputs, attributes, blocks, tolerance)
    assert np.isfinite(got["output"]).all()
    # A shift above zero, which the border does not have: what lies beyond is zero after the norm.
    operands |= {"input_scale": vector(rng, large), "input_shift": vector(rng, large)}
    for input_activation in (0, 1, 2):
        normed = {**attributes, "input_activation": input_activation}
        compare("nhwc_norm_depthwise", operands, outputs, normed, blocks, 6 * tolerance)
    operands = {"gradient": gradient, "weight": weight, "output": gradient_target(rng, large, accumulate)}
    attributes = {**small.attributes("in"), **large.attributes("out"), **window, "accumulate": accumulate}
    compare("nhwc_depthwise_backward_data", operands, ["output"], attributes, boxes(rng, large), tolerance)
    outputs = {"output": normal(rng, len(rows), channels, kernel**2)}
    if with_bias:
        outputs["bias_output"] = normal(rng, len(rows), channels)
    if not accumulate:
        outputs = {name: fill(array) for name, array in outputs.items()}
    operands = {"gradient": gradient, "input": x, **outputs}
    attributes = {**small.attributes("gradient"), **large.attributes("in"), **window, "accumulate": accumulate}
    compare("nhwc_depthwise_backward_weights", operands, list(outputs), attributes, blocks, tolerance)
