"""Convolution with the channels in the lanes: NumPy forms by definition, compiled forms against them."""

import numpy as np
import pytest
from forktask.cython_src import nhwc_conv
from forktask.cython_src.nhwc_arrays import ChannelMap, statistics_shape
from forktask.cython_src.plan import block_grid, ranges
from kernel_testing import fill, run_kernel

WHOLE_CASES = [
    # batch, groups, in, out, height, width, kernel, stride, padding, dilation
    (2, 1, 3, 16, 8, 8, 3, 1, 1, 1),
    (1, 1, 16, 32, 6, 7, 1, 1, 0, 1),
    (2, 1, 20, 24, 9, 8, 3, 2, 1, 1),
    (1, 2, 32, 64, 8, 8, 3, 1, 1, 1),
    (1, 1, 32, 16, 8, 8, 1, 2, 0, 1),
    (1, 4, 16, 16, 5, 5, 3, 1, 2, 2),
    (1, 1, 3, 17, 16, 16, 7, 2, 3, 1),
    (2, 1, 32, 48, 4, 4, 3, 1, 1, 1),
]


class Case:
    """One convolution: its maps, weights and attributes."""

    def __init__(self, batch, groups, channels_in, channels_out, height, width, kernel, stride, padding, dilation, seed=0):
        self.rng = np.random.default_rng(seed)
        self.batch, self.groups = batch, groups
        reach = (kernel - 1) * dilation + 1
        out = [(n + 2 * padding - reach) // stride + 1 for n in (height, width)]
        self.geometry = dict(kernel=kernel, stride=stride, padding=padding, dilation=dilation, groups=groups)
        sizes = {"in_height": out[0], "in_width": out[1], "out_height": height, "out_width": width}
        halo = nhwc_conv.required_halo(nhwc_conv.DATA, {**self.geometry, **sizes})
        image = channels_in <= 4
        self.x = ChannelMap("x", batch, channels_in, height, width, padding, image=image)
        self.y = ChannelMap("y", batch, channels_out, *out, int(self.rng.integers(2)))
        self.dy = ChannelMap("dy", batch, channels_out, *out, halo)
        self.dx = ChannelMap("dx", batch, channels_in, height, width, int(self.rng.integers(2)), image=image)
        self.shape = (channels_out, channels_in // groups, kernel, kernel)
        self.weight = self.rng.standard_normal(self.shape).astype(np.float32)
        self.bias = self.rng.standard_normal(channels_out).astype(np.float32)
        self.terms = kernel * kernel * channels_in // groups

    def random(self, m):
        """Random interior, zero halo and padding channels."""
        array = np.zeros(m.shape, np.float32)
        inside = m.natural()({m.name: array})
        inside[...] = self.rng.standard_normal(inside.shape)
        return array

    def pack(self, weight, direction, algorithm, target="float64", instruction_set=None):
        shape = nhwc_conv.packed_shape(algorithm, direction, self.shape, self.groups)
        operands = {"weight": weight, "packed": fill(np.empty(shape, np.float32))}
        attributes = dict(
            out_channels=self.shape[0], in_channels=self.shape[1] * self.groups, kernel=self.shape[2],
            groups=self.groups, direction=direction, algorithm=algorithm,
        )  # fmt: skip
        bounds = ranges(shape[0], int(self.rng.integers(1, shape[0] + 1)))
        return run_kernel("nhwc_conv_pack", operands, ["packed"], attributes, bounds, target, instruction_set)["packed"]


def definition(case, x, weight):
    """(batch, out, height, width) by loops over taps, in float64."""
    k, s, p, d = (case.geometry[name] for name in ("kernel", "stride", "padding", "dilation"))
    x = np.pad(x.astype(float), ((0, 0), (0, 0), (p, p + k * d), (p, p + k * d)))
    y = np.zeros((case.batch, case.shape[0], case.y.height, case.y.width))
    out, part = case.shape[0] // case.groups, case.shape[1]
    for o in range(case.shape[0]):
        inputs = x[:, o // out * part : (o // out + 1) * part]
        for ky in range(k):
            for kx in range(k):
                window = inputs[:, :, ky * d :: s, kx * d :: s][:, :, : case.y.height, : case.y.width]
                y[:, o] += np.einsum("nihw,i->nhw", window, weight[o, :, ky, kx].astype(float))
    return y


@pytest.mark.parametrize("algorithm", ["direct", "winograd2", "winograd4"])
@pytest.mark.parametrize("numbers", WHOLE_CASES)
def test_numpy_forms_follow_the_definition(numbers, algorithm):
    """Check forward against loops over taps, and the gradients as the transposes of the forward pass."""
    case = Case(*numbers)
    code = nhwc_conv.choose_algorithm(algorithm, "forward", {**case.geometry, **case.x.attributes("in"), **case.y.attributes("out")}, 1)
    x, dy = case.random(case.x), case.random(case.dy)
    natural = {name: m.natural()({name: a}) for name, m, a in (("x", case.x, x), ("dy", case.dy, dy))}
    geometry = {**case.geometry, "algorithm": code}
    whole = (0, case.batch, 0, case.y.height, 0, case.shape[0], 0)
    y = run_kernel(
        "nhwc_conv_forward",
        {"input": x, "packed": case.pack(case.weight, 0, code), "output": fill(np.empty(case.y.shape, np.float32))},
        ["output"], {**case.x.attributes("in"), **case.y.attributes("out"), **geometry, "activation": 0}, [whole], "float64",
    )["output"]  # fmt: skip
    expected = definition(case, natural["x"], case.weight)
    np.testing.assert_allclose(case.y.natural()({"y": y}), expected, rtol=1e-5, atol=1e-4)
    assert np.isfinite(y).all()
    dx = run_kernel(
        "nhwc_conv_backward_data",
        {"gradient": dy, "packed": case.pack(case.weight, 1, code), "output": fill(np.empty(case.dx.shape, np.float32))},
        ["output"], {**case.dy.attributes("in"), **case.dx.attributes("out"), **geometry, "accumulate": 0},
        [(0, case.batch, 0, case.dx.height, 0, case.dx.channels)], "float64",
    )["output"]  # fmt: skip
    assert np.isfinite(dx).all()
    dw = run_kernel(
        "nhwc_conv_backward_weights",
        {"gradient": dy, "input": x, "output": fill(np.empty((1, case.shape[0], case.weight[0].size), np.float32))},
        ["output"], {**case.dy.attributes("dy"), **case.x.attributes("in"), **geometry, "accumulate": 0},
        [(0, case.batch, 0, case.shape[0], 0, case.x.channels, 0)], "float64",
    )["output"]  # fmt: skip
    # <dy, conv(x, w)> = <dx, x> = <dw, w>
    product = (natural["dy"] * expected).sum()
    size = np.abs(natural["dy"] * expected).sum() + 1
    assert abs((case.dx.natural()({"dx": dx}) * natural["x"]).sum() - product) < 1e-5 * size
    assert abs((dw.ravel() * case.weight.ravel()).sum() - product) < 1e-5 * size
