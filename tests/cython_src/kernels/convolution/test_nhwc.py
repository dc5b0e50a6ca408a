"""Convolution with the channels in the lanes: compiled forms against NumPy forms, which are those of the definition:
`tests/random_networks` says so."""

import numpy as np
import pytest
from cython_src.kernels.kernel_testing import against_float64, check_linear, empty_map, fill, run_kernel
from cython_src.kernels.nhwc_testing import gradient_target, random_map

from forktask.cython_src.kernels.convolution import algorithms
from forktask.cython_src.kernels.maps.nhwc import NhwcMap, statistics_shape
from forktask.cython_src.plan.builder import block_grid, ranges


class Case:
    """One convolution: its maps, weights and attributes."""

    def __init__(
        self,
        batch,
        groups,
        channels_in,
        channels_out,
        height,
        width,
        kernel,
        stride,
        padding,
        dilation,
        *,
        seed=0,
        beside=0,
    ):
        self.rng = np.random.default_rng(seed)
        self.batch, self.groups = batch, groups
        reach = (kernel - 1) * dilation + 1
        out = [(n + 2 * padding - reach) // stride + 1 for n in (height, width)]
        self.geometry = dict(kernel=kernel, stride=stride, padding=padding, dilation=dilation, groups=groups)
        sizes = {"in_height": out[0], "in_width": out[1], "out_height": height, "out_width": width}
        halo = algorithms.required_halo(algorithms.DATA, {**self.geometry, **sizes})
        image = channels_in <= 4
        self.x = NhwcMap("x", batch, channels_in, height, width, padding + beside, image=image)
        self.y = NhwcMap("y", batch, channels_out, *out, int(self.rng.integers(2)))
        self.dy = NhwcMap("dy", batch, channels_out, *out, halo)
        self.dx = NhwcMap("dx", batch, channels_in, height, width, int(self.rng.integers(2)), image=image)
        self.shape = (channels_out, channels_in // groups, kernel, kernel)
        self.weight = self.rng.standard_normal(self.shape).astype(np.float32)
        self.bias = self.rng.standard_normal(channels_out).astype(np.float32)
        self.terms = kernel * kernel * channels_in // groups

    def packing(self, direction, algorithm):
        """Operands, outputs, attributes and bounds of the kernel that packs the weights."""
        shape = algorithms.packed_shape(algorithm, direction, self.shape, self.groups)
        operands = {"weight": self.weight, "packed": fill(np.empty(shape, np.float32))}
        sizes = {"out_channels": self.shape[0], "in_channels": self.x.channels, "kernel": self.shape[2]}
        attributes = {**sizes, "groups": self.groups, "direction": direction, "algorithm": algorithm}
        return operands, ["packed"], attributes, ranges(shape[0], int(self.rng.integers(1, shape[0] + 1)))

    def pack(self, direction, algorithm):
        return run_kernel("nhwc_conv_pack", *self.packing(direction, algorithm), "float64")["packed"]


def random_case(seed):
    """Small maps of all kinds: odd sizes, strides, dilations, groups, images of few channels."""
    rng = np.random.default_rng(seed)
    kernel = int(rng.choice([1, 1, 2, 3, 3, 3, 5, 7]))
    stride, dilation = int(rng.choice([1, 1, 2, 3])), int(rng.choice([1, 1, 1, 2]))
    groups = int(rng.choice([1, 1, 1, 2, 3, 4]))
    channels_in = groups * int(rng.choice([1, 4, 5, 16, 20, 32])) if groups > 1 else int(rng.integers(1, 70))
    channels_out = groups * int(rng.choice([1, 3, 8, 16, 32])) if groups > 1 else int(rng.integers(1, 70))
    padding = int(rng.integers(0, (kernel - 1) * dilation + 1))
    reach = (kernel - 1) * dilation + 1
    height, width = (max(reach - 2 * padding, 1) + int(n) for n in rng.integers(0, 14, 2))
    shape = (channels_in, channels_out, height, width, kernel, stride, padding, dilation)
    return Case(int(rng.integers(1, 4)), groups, *shape, seed=seed)


def cut(rng, images, rows, channels):
    """Blocks that cut images, rows and channels at random, channels at multiples of sixteen."""
    sizes = [int(rng.integers(1, n + 1)) for n in (images, rows)]
    part = 16 * int(rng.integers(1, -(-channels // 16) + 1))
    grid = block_grid(ranges(images, sizes[0]), ranges(rows, sizes[1]), ranges(channels, part))
    return [(*n, *y, *c) for n, y, c in grid]


def check_case(case, algorithm, factor=0.0):
    """All kernels of one convolution in one algorithm."""
    rng = case.rng
    x, dy = random_map(case.rng, case.x), random_map(case.rng, case.dy)
    attributes = {**case.geometry, **case.x.attributes("in"), **case.y.attributes("out")}
    code = algorithms.choose_algorithm(algorithm, "forward", attributes, case.batch)
    geometry = {**case.geometry, "algorithm": code}
    for direction in (0, 1):
        check_linear("nhwc_conv_pack", *case.packing(direction, code), 9, factor)
    blocks = cut(rng, case.batch, case.y.height, case.y.channels)
    attributes = {**case.x.attributes("in"), **case.y.attributes("out"), **geometry, "activation": int(rng.integers(3))}
    operands = {"input": x, "packed": case.pack(0, code), "output": empty_map(case.y)}
    if rng.integers(2):
        operands["bias"] = case.bias
    check_linear("nhwc_conv_forward", operands, ["output"], attributes, [(*b, 0) for b in blocks], case.terms, factor)
    blocks = cut(rng, case.batch, case.dx.height, case.dx.channels)
    accumulate = int(rng.integers(2))
    before = gradient_target(rng, case.dx, accumulate)
    attributes = {**case.dy.attributes("in"), **case.dx.attributes("out"), **geometry, "accumulate": accumulate}
    operands = {"gradient": dy, "packed": case.pack(1, code), "output": before}
    terms = case.terms * max(1, case.shape[0] / case.x.channels)
    check_linear("nhwc_conv_backward_data", operands, ["output"], attributes, blocks, terms, factor)
    images = ranges(case.batch, int(rng.integers(1, case.batch + 1)))
    part_out, part_in = (16 * int(rng.integers(1, 7)) for _ in range(2))
    outs = ranges(case.shape[0], part_out) if case.groups == 1 else [(0, case.shape[0])]
    ins = ranges(case.x.channels, part_in) if case.groups == 1 else [(0, case.x.channels)]
    blocks = [(*n, *o, *i, partial) for partial, n in enumerate(images) for o in outs for i in ins]
    partials = rng.standard_normal((len(images), case.shape[0], case.weight[0].size)).astype(np.float32)
    biases = rng.standard_normal((len(images), case.shape[0])).astype(np.float32)
    attributes = {**case.dy.attributes("dy"), **case.x.attributes("in"), **geometry, "accumulate": accumulate}
    operands = {
        "gradient": dy,
        "input": x,
        "output": partials if accumulate else fill(partials),
        "bias_output": biases if accumulate else fill(biases),
    }
    terms, outputs = case.batch * case.y.height * case.y.width, ["output", "bias_output"]
    check_linear("nhwc_conv_backward_weights", operands, outputs, attributes, blocks, terms, factor)


@pytest.mark.parametrize("seed", range(42))
def test_compiled_forms_equal_numpy_forms(seed):
    """Check all kernels, cut into blocks at random, in all instruction sets, halo and padding channels included."""
    check_case(random_case(seed), "direct")


@pytest.mark.parametrize(("stride", "beside"), [(1, 0), (1, 1), (2, 0), (2, 1)])
def test_matrix_products_of_more_pixels_than_are_copied_at_a_time(stride, beside):
    """Check the weight gradient of a 1 x 1 convolution, whether the input's pixels follow on or not."""
    check_case(Case(1, 1, 64, 80, 41, 39, 1, stride, 0, 1, beside=beside), "direct")


@pytest.mark.parametrize("groups", [1, 2])
def test_more_output_channels_than_a_piece_of_the_weight_gradient(groups):
    """Check kernels of 3 x 3 with a stride, several strips and pieces."""
    check_case(Case(2, groups, 80 * groups, 144 * groups, 17, 23, 3, 2, 1, 1), "direct")


@pytest.mark.parametrize("algorithm", ["winograd2", "winograd4"])
@pytest.mark.parametrize("seed", range(10))
def test_winograd_stays_within_its_error(seed, algorithm):
    """Check Winograd's kernels against the NumPy form: parts of tiles, groups, blocks cut anywhere."""
    rng = np.random.default_rng(seed)
    groups = int(rng.choice([1, 1, 2]))
    channels = (groups * 16 * int(n) - (groups == 1) * int(rng.integers(5)) for n in rng.integers(1, 6, 2))
    channels = [max(16, n) for n in channels]
    height, width = (int(n) for n in rng.integers(2, 12, 2))
    batch, padding = int(rng.integers(1, 4)), int(rng.integers(0, 3)) if min(height, width) > 2 else 1
    check_case(Case(batch, groups, *channels, height, width, 3, 1, padding, 1, seed=seed), algorithm, factor=16.0)


def test_statistics_keep_what_the_mean_hides():
    """Check mean and squared deviations of sums whose mean is a thousand times their deviation."""
    case = Case(2, 1, 16, 40, 6, 6, 3, 1, 1, 1)
    case.bias[:] = 1000 * np.sqrt(144)
    attributes = {**case.x.attributes("in"), **case.y.attributes("out"), **case.geometry}
    attributes |= {"algorithm": 0, "activation": 0}
    operands = {
        "input": random_map(case.rng, case.x),
        "packed": case.pack(0, 0),
        "bias": case.bias,
        "output": empty_map(case.y),
        "statistics": fill(np.empty(statistics_shape(2, case.y.pitch), np.float32)),
    }
    bounds = [(0, 2, 3 * n, 3 * n + 3, c, min(40, c + 16), n) for n in (0, 1) for c in (0, 16, 32)]
    for _, got, expected, _ in against_float64("nhwc_conv_forward", operands, ["statistics"], attributes, bounds):
        np.testing.assert_allclose(got[:, 0, :40], expected[:, 0, :40], rtol=1e-6)
        np.testing.assert_allclose(got[:, 1, :40], expected[:, 1, :40], rtol=1e-2)
        np.testing.assert_array_equal(got[:, 2], expected[:, 2])
