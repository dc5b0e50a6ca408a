"""Kernels with the channels in the lanes: compiled forms against their NumPy forms in float64, random shapes."""

import numpy as np
import pytest
from cython_src.kernel_testing import EPSILON, INSTRUCTION_SETS, fill, run_kernel
from hypothesis import given, settings
from hypothesis import strategies as st

from forktask.cython_src.kernels.maps.channels import ChannelsMap, statistics_shape
from forktask.cython_src.plan.model import block_grid, ranges

FEW = settings(max_examples=25, deadline=None, derandomize=True)
sizes = st.tuples(st.integers(1, 3), st.integers(1, 70), st.integers(1, 9), st.integers(1, 9))
halos = st.integers(0, 2)
seeds = st.integers(0, 2**32 - 1)


def normal(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def random_map(rng, m, mean=0.0):
    """Random interior; halo and padding channels are zero."""
    array = np.zeros(m.shape, np.float32)
    h = m.halo
    part = array[:, h : h + m.height, h : h + m.width, : m.channels]
    part[...] = rng.standard_normal(part.shape) + mean
    return array


def empty_map(m):
    return fill(np.empty(m.shape, np.float32))


def vector(rng, m, low=0.5, high=2.0):
    """Values for each channel, zero for padding channels."""
    values = np.zeros(m.pitch, np.float32)
    values[: m.channels] = rng.uniform(low, high, m.channels)
    return values


def boxes(rng, m, channels=True):
    """Blocks (n, y, c) of a map that cut each dimension at a random size; channels at whole units."""
    step = 16 * int(rng.integers(1, m.pitch // 16 + 1)) if channels else m.channels
    cut = [ranges(n, int(rng.integers(1, n + 1))) for n in (m.batch, m.height)] + [ranges(m.channels, step)]
    return [(*n, *y, *c) for n, y, c in block_grid(*cut)]


def numbered(blocks):
    """Blocks (n, y) with the number of their partial."""
    return [(*b[:4], i) for i, b in enumerate(blocks)]


def compare(kernel, operands, outputs, attributes, blocks, tolerance, iteration=0):
    """Check every instruction set against float64. The tolerance counts rounding errors of the largest element."""
    expected = run_kernel(kernel, operands, outputs, attributes, blocks, "float64", iteration=iteration)
    for name in INSTRUCTION_SETS:
        got = run_kernel(kernel, operands, outputs, attributes, blocks, "cpu", name, iteration)
        for output in outputs:
            wanted = expected[output]
            size = np.nanmax(np.abs(wanted), initial=1.0)
            np.testing.assert_allclose(
                got[output], wanted, rtol=0, atol=tolerance * EPSILON * size, err_msg=f"{kernel} {output} {name}"
            )
    return expected


def maps(size, *own_halos):
    batch, channels, height, width = size
    return [ChannelsMap(f"map{i}", batch, channels, height, width, halo) for i, halo in enumerate(own_halos)]


@FEW
@given(sizes, halos, halos, halos, st.sampled_from([0, 1, 2]), st.sampled_from(["", "plain", "scaled"]), seeds)
def test_norm_apply(size, in_halo, residual_halo, out_halo, activation, residual, seed):
    """Check scale, shift, residual and activation, whatever the halos; the halo of the result is zero."""
    rng = np.random.default_rng(seed)
    source, other, target = maps(size, in_halo, residual_halo, out_halo)
    operands = {"input": random_map(rng, source), "scale": vector(rng, source), "shift": vector(rng, source, -2, 2)}
    if residual:
        operands["residual"] = random_map(rng, other)
    if residual == "scaled":
        operands |= {"residual_scale": vector(rng, source), "residual_shift": vector(rng, source, -2, 2)}
    operands["output"] = empty_map(target)
    attributes = {
        **source.attributes("in"),
        "residual_halo": residual_halo,
        "out_halo": out_halo,
        "activation": activation,
    }
    got = compare("channels_norm_apply", operands, ["output"], attributes, boxes(rng, source), 8)["output"]
    assert np.isfinite(got).all()
    assert (got[..., size[1] :] == 0).all()


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
    compare(
        "channels_norm_statistics",
        {"input": x, "partials": partials},
        ["partials"],
        source.attributes("in"),
        blocks,
        count + 10,
    )
    attributes = source.attributes("in")
    for name in INSTRUCTION_SETS:
        merged = run_kernel(
            "channels_norm_statistics",
            {"input": x, "partials": partials},
            ["partials"],
            attributes,
            blocks,
            "cpu",
            name,
        )["partials"]
        operands = {
            "partials": merged,
            "weight": normal(rng, channels),
            "bias": normal(rng, channels),
            "running_mean": normal(rng, channels),
            "running_var": rng.uniform(1, 2, channels).astype(np.float32),
        }
        operands |= {n: fill(np.empty(source.pitch, np.float32)) for n in ("scale", "shift", "mean", "inv_std")}
        got = run_kernel(
            "channels_norm_finish",
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


def test_norm_evaluate():
    """Check scale and shift from running statistics, with and without the statistics themselves."""
    rng = np.random.default_rng(0)
    operands = {n: normal(rng, 35) for n in ("weight", "bias", "running_mean")}
    operands["running_var"] = rng.uniform(0.1, 2, 35).astype(np.float32)
    for names in (["scale", "shift"], ["scale", "shift", "mean", "inv_std"]):
        given_operands = operands | {n: fill(np.empty(48, np.float32)) for n in names}
        blocks = [(0, 16), (16, 35)]
        got = compare("channels_norm_evaluate", given_operands, names, {"channels": 35, "eps": 1e-5}, blocks, 8)
        assert all((got[n][35:] == 0).all() for n in names)


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
        "channels_norm_backward_statistics",
        {**shared, "inv_std": inv_std, "partials": partials},
        ["partials"],
        attributes,
        blocks,
        4 * count + 8,
    )["partials"].astype(np.float32)
    for evaluation in (0, 1):
        outputs = {
            "gradient_weight": fill(np.empty((1, channels), np.float32)),
            "gradient_bias": fill(np.empty((1, channels), np.float32)),
            "coefficients": fill(np.empty((3, source.pitch), np.float32)),
        }
        operands = {"partials": partials, "weight": normal(rng, channels), "inv_std": inv_std, **outputs}
        finish = {"channels": channels, "num_partials": len(blocks), "count": count, "evaluation": evaluation}
        cut = [(c0, min(c0 + 16, channels)) for c0 in range(0, channels, 16)]
        got = compare("channels_norm_backward_finish", operands, list(outputs), finish, cut, 10 + len(blocks))
    operands = {**shared, "coefficients": got["coefficients"].astype(np.float32), "output": empty_map(target)}
    outputs = ["output"]
    if branch is not None:
        operands["branch"] = random_map(rng, other) if branch else empty_map(other)
        outputs.append("branch")
    attributes |= {"out_halo": out_halo, "branch_halo": halo, "accumulate_branch": branch or 0}
    got = compare("channels_norm_backward_apply", operands, outputs, attributes, boxes(rng, source), 16)
    assert all(np.isfinite(array).all() for array in got.values())


@FEW
@given(sizes, halos, halos, halos, st.sampled_from([0, 1, 2]), st.sampled_from([0, 1]), st.sampled_from([0, 1]), seeds)
def test_elementwise(size, in_halo, halo, out_halo, activation, accumulate, second_accumulate, seed):
    """Check activation and sum of two maps, forward and backward."""
    rng = np.random.default_rng(seed)
    source, other, target = maps(size, in_halo, halo, out_halo)
    x, y = 4 * random_map(rng, source), 4 * random_map(rng, other)
    base = {**source.attributes("in"), "activation": activation}
    blocks = boxes(rng, source)
    attributes = {**base, "out_halo": out_halo}
    compare("channels_activation", {"input": x, "output": empty_map(target)}, ["output"], attributes, blocks, 0)
    operands = {"first": x, "second": y, "output": empty_map(target)}
    compare("channels_add", operands, ["output"], {**attributes, "second_halo": halo}, blocks, 2)
    output = random_map(rng, target) if accumulate else empty_map(target)
    operands = {"gradient": x, "activations": y, "output": output}
    attributes |= {"activations_halo": halo, "accumulate": accumulate}
    compare("channels_activation_backward", operands, ["output"], attributes, blocks, 2)
    second = random_map(rng, other) if second_accumulate else empty_map(other)
    operands = {"gradient": x, "first": output, "second": second}
    if activation:
        operands["activations"] = np.where(second == 0, 0, y)
    attributes = {
        **base,
        "activations_halo": halo,
        "first_halo": out_halo,
        "second_halo": halo,
        "accumulate_first": accumulate,
        "accumulate_second": second_accumulate,
    }
    compare("channels_add_backward", operands, ["first", "second"], attributes, blocks, 2)


@FEW
@given(sizes, halos, halos, st.sampled_from([0.0, 0.3, 0.9]), seeds)
def test_dropout(size, in_halo, out_halo, rate, seed):
    """Check that the mask is the generator's, whatever the blocks; the rest is scaled."""
    rng = np.random.default_rng(seed)
    source, target = maps(size, in_halo, out_halo)
    operands = {"input": random_map(rng, source), "output": empty_map(target)}
    attributes = {**source.attributes("in"), "out_halo": out_halo, "seed": seed * 7919, "layer": 3, "rate": rate}
    blocks = [b[:4] for b in boxes(rng, source, channels=False)]
    compare("channels_dropout", operands, ["output"], attributes, blocks, 2, iteration=2**32 + 5)


def test_generator_is_philox():
    """Check the words of the published test vectors, and that the share of kept elements is what was asked for."""
    from forktask.cython_src.kernels.elementwise.channels import dropout_mask, philox

    def words(counter, key):
        return [int(w) for w in philox(counter, key)]

    assert words((0,) * 4, (0, 0)) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    ones = 0xFFFFFFFF
    assert words((ones,) * 4, (ones,) * 2) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    m = ChannelsMap("map", 8, 32, 16, 16)
    masks = [
        dropout_mask({**m.attributes("in"), "seed": 1, "layer": layer, "rate": 0.25}, 0, 8, 0, 16, iteration)
        for layer, iteration in ((0, 0), (1, 0), (0, 1))
    ]
    assert all(abs(mask.mean() - 0.75) < 0.01 for mask in masks)
    assert abs((masks[0] & masks[1]).mean() - 0.75**2) < 0.01
    assert abs((masks[0] & masks[2]).mean() - 0.75**2) < 0.01


@FEW
@given(sizes, halos, st.sampled_from([0, 1]), seeds)
def test_global_pool(size, halo, accumulate, seed):
    """Check the mean over all pixels and its gradient."""
    rng = np.random.default_rng(seed)
    (m,) = maps(size, halo)
    batch, channels = size[:2]
    blocks = boxes(rng, m)
    pooled = sorted({(*b[:2], *b[4:]) for b in blocks})
    operands = {"input": random_map(rng, m), "output": fill(np.empty((batch, channels, 1), np.float32))}
    compare("channels_global_pool", operands, ["output"], m.attributes("in"), pooled, 2 * size[2] * size[3] + 4)
    output = random_map(rng, m) if accumulate else empty_map(m)
    operands = {"gradient": normal(rng, batch, channels, 1), "output": output}
    attributes = {**m.attributes("out"), "accumulate": accumulate}
    compare("channels_global_pool_backward", operands, ["output"], attributes, blocks, 4)


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


@FEW
@given(
    st.integers(1, 5),
    st.sampled_from([1, 9, 27, 64]),
    st.integers(1, 4),
    st.sampled_from(["all", "rows", "last"]),
    st.booleans(),
    st.booleans(),
    seeds,
)
def test_optimizers(rows, length, partials, form, summed, clipped, seed):
    """Check SGD with and without momentum, Adam and AdamW on whole gradients and on columns of others."""
    rng = np.random.default_rng(seed)
    row_length, columns, offset = {"all": (rows * length, rows * length, 0), "rows": (length, length + 1, 0)}.get(
        form, (1, length + 1, length)
    )
    size = rows * length if form != "last" else rows
    stride = columns if form == "all" else rows * columns
    attributes = {
        "num_partials": partials,
        "partial_stride": stride,
        "row_length": row_length,
        "row_stride": columns,
        "row_offset": offset,
    }
    blocks = ranges(size, int(rng.integers(1, size + 1)))
    base = {"gradient": normal(rng, size) if summed else fill(np.empty(size, np.float32))}
    if not summed:
        base["partials"] = normal(rng, partials, stride)
    tolerance = 20 + 4 * partials
    operands = {**base, "squares": fill(np.empty(len(blocks), np.float32))}
    numbered_blocks = [(*b, i) for i, b in enumerate(blocks)]
    compare("gradient_sum", operands, ["gradient", "squares"], attributes, numbered_blocks, tolerance + 4 * size)
    base |= {"parameter": normal(rng, size), "learning_rates": rng.uniform(0.01, 0.1, 3).astype(np.float32)}
    if clipped:
        base["scale"] = np.array([0.3], np.float32)
    attributes |= {"num_rates": 3, "weight_decay": 0.01}
    for momentum in (True, False):
        operands = {**base, "velocity": normal(rng, size)} if momentum else base
        outputs = ["gradient", "parameter", "velocity"] if momentum else ["gradient", "parameter"]
        compare("optimizer_sgd", operands, outputs, {**attributes, "momentum": 0.9}, blocks, tolerance, iteration=4)
    attributes |= {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
    operands = {**base, "first_moment": normal(rng, size), "second_moment": np.abs(normal(rng, size)) + 0.1}
    outputs = ["gradient", "parameter", "first_moment", "second_moment"]
    for decoupled in (0, 1):
        of_adam = {**attributes, "decoupled": decoupled}
        compare("optimizer_adam", operands, outputs, of_adam, blocks, 4 * tolerance, iteration=10)


def test_gradient_scale():
    """Check the factor of clipping and the logged norm, clipped or not."""
    for size in (0.01, 10.0):
        operands = {
            "squares": np.full(5, size, np.float32),
            "scale": fill(np.empty(1, np.float32)),
            "norm_log": fill(np.empty(3, np.float32)),
        }
        attributes = {"num_squares": 5, "length": 3, "max_norm": 1.0}
        got = compare("gradient_scale", operands, ["scale", "norm_log"], attributes, [()], 4, iteration=4)
        np.testing.assert_allclose(got["norm_log"][1], (5 * size) ** 0.5, rtol=1e-6)
        np.testing.assert_allclose(got["scale"], min(1.0, 1 / (5 * size) ** 0.5), rtol=1e-5)


@st.composite
def window_cases(draw, largest_padding):
    """Maps of a window operation, its attributes and a generator of random numbers."""
    kernel = draw(st.sampled_from([1, 2, 3, 3, 3, 5, 7]))
    stride = draw(st.sampled_from([1, 2, 2, 3]))
    padding = draw(st.integers(0, largest_padding(kernel)))
    batch, channels = draw(st.integers(1, 2)), draw(st.integers(1, 150))
    height, width = (draw(st.integers(max(1, kernel - 2 * padding), 12)) for _ in range(2))
    small = ((n + 2 * padding - kernel) // stride + 1 for n in (height, width))
    large = ChannelsMap("large", batch, channels, height, width, draw(st.integers(0, 3)))
    return (
        large,
        ChannelsMap("small", batch, channels, *small, draw(st.integers(0, 2))),
        {"kernel": kernel, "stride": stride, "padding": padding},
        draw(st.sampled_from([0, 1])),
        np.random.default_rng(draw(seeds)),
    )


def gradient_target(rng, m, accumulate):
    return random_map(rng, m) if accumulate else empty_map(m)


@FEW
@given(window_cases(lambda kernel: kernel // 2))
def test_pooling(case):
    """Check maximum and average pooling and their gradients, ties included; nothing outside the map counts."""
    large, small, window, accumulate, rng = case
    forward = {**large.attributes("in"), **small.attributes("out"), **window}
    backward = {**small.attributes("in"), **large.attributes("out"), **window, "accumulate": accumulate}
    x = np.round(2 * random_map(rng, large))
    index = fill(np.empty((small.batch, small.height, small.width, small.pitch), np.uint8))
    operands = {"input": x, "output": empty_map(small), "index": index}
    got = compare("channels_max_pool", operands, ["output", "index"], forward, boxes(rng, small), 0)
    gradient = random_map(rng, small)
    operands = {"gradient": gradient, "index": got["index"], "output": gradient_target(rng, large, accumulate)}
    taps = window["kernel"] ** 2
    compare("channels_max_pool_backward", operands, ["output"], backward, boxes(rng, large), taps + 2)
    operands = {"input": x, "output": empty_map(small)}
    compare("channels_average_pool", operands, ["output"], forward, boxes(rng, small), taps + 4)
    operands = {"gradient": gradient, "output": gradient_target(rng, large, accumulate)}
    compare("channels_average_pool_backward", operands, ["output"], backward, boxes(rng, large), taps + 4)


@pytest.mark.parametrize("kernel, stride, padding", [(2, 2, 0), (3, 2, 1), (3, 1, 1)])
def test_maximum_of_special_numbers(kernel, stride, padding):
    """Check that a NaN is a window's maximum, wherever it stands, and what infinities of both signs give."""
    large = ChannelsMap("large", 1, 150, 10, 10)
    side = (10 + 2 * padding - kernel) // stride + 1
    small = ChannelsMap("small", 1, 150, side, side)
    x = random_map(np.random.default_rng(0), large)
    x[0, 4, 4, ::7] = np.nan
    x[0, 5, 5, ::5] = np.inf
    x[0, 5, 6, ::3] = -np.inf
    x[0, 5:, 5:, 33] = -np.inf
    operands = {"input": x, "output": empty_map(small), "index": fill(np.empty(small.shape, np.uint8))}
    attributes = {**large.attributes("in"), **small.attributes("out")}
    attributes |= {"kernel": kernel, "stride": stride, "padding": padding}
    blocks = [(0, 1, 0, side, 0, 150)]
    expected = run_kernel("channels_max_pool", operands, ["output", "index"], attributes, blocks, "float64")
    for name in INSTRUCTION_SETS:
        got = run_kernel("channels_max_pool", operands, ["output", "index"], attributes, blocks, "cpu", name)
        np.testing.assert_array_equal(got["output"], expected["output"])
        np.testing.assert_array_equal(got["index"], expected["index"])


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
