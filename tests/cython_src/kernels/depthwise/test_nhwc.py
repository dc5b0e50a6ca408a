"""Depthwise convolution, channels in the lanes: compiled forms against NumPy forms in float64, random shapes."""

from dataclasses import replace

import numpy as np
from cython_src.kernels.kernel_testing import draw, fill
from cython_src.kernels.nhwc_testing import (
    FEW,
    boxes,
    compare,
    empty_map,
    gradient_target,
    random_map,
    vector,
    window_cases,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from forktask.cython_src.kernels.maps.nhwc import statistics_shape
from forktask.cython_src.plan.builder import ranges


@settings(FEW, max_examples=60)
@given(window_cases(lambda kernel: kernel - 1), st.booleans(), st.booleans(), st.sampled_from([0, 1, 2]))
def test_depthwise(case, with_bias, with_statistics, activation):
    """Check depthwise convolution, also of an input that is normalised where it is loaded, with bias, statistics and
    activation, and both gradients."""
    large, small, window, accumulate, rng = case
    channels, kernel = large.channels, window["kernel"]
    weight, gradient, x = (draw(rng, channels, 1, kernel, kernel), random_map(rng, small), random_map(rng, large))
    operands = {"input": x, "weight": weight, "output": empty_map(small)}
    outputs = ["output"]
    cut = boxes(rng, small)
    rows = sorted({b[:4] for b in cut})
    blocks = [(*b, rows.index(b[:4])) for b in cut]
    if with_bias:
        operands["bias"] = draw(rng, channels)
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
    outputs = {"output": draw(rng, len(rows), channels, kernel**2)}
    if with_bias:
        outputs["bias_output"] = draw(rng, len(rows), channels)
    if not accumulate:
        outputs = {name: fill(array) for name, array in outputs.items()}
    operands = {"gradient": gradient, "input": x, **outputs}
    attributes = {**small.attributes("gradient"), **large.attributes("in"), **window, "accumulate": accumulate}
    compare("nhwc_depthwise_backward_weights", operands, list(outputs), attributes, blocks, tolerance)


def check_norm_backward(large, small, window, before, activation, rng):
    """Check all that one kernel makes of the gradient behind the norm after a convolution of `large`, which a norm
    before it may have normalised."""
    channels, taps = large.channels, window["kernel"] ** 2
    behind, target = (replace(m, halo=int(rng.integers(0, 3))) for m in (small, large))
    images = ranges(large.batch, int(rng.integers(1, large.batch + 1)))
    parts = ranges(channels, 16 * int(rng.integers(1, large.pitch // 16 + 1)))
    blocks = [(*n, *c, partial) for partial, n in enumerate(images) for c in parts]
    operands = {
        "gradient": random_map(rng, behind),
        "result": random_map(rng, small),
        **{name: vector(rng, small, -1) for name in ("scale", "shift", "mean")},
        "coefficients": np.stack([vector(rng, small) for _ in range(3)]),
        "weight": draw(rng, channels, 1, window["kernel"], window["kernel"]),
        "input": random_map(rng, large),
    }
    outputs = {"output": empty_map(target), "weight_partials": np.empty((len(images), channels, taps), np.float32)}
    if before:
        operands |= {f"input_{name}": vector(rng, large) for name in ("scale", "shift", "mean", "inv_std")}
        outputs["statistics"] = np.empty((len(images), 2, large.pitch), np.float32)
    operands |= {name: fill(array) for name, array in outputs.items()}
    attributes = {**small.attributes("out"), **large.attributes("in"), **window, "activation": activation}
    attributes |= {"gradient_halo": behind.halo, "output_halo": target.halo}
    attributes["input_activation"] = activation if before else 0
    tolerance = 6 * (2 * taps + 10 + large.batch * large.height * large.width)
    compare("nhwc_depthwise_norm_backward", operands, list(outputs), attributes, blocks, tolerance)


@settings(FEW, max_examples=60)
@given(window_cases(lambda kernel: kernel - 1), st.booleans(), st.sampled_from([0, 1, 2]))
def test_norm_backward(case, before, activation):
    """Check the gradients of input and weights through the norm after a convolution, and the sums of the one before."""
    large, small, window, _, rng = case
    check_norm_backward(large, small, window, before, activation, rng)
