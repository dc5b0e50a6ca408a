"""Batch normalisation with the channels in the vector lanes: training, evaluation and backward.

Training, z the input, N pixels of the batch:  mean = sum(z) / N, var = sum((z - mean)^2) / N,
inv_std = 1 / sqrt(var + eps), scale = weight inv_std, shift = bias - mean scale,
y = activation(scale z + shift + residual).

Backward, g = dy where the activation passes it, xhat = (z - mean) inv_std:  dbias = sum(g),
dweight = sum(g xhat), dz = weight inv_std (g - dbias / N - xhat dweight / N); with constant statistics
(evaluation) dz = weight inv_std g.

Sums are taken by blocks, each into a partial of its own, and merged in order: mean and squared deviations by
Chan's formula, so that float32 holds them whatever the mean. All vectors have the maps' pitch, zero past the last
channel; weight, bias and running statistics are PyTorch's.
"""

import numpy as np

from .kernel_table import KernelSpec, register
from .nhwc_arrays import (
    BOX, activate, block_statistics, channel_end, inside, nhwc_attributes, passes, write_block)


def _range(bounds, attributes):
    """Channels [c0, c1) of a block; the vectors' elements past the last channel belong to the last block."""
    channels = slice(bounds["c0"], bounds["c1"])
    last = bounds["c1"] == attributes["channels"]
    return channels, slice(bounds["c1"], None) if last else slice(0, 0)


def _set(vector, channels, padding, values):
    vector[..., channels] = values
    vector[..., padding] = 0


def _statistics_reference(operands, attributes, bounds, iteration):
    operands["partials"][bounds["partial"]] = block_statistics(inside(operands["input"], attributes, "in", bounds))


def _finish_reference(operands, attributes, bounds, iteration):
    c, padding = _range(bounds, attributes)
    part_mean, part_squares, part_count = operands["partials"][:, :, c].transpose(1, 0, 2)
    count, momentum = attributes["count"], attributes["momentum"]
    mean = (part_count * part_mean).sum(axis=0) / count
    squares = (part_squares + part_count * (part_mean - mean) ** 2).sum(axis=0)
    variance = squares / count
    inv_std = 1 / np.sqrt(variance + attributes["eps"])
    scale = operands["weight"][c] * inv_std
    for name, values in (("mean", mean), ("inv_std", inv_std), ("scale", scale),
                         ("shift", operands["bias"][c] - mean * scale)):
        _set(operands[name], c, padding, values)
    for name, values in (("running_mean", mean), ("running_var", squares / max(count - 1, 1))):
        operands[name][c] = (1 - momentum) * operands[name][c] + momentum * values


def _evaluate_reference(operands, attributes, bounds, iteration):
    c, padding = _range(bounds, attributes)
    inv_std = 1 / np.sqrt(operands["running_var"][c] + attributes["eps"])
    scale = operands["weight"][c] * inv_std
    _set(operands["scale"], c, padding, scale)
    _set(operands["shift"], c, padding, operands["bias"][c] - operands["running_mean"][c] * scale)
    if "mean" in operands:
        _set(operands["mean"], c, padding, operands["running_mean"][c])
    if "inv_std" in operands:
        _set(operands["inv_std"], c, padding, inv_std)


def _vector(operands, name, bounds, attributes):
    """A block's part of a vector."""
    return operands[name][..., bounds["c0"] : channel_end(bounds["c1"], attributes["in_pitch"])]


def _apply_reference(operands, attributes, bounds, iteration):
    z = inside(operands["input"], attributes, "in", bounds)
    y = _vector(operands, "scale", bounds, attributes) * z + _vector(operands, "shift", bounds, attributes)
    if "residual" in operands:
        residual = inside(operands["residual"], attributes, "in", bounds, attributes["residual_halo"])
        if "residual_scale" in operands:
            residual = (_vector(operands, "residual_scale", bounds, attributes) * residual
                        + _vector(operands, "residual_shift", bounds, attributes))
        y = y + residual
    write_block(operands["output"], attributes, "in", bounds, activate(y, attributes["activation"]),
                attributes["out_halo"])


def _gradient(operands, attributes, bounds, z):
    """dy where the activation passes it; its argument is computed anew where the result is not given."""
    g = inside(operands["gradient"], attributes, "in", bounds, attributes["gradient_halo"])
    if attributes["activation"] == 0:
        return g
    if "activations" in operands:
        y = inside(operands["activations"], attributes, "in", bounds, attributes["activations_halo"])
    else:
        scale, shift = operands["scale"], operands["shift"]
        if "c0" in bounds:
            scale, shift = (_vector(operands, name, bounds, attributes) for name in ("scale", "shift"))
        y = scale * z + shift
    return np.where(passes(y, attributes["activation"]), g, 0)


def _backward_statistics_reference(operands, attributes, bounds, iteration):
    z = inside(operands["input"], attributes, "in", bounds)
    g = _gradient(operands, attributes, bounds, z)
    xhat = (z - operands["mean"]) * operands["inv_std"]
    operands["partials"][bounds["partial"], 0] = g.sum(axis=(0, 1, 2))
    operands["partials"][bounds["partial"], 1] = (g * xhat).sum(axis=(0, 1, 2))


def _backward_finish_reference(operands, attributes, bounds, iteration):
    c, padding = _range(bounds, attributes)
    dbias, dweight = operands["partials"][:, :, c].sum(axis=0)
    operands["gradient_bias"][0, c] = dbias
    operands["gradient_weight"][0, c] = dweight
    a = operands["weight"][c] * operands["inv_std"][c]
    share = 0.0 if attributes["evaluation"] else 1 / attributes["count"]
    for row, values in enumerate((a, -share * a * operands["inv_std"][c] * dweight, -share * a * dbias)):
        _set(operands["coefficients"][row], c, padding, values)


def _backward_apply_reference(operands, attributes, bounds, iteration):
    z = inside(operands["input"], attributes, "in", bounds)
    g = _gradient(operands, attributes, bounds, z)
    a, b, c = _vector(operands, "coefficients", bounds, attributes)
    dz = a * g + (b * (z - _vector(operands, "mean", bounds, attributes)) + c)
    write_block(operands["output"], attributes, "in", bounds, dz, attributes["out_halo"])
    if "branch" in operands:
        write_block(operands["branch"], attributes, "in", bounds, g, attributes["branch_halo"],
                    attributes["accumulate_branch"])


MAP = nhwc_attributes("in")
# Statistics of one block: shape nhwc_arrays.statistics_shape(num_partials, pitch).
register(KernelSpec("nhwc_norm_statistics", ("input", "partials"), MAP, (), ("n0", "n1", "y0", "y1", "partial"),
                    _statistics_reference))
register(KernelSpec(
    "nhwc_norm_finish",
    ("partials", "weight", "bias", "running_mean", "running_var", "scale", "shift", "mean", "inv_std"),
    ("channels", "num_partials", "count"), ("eps", "momentum"), ("c0", "c1"), _finish_reference))
register(KernelSpec(
    "nhwc_norm_evaluate",
    ("weight", "bias", "running_mean", "running_var", "scale", "shift", "mean?", "inv_std?"),
    ("channels",), ("eps",), ("c0", "c1"), _evaluate_reference))
# The residual may itself be a convolution's result that is normalised here: residual_scale, residual_shift.
register(KernelSpec(
    "nhwc_norm_apply",
    ("input", "scale", "shift", "residual?", "residual_scale?", "residual_shift?", "output"),
    MAP + ("residual_halo", "out_halo", "activation"), (), BOX, _apply_reference))
# Backward: the activation's mask comes from its result `activations`, or, where there was no residual, from
# scale z + shift, which saves reading a map. Partials: (num_partials, 2, pitch).
register(KernelSpec(
    "nhwc_norm_backward_statistics",
    ("gradient", "activations?", "scale?", "shift?", "input", "mean", "inv_std", "partials"),
    MAP + ("gradient_halo", "activations_halo", "activation"), (), ("n0", "n1", "y0", "y1", "partial"),
    _backward_statistics_reference))
# coefficients: (3, pitch), dz = a g + (b (z - mean) + c). With evaluation = 1 the statistics are constants.
register(KernelSpec(
    "nhwc_norm_backward_finish",
    ("partials", "weight", "inv_std", "gradient_weight", "gradient_bias", "coefficients"),
    ("channels", "num_partials", "count", "evaluation"), (), ("c0", "c1"), _backward_finish_reference))
# branch: g, the gradient of the residual, written or added.
register(KernelSpec(
    "nhwc_norm_backward_apply",
    ("gradient", "activations?", "scale?", "shift?", "input", "mean", "coefficients", "output", "branch?"),
    MAP + ("gradient_halo", "activations_halo", "out_halo", "branch_halo", "activation", "accumulate_branch"),
    (), BOX, _backward_apply_reference))
