"""Normalisation, channels in the lanes: compiled forms against NumPy forms in float64, random shapes."""

import numpy as np
from cython_src.kernels.kernel_testing import EPSILON, INSTRUCTION_SETS, draw, fill, run_kernel
from cython_src.kernels.nhwc_testing import (
    FEW,
    boxes,
    compare,
    empty_map,
    halos,
    maps,
    numbered,
    random_map,
    seeds,
    sizes,
    vector,
)
from hypothesis import given
from hypothesis import strategies as st

from forktask.cython_src.kernels.maps.nhwc import statistics_shape


@FEW
@given(sizes, halos, st.sampled_from([0.0, 1.0, 1000.0]), seeds)
def test_norm_statistics(size, halo, mean, seed):
    """Check mean, variance, scale, shift and running statistics; a large mean costs no more than its rounding."""
    rng = np.random.default_rng(seed)
    (source,) = maps(size, halo)
    batch, channels, height, width = size
    blocks = numbered(boxes(rng, source, channels=False))
    x = random_map(rng, source, mean)
    partials = fill(np.empty(statistics_shape(len(blocks), source.pitch), np.float32))
    count = batch * height * width
    attributes, operands = source.attributes("in"), {"input": x, "partials": partials}
    compare("nhwc_norm_statistics", operands, ["partials"], attributes, blocks, count + 10)
    for name in INSTRUCTION_SETS:
        merged = run_kernel(
            "nhwc_norm_statistics", {"input": x, "partials": partials}, ["partials"], attributes, blocks, "cpu", name
        )["partials"]
        operands = {
            "partials": merged,
            "weight": draw(rng, channels),
            "bias": draw(rng, channels),
            "running_mean": draw(rng, channels),
            "running_var": rng.uniform(1, 2, channels).astype(np.float32),
        }
        operands |= {n: fill(np.empty(source.pitch, np.float32)) for n in ("scale", "shift", "mean", "inv_std")}
        got = run_kernel(
            "nhwc_norm_finish",
            operands,
            ["mean", "inv_std", "scale", "shift", "running_mean", "running_var"],
            {"channels": channels, "num_partials": len(blocks), "count": count, "eps": 1e-5, "momentum": 0.1},
            [(c0, min(c0 + 32, channels)) for c0 in range(0, channels, 32)],
            "cpu",
            name,
        )
        exact = source.natural()({source.name: x}).astype(np.float64)
        mu, var = exact.mean(axis=(0, 2, 3)), exact.var(axis=(0, 2, 3))
        close = {"rtol": 200 * EPSILON, "atol": 50 * EPSILON * (1 + mean)}
        np.testing.assert_allclose(got["mean"][:channels], mu, **close)
        # A relative error of the pixels' own rounding remains in the variance.
        inv_std = 1 / np.sqrt(var + 1e-5)
        relative = (100 + 20 * count**0.5) * EPSILON * (1 + mean * inv_std.max() * EPSILON**0.5)
        np.testing.assert_allclose(got["inv_std"][:channels], inv_std, rtol=relative)
        np.testing.assert_allclose(got["running_mean"], 0.9 * operands["running_mean"] + 0.1 * mu, rtol=1e-5, atol=1e-5)
        unbiased = var * count / max(count - 1, 1)
        np.testing.assert_allclose(
            got["running_var"], 0.9 * operands["running_var"] + 0.1 * unbiased, rtol=2 * relative
        )
        np.testing.assert_allclose(got["scale"][:channels], operands["weight"] * inv_std, rtol=2 * relative)
        for n in ("mean", "inv_std", "scale", "shift"):
            assert (got[n][channels:] == 0).all()


@FEW
@given(
    sizes, halos, halos, halos, halos, st.sampled_from([0, 1, 2]), st.booleans(), st.sampled_from([None, 0, 1]), seeds
)
def test_norm_backward(size, in_halo, gradient_halo, out_halo, halo, activation, argument, branch, seed):
    """Check sums, coefficients and data gradient, the mask from the result or from its argument, and the branch."""
    rng = np.random.default_rng(seed)
    source, gradient, target, other = maps(size, in_halo, gradient_halo, out_halo, halo)
    channels = size[1]
    mask = {}
    if activation and argument:
        mask = {"scale": vector(rng, source), "shift": vector(rng, source, -2, 2)}
    elif activation:
        mask = {"activations": np.maximum(4 * random_map(rng, other), 0)}
    shared = {"gradient": random_map(rng, gradient), "input": random_map(rng, source), "mean": vector(rng, source)}
    shared |= mask
    attributes = {
        **source.attributes("in"),
        "gradient_halo": gradient_halo,
        "activations_halo": halo,
        "activation": activation,
    }
    blocks = numbered(boxes(rng, source, channels=False))
    partials = fill(np.empty((len(blocks), 2, source.pitch), np.float32))
    inv_std = vector(rng, source)
    count = size[0] * size[2] * size[3]
    partials = compare(
        "nhwc_norm_backward_statistics",
        {**shared, "inv_std": inv_std, "partials": partials},
        ["partials"],
        attributes,
        blocks,
        4 * count + 8,
    )["partials"].astype(np.float32)
    outputs = {
        "gradient_weight": fill(np.empty((1, channels), np.float32)),
        "gradient_bias": fill(np.empty((1, channels), np.float32)),
        "coefficients": fill(np.empty((3, source.pitch), np.float32)),
    }
    operands = {"partials": partials, "weight": draw(rng, channels), "inv_std": inv_std, **outputs}
    finish = {"channels": channels, "num_partials": len(blocks), "count": count}
    cut = [(c0, min(c0 + 16, channels)) for c0 in range(0, channels, 16)]
    got = compare("nhwc_norm_backward_finish", operands, list(outputs), finish, cut, 10 + len(blocks))
    operands = {**shared, "coefficients": got["coefficients"].astype(np.float32), "output": empty_map(target)}
    outputs = ["output"]
    if branch is not None:
        operands["branch"] = random_map(rng, other) if branch else empty_map(other)
        outputs.append("branch")
    attributes |= {"out_halo": out_halo, "branch_halo": halo, "accumulate_branch": branch or 0}
    got = compare("nhwc_norm_backward_apply", operands, outputs, attributes, boxes(rng, source), 16)
    assert all(np.isfinite(array).all() for array in got.values())
