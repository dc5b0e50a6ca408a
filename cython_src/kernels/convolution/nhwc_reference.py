"""NumPy forms of the convolutions of the layout "nhwc"; they work in any float type."""

import numpy as np

from ..maps.nhwc import (
    block_statistics,
    channel_end,
    channels_of,
    inside,
    scatter_windows,
    window_of,
    windows,
    write_block,
)
from ..simd.activations import activate
from . import algorithms


def pack(operands, attributes, bounds, iteration):
    """Panels of the packed weights."""
    panels = bounds["o0"], bounds["o1"]
    operands["packed"][slice(*panels)] = algorithms.pack(operands["weight"], attributes, panels)


def _read_channels(array, attributes, prefix, bounds):
    """All rows of a block's images, channels without padding."""
    images = {"n0": bounds["n0"], "n1": bounds["n1"]}
    return inside(array, attributes, prefix, images)[..., : attributes[f"{prefix}_channels"]]


def _taps(x, attributes, y0, y1, width):
    """Yield each tap's number and the inputs (images, rows, columns, channels) that it meets."""
    return windows(x, *window_of(attributes), y0, y1, width, dilation=attributes["dilation"])


def forward(operands, attributes, bounds, iteration):
    """A block of the output: images, rows, channels."""
    x = _read_channels(operands["input"], attributes, "in", bounds)
    weight = algorithms.unpack(operands["packed"], attributes, algorithms.FORWARD)[bounds["c0"] : bounds["c1"]]
    width, pitch, y0, y1 = attributes["out_width"], attributes["out_pitch"], bounds["y0"], bounds["y1"]
    y = np.zeros((len(x), y1 - y0, width, bounds["c1"] - bounds["c0"]), x.dtype)
    if "bias" in operands:
        y += operands["bias"][bounds["c0"] : bounds["c1"]]
    for tap, part in _taps(x, attributes, y0, y1, width):
        y += np.einsum("nyxi,oi->nyxo", part, weight[:, :, *divmod(tap, attributes["kernel"])], optimize=True)
    y = np.pad(y, ((0, 0),) * 3 + ((0, channel_end(bounds["c1"], pitch) - bounds["c1"]),))
    if "residual" in operands:
        y += inside(operands["residual"], attributes, "out", bounds)
    if "statistics" in operands:
        channels_of(operands["statistics"][bounds["partial"]], bounds, pitch)[...] = block_statistics(y)
    write_block(operands["output"], attributes, "out", bounds, activate(y, attributes["activation"]))


def backward_data(operands, attributes, bounds, iteration):
    """A block of the input's gradient: images, rows, channels."""
    dy = _read_channels(operands["gradient"], attributes, "in", bounds)
    # (in_channels of the layer, out_channels, taps reversed)
    weight = algorithms.unpack(operands["packed"], attributes, algorithms.DATA)[
        bounds["c0"] : bounds["c1"], :, ::-1, ::-1
    ]

    def sent(tap):
        return np.einsum("nyxo,io->nyxi", dy, weight[:, :, *divmod(tap, attributes["kernel"])], optimize=True)

    shape = len(dy), attributes["out_height"], attributes["out_width"], len(weight)
    dx = scatter_windows(sent, shape, *window_of(attributes), dy.dtype, attributes["dilation"])
    dx = dx[:, bounds["y0"] : bounds["y1"]]
    write_block(operands["output"], attributes, "out", bounds, dx, accumulate=attributes["accumulate"])


def backward_weights(operands, attributes, bounds, iteration):
    """A partial weight gradient of a block of images, output and input channels."""
    x = _read_channels(operands["input"], attributes, "in", bounds)
    dy = _read_channels(operands["gradient"], attributes, "dy", bounds)
    k, groups = attributes["kernel"], attributes["groups"]
    o0, o1, partial = (bounds[name] for name in ("o0", "o1", "partial"))
    out, part = dy.shape[3] // groups, x.shape[3] // groups
    target = operands["output"][partial].reshape(dy.shape[3], part, k * k)
    add = attributes["accumulate"]
    i0, i1 = (bounds["i0"], bounds["i1"]) if groups == 1 else (0, part)
    for tap, met in _taps(x, attributes, 0, *dy.shape[1:3]):
        for g in range(o0 // out, (o1 - 1) // out + 1):
            o = slice(max(o0, g * out), min(o1, (g + 1) * out))
            i = slice(g * part + i0, g * part + i1)
            product = np.einsum("nyxo,nyxi->oi", dy[..., o], met[..., i], optimize=True)
            target[o, i0:i1, tap] = target[o, i0:i1, tap] + product if add else product
    if "bias_output" in operands and bounds["i0"] == 0:
        sums = dy[..., o0:o1].sum(axis=(0, 1, 2))
        bias = operands["bias_output"][partial]
        bias[o0:o1] = bias[o0:o1] + sums if add else sums
