"""NumPy forms of the convolutions of the layout "nhwc"; they work in any float type."""

import numpy as np

from ..maps.nhwc import activate, block_statistics, channel_end, inside, write_block
from . import algorithms


def pack(operands, attributes, bounds, iteration):
    """Panels of the packed weights."""
    panels = bounds["o0"], bounds["o1"]
    operands["packed"][slice(*panels)] = algorithms.pack(operands["weight"], attributes, panels)


def _read_channels(array, attributes, prefix, bounds):
    """All rows of a block's images, channels without padding."""
    images = {"n0": bounds["n0"], "n1": bounds["n1"]}
    return inside(array, attributes, prefix, images)[..., : attributes[f"{prefix}_channels"]]


def _taps(x, attributes, height, width):
    """Yield (ky, kx, the inputs (images, height, width, channels) that the tap meets)."""
    k, s, p, d = (attributes[name] for name in ("kernel", "stride", "padding", "dilation"))
    x = np.pad(x, ((0, 0), (p, p), (p, p), (0, 0)))
    for ky in range(k):
        for kx in range(k):
            yield ky, kx, x[:, ky * d : ky * d + (height - 1) * s + 1 : s, kx * d : kx * d + (width - 1) * s + 1 : s]


def forward(operands, attributes, bounds, iteration):
    """A block of the output: images, rows, channels."""
    x = _read_channels(operands["input"], attributes, "in", bounds)
    weight = algorithms.unpack(operands["packed"], attributes, algorithms.FORWARD)[bounds["c0"] : bounds["c1"]]
    height, width, pitch = (attributes[f"out_{name}"] for name in ("height", "width", "pitch"))
    y0, y1 = bounds["y0"], bounds["y1"]
    y = np.zeros((len(x), y1 - y0, width, bounds["c1"] - bounds["c0"]), x.dtype)
    if "bias" in operands:
        y += operands["bias"][bounds["c0"] : bounds["c1"]]
    for ky, kx, part in _taps(x, attributes, height, width):
        y += np.einsum("nyxi,oi->nyxo", part[:, y0:y1], weight[:, :, ky, kx], optimize=True)
    y = np.pad(y, ((0, 0),) * 3 + ((0, channel_end(bounds["c1"], pitch) - bounds["c1"]),))
    if "residual" in operands:
        y += inside(operands["residual"], attributes, "out", bounds)
    if "statistics" in operands:
        c = slice(bounds["c0"], channel_end(bounds["c1"], pitch))
        operands["statistics"][bounds["partial"], :, c] = block_statistics(y)
    write_block(operands["output"], attributes, "out", bounds, activate(y, attributes["activation"]))


def backward_data(operands, attributes, bounds, iteration):
    """A block of the input's gradient: images, rows, channels."""
    dy = _read_channels(operands["gradient"], attributes, "in", bounds)
    # (in_channels of the layer, out_channels, taps reversed)
    weight = algorithms.unpack(operands["packed"], attributes, algorithms.DATA)[
        bounds["c0"] : bounds["c1"], :, ::-1, ::-1
    ]
    k, s, p, d = (attributes[name] for name in ("kernel", "stride", "padding", "dilation"))
    height, width, pitch = (attributes[f"out_{name}"] for name in ("height", "width", "pitch"))
    rows, columns = ((n - 1) * s + (k - 1) * d + 1 for n in dy.shape[1:3])
    shape = (len(dy), max(rows, height + p), max(columns, width + p), bounds["c1"] - bounds["c0"])
    dx = np.zeros(shape, dy.dtype)
    for ky in range(k):
        for kx in range(k):
            part = np.einsum("nyxo,io->nyxi", dy, weight[:, :, ky, kx], optimize=True)
            dx[:, ky * d : ky * d + rows - (k - 1) * d : s, kx * d : kx * d + columns - (k - 1) * d : s] += part
    dx = dx[:, p + bounds["y0"] : p + bounds["y1"], p : p + width]
    dx = np.pad(dx, ((0, 0),) * 3 + ((0, channel_end(bounds["c1"], pitch) - bounds["c1"]),))
    write_block(operands["output"], attributes, "out", bounds, dx, accumulate=attributes["accumulate"])


def backward_weights(operands, attributes, bounds, iteration):
    """A partial weight gradient of a block of images, output and input channels."""
    x = _read_channels(operands["input"], attributes, "in", bounds)
    dy = _read_channels(operands["gradient"], attributes, "dy", bounds)
    k, groups, o0, o1, partial = (
        attributes["kernel"],
        attributes["groups"],
        bounds["o0"],
        bounds["o1"],
        bounds["partial"],
    )
    out, part = dy.shape[3] // groups, x.shape[3] // groups
    target = operands["output"][partial].reshape(dy.shape[3], part, k, k)
    add = attributes["accumulate"]
    i0, i1 = (bounds["i0"], bounds["i1"]) if groups == 1 else (0, part)
    for ky, kx, tap in _taps(x, attributes, dy.shape[1], dy.shape[2]):
        for g in range(o0 // out, (o1 - 1) // out + 1):
            o = slice(max(o0, g * out), min(o1, (g + 1) * out))
            i = slice(g * part + i0, g * part + i1)
            product = np.einsum("nyxo,nyxi->oi", dy[..., o], tap[..., i], optimize=True)
            target[o, i0:i1, ky, kx] = target[o, i0:i1, ky, kx] + product if add else product
    if "bias_output" in operands and bounds["i0"] == 0:
        sums = dy[..., o0:o1].sum(axis=(0, 1, 2))
        bias = operands["bias_output"][partial]
        bias[o0:o1] = bias[o0:o1] + sums if add else sums
