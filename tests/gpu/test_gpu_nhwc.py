"""CUDA kernels with the channels in the lanes: convolutions of any geometry, which blocks are products, refusals."""

import numpy as np
import pytest
from cython_src.kernels.kernel_testing import EPSILON
from gpu.fake_gpu import emulator

from forktask.cython_src.gpu import launches as gpu_launches
from forktask.cython_src.kernels import kernel_table
from forktask.cython_src.kernels.convolution import algorithms
from forktask.cython_src.kernels.maps.nhwc import NhwcMap


def convolution(rng, direction, weight, groups, algorithm):
    """Name of a convolution's kernel, its packed weights and bias, and the attributes of the packing."""
    outs, ins, kernel, _ = weight.shape
    pack = {"out_channels": outs, "in_channels": ins * groups, "kernel": kernel, "groups": groups}
    pack |= {"direction": direction, "algorithm": algorithm}
    shape = algorithms.packed_shape(algorithm, direction, weight.shape, groups)
    operands = {"packed": np.full(shape, np.nan, np.float32)}
    run_kernel("nhwc_conv_pack", {"weight": weight, **operands}, pack, {"o0": 0, "o1": shape[0]})
    if direction == 0:
        operands["bias"] = rng.standard_normal(outs).astype(np.float32)
    return ("nhwc_conv_forward", "nhwc_conv_backward_data")[direction], operands, pack


def block_bounds(n, y, c):
    return {"n0": n[0], "n1": n[1], "y0": y[0], "y1": y[1], "c0": c[0], "c1": c[1], "partial": 0}


CONVOLUTIONS = [
    # batch, in, out, size, kernel, stride, padding, dilation, groups
    (2, 3, 40, 9, 3, 1, 1, 1, 1),
    (3, 24, 20, 8, 3, 2, 1, 1, 1),
    (1, 36, 72, 7, 1, 1, 0, 1, 1),
    (2, 17, 33, 9, 1, 2, 0, 1, 1),
    (2, 12, 18, 11, 5, 3, 2, 1, 3),
    (1, 64, 64, 6, 3, 1, 2, 2, 2),
    (1, 10, 70, 8, 7, 2, 3, 1, 1),
]


@pytest.mark.cxx
@pytest.mark.parametrize(
    ("shape", "tile"),
    # A group has at most half of the channels, which only the smallest tile but one fits.
    [(shape, tile) for shape in CONVOLUTIONS for tile in range(2 - (shape[-1] > 1))],
)
def test_convolutions_of_any_geometry(shape, tile, monkeypatch):
    """Check forward, data gradient and weight gradient with each size of tile against float64, by the sum's bound."""
    batch, ins, outs, size, kernel, stride, padding, dilation, groups = shape
    monkeypatch.setattr(gpu_launches, "THREADS_WANTED", 0)
    monkeypatch.setattr(gpu_launches, "PRODUCT_TILES", gpu_launches.PRODUCT_TILES[tile:])
    monkeypatch.setattr(gpu_launches, "GRADIENT_TILES", gpu_launches.GRADIENT_TILES[tile:])
    out_size = (size + 2 * padding - (kernel - 1) * dilation - 1) // stride + 1
    geometry = {
        "kernel": kernel,
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "groups": groups,
        "algorithm": 0,
    }
    sizes = {"in_height": out_size, "in_width": out_size, "out_height": size, "out_width": size, **geometry}
    x = NhwcMap("x", batch, ins, size, size, padding, image=ins < 4)
    y = NhwcMap("y", batch, outs, out_size, out_size, algorithms.required_halo(algorithms.DATA, sizes))
    rng = np.random.default_rng(1)
    weight = rng.standard_normal((outs, ins // groups, kernel, kernel)).astype(np.float32)
    data = {"x": inside_random(rng, x), "y": inside_random(rng, y)}
    for direction, (source, target) in enumerate(((x, y), (y, x))):
        name, operands, attributes = convolution(rng, direction, weight, groups, 0)
        np.testing.assert_array_equal(
            operands["packed"], algorithms.pack(weight, attributes, (0, len(operands["packed"])))
        )
        operands["gradient" if direction else "input"] = data[source.name]
        attributes = {**source.attributes("in"), **target.attributes("out"), **geometry}
        attributes["accumulate" if direction else "activation"] = 0
        c1 = target.channels
        for rows, channels in (((0, target.height), (0, c1)), ((1, 4), (c1 // 16 * 16 if c1 % 16 else 0, c1))):
            bounds = block_bounds((batch - 1, batch), rows, channels)
            compare(name, operands, {"output": target.shape}, attributes, bounds, kernel * kernel * ins)
    operands = {"gradient": data["y"], "input": data["x"]}
    attributes = {**y.attributes("dy"), **x.attributes("in"), **geometry, "accumulate": 0}
    outputs = {"output": (2, outs, ins // groups * kernel * kernel), "bias_output": (2, outs)}
    for o, i in (((0, outs), (0, ins)), ((outs // 2 // 16 * 16, outs), (0, min(ins, 16) if groups == 1 else ins))):
        bounds = {"n0": 0, "n1": batch, "o0": o[0], "o1": o[1], "i0": i[0], "i1": i[1], "partial": 1}
        compare("nhwc_conv_backward_weights", operands, outputs, attributes, bounds, batch * out_size * out_size)


def inside_random(rng, m):
    """Random numbers in the interior, zeros in the halo and the padding channels."""
    array = np.zeros(m.shape, np.float32)
    array[:, m.halo : m.halo + m.height, m.halo : m.halo + m.width, : m.channels] = rng.standard_normal(
        (m.batch, m.height, m.width, m.channels)
    )
    return array


def run_kernel(name, operands, attributes, bounds):
    assert emulator.emulated(name, 3).reference(operands, attributes, bounds, 0) == 0


def compare(name, operands, outputs, attributes, bounds, terms):
    """Check that the CUDA kernel writes the reference's numbers alone, within rounding of `terms` products."""
    spec = kernel_table.get(name)
    bounds = {k: bounds[k] for k in spec.bounds}
    got = {k: np.full(s, np.nan, np.float32) for k, s in outputs.items()}
    expected = {k: np.full(s, np.nan) for k, s in outputs.items()}
    size = {k: a.copy() for k, a in expected.items()}
    run_kernel(name, {**operands, **got}, attributes, bounds)
    spec.reference({**{k: a.astype(float) for k, a in operands.items()}, **expected}, attributes, bounds, 0)
    spec.reference({**{k: abs(a.astype(float)) for k, a in operands.items()}, **size}, attributes, bounds, 0)
    for output in outputs:
        assert (np.isnan(got[output]) == np.isnan(expected[output])).all(), f"{name} {output}"
        written = ~np.isnan(expected[output])
        error = abs(got[output] - expected[output])[written]
        assert (error <= terms * EPSILON * size[output][written] + 1e-30).all(), f"{name} {output}: {error.max()}"
