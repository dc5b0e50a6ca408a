"""Depthwise convolution, channels in the lanes: compiled forms against NumPy forms in float64, random shapes."""

import numpy as np
import pytest
from cython_src.kernels.channels_testing import (
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
from cython_src.kernels.kernel_testing import fill
from hypothesis import given, settings
from hypothesis import strategies as st

from forktask.cython_src.kernels.maps.channels import ChannelsMap, statistics_shape
from forktask.cython_src.plan.builder import block_grid, ranges


@settings(FEW, max_examples=60)
@given(window_cases(lambda kernel: kernel - 1), st.booleans(), st.booleans(), st.sampled_from([0, 1, 2]))
def test_depthwise(case, with_bias, with_statistics, activation):
    """Check depthwise convolution, with bias, statistics and activation, and both gradients."""
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
    got = compare("channels_depthwise_forward", operands, outputs, attributes, blocks, tolerance)
    assert np.isfinite(got["output"]).all()
    operands = {"gradient": gradient, "weight": weight, "output": gradient_target(rng, large, accumulate)}
    attributes = {**small.attributes("in"), **large.attributes("out"), **window, "accumulate": accumulate}
    compare("channels_depthwise_backward_data", operands, ["output"], attributes, boxes(rng, large), tolerance)
    outputs = {"output": normal(rng, len(rows), channels, kernel**2)}
    if with_bias:
        outputs["bias_output"] = normal(rng, len(rows), channels)
    if not accumulate:
        outputs = {name: fill(array) for name, array in outputs.items()}
    operands = {"gradient": gradient, "input": x, **outputs}
    attributes = {**small.attributes("gradient"), **large.attributes("in"), **window, "accumulate": accumulate}
    compare("channels_depthwise_backward_weights", operands, list(outputs), attributes, blocks, tolerance)


def depthwise_between_norms(case, activation, before, bias=False):
    """Check both passes of a depthwise convolution between two norms; `before`: activation after the first one, or None
    where the convolution reads a map as it is."""
    large, small, window, _, rng = case
    channels, kernel = large.channels, window["kernel"]
    x, weight = random_map(rng, large), normal(rng, channels, 1, kernel, kernel)
    vectors = {
        "input_scale": vector(rng, large),
        "input_shift": vector(rng, large, -2, 2),
        "input_mean": vector(rng, large),
        "input_inv_std": vector(rng, large),
    }
    tolerance = 8 * kernel**2 + 30 + large.height * large.width * large.batch
    maps = {**large.attributes("in"), **small.attributes("out"), **window}
    if before is not None:
        cut = boxes(rng, small)
        rows = sorted({b[:4] for b in cut})
        operands = {
            "input": x,
            "weight": weight,
            "output": empty_map(small),
            "statistics": fill(np.empty(statistics_shape(len(rows), small.pitch), np.float32)),
            **{name: vectors[name] for name in ("input_scale", "input_shift")},
        }
        if bias:
            operands["bias"] = normal(rng, channels)
        compare(
            "channels_norm_depthwise",
            operands,
            ["output", "statistics"],
            {**maps, "activation": activation, "input_activation": before},
            [(*b, rows.index(b[:4])) for b in cut],
            tolerance,
        )
    gradient, target = (
        ChannelsMap(m.name, m.batch, m.channels, m.height, m.width, int(rng.integers(0, 2))) for m in (small, large)
    )
    cut = ranges(large.batch, int(rng.integers(1, large.batch + 1)))
    part = 16 * int(rng.integers(1, large.pitch // 16 + 1))
    blocks = [(*n, *c, cut.index(n)) for n, c in block_grid(cut, ranges(channels, part))]
    operands = {
        "gradient": random_map(rng, gradient),
        "result": random_map(rng, small),
        "scale": vector(rng, small),
        "shift": vector(rng, small, -2, 2),
        "mean": vector(rng, small),
        "weight": weight,
        "input": x,
        "coefficients": np.stack([vector(rng, small, -1, 1) for _ in range(3)]),
        "output": empty_map(target),
        "weight_partials": fill(np.empty((len(cut), channels, kernel**2), np.float32)),
    }
    outputs = ["output", "weight_partials"]
    if before is not None:
        operands |= vectors | {"statistics": fill(np.empty((len(cut), 2, large.pitch), np.float32))}
        outputs.append("statistics")
    attributes = {
        **maps,
        "gradient_halo": gradient.halo,
        "output_halo": target.halo,
        "activation": activation,
        "input_activation": before or 0,
    }
    compare("channels_depthwise_norm_backward", operands, outputs, attributes, blocks, tolerance)


@settings(FEW, max_examples=40)
@given(
    window_cases(lambda kernel: kernel - 1), st.sampled_from([0, 1, 2]), st.sampled_from([None, 0, 1, 2]), st.booleans()
)
def test_depthwise_between_norms(case, activation, before, bias):
    """Check both passes on small maps of all kinds."""
    depthwise_between_norms(case, activation, before, bias)


@pytest.mark.parametrize("height", [9, 23])
@pytest.mark.parametrize("kernel, stride", [(3, 1), (3, 2), (5, 1), (2, 2)])
def test_depthwise_between_norms_in_strips(kernel, stride, height):
    """Check both passes where the rows of a strip are fewer than the map's."""
    large = ChannelsMap("large", 2, 150, height, 40)
    side = [(n + 2 * (kernel // 2) - kernel) // stride + 1 for n in (height, 40)]
    small = ChannelsMap("small", 2, 150, *side)
    window = {"kernel": kernel, "stride": stride, "padding": kernel // 2}
    depthwise_between_norms((large, small, window, 0, np.random.default_rng(0)), 1, 2)
