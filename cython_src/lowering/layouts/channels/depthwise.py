"""Depthwise convolutions with the norms before and after them in one loop."""

from __future__ import annotations

from ....plan.builder import block_grid, ranges
from ....plan.model import read, write
from ...gradients import gradient_map
from ...state import Lowering
from ...units import Unit
from . import block_sizes
from .maps import FeatureMap, geometry, source_map


def depthwise_norm_backward(low: Lowering, unit: Unit, gradient: FeatureMap) -> None:
    """Append weight gradient and gradient of the source for a depthwise convolution and the norm after it, whose
    gradient coefficients are already computed, and the sums of the norm that the convolution applies."""
    layer, b = unit.layer, low.builder
    source, result = source_map(low, unit), low.maps[unit.target]
    after = low.readers[unit.target][0]
    before = low.producer[unit.sources[0]] if unit.normalises else None
    weight = f"{layer.name}.weight"
    target, _ = gradient_map(low, unit.sources[0])
    flops = 4.0 * layer.kernel**2 * low.batch * result.channels * result.height * result.width
    images, part = block_sizes.image_channel_blocks(low.options.cut, low.batch, source.channels, flops)
    groups, channels = ranges(low.batch, images), ranges(source.channels, part)
    partials = b.buffer(
        f"{weight}.partials", (len(groups), source.channels, layer.kernel**2), role="gradient", carried=len(groups) == 1
    )
    low.partials[weight] = partials, len(groups)
    vectors = {name: f"{after.layer.name}.{name}" for name in ("scale", "shift", "mean", "coefficients")}
    operands = {
        "gradient": gradient.name,
        "result": result.name,
        **vectors,
        "weight": weight,
        "input": source.name,
        "output": target.name,
        "weight_partials": partials,
    }
    if before:
        name = before.layer.name
        applied = {f"input_{kind}": f"{name}.{kind}" for kind in ("scale", "shift", "mean", "inv_std")}
        vectors |= applied
        sums = b.buffer(f"{name}.gradient_partials", (len(groups), 2, source.pitch), role="temporary")
        operands |= applied | {"statistics": sums}
        low.gradient_sums[name] = sums
    moved = 8.0 * low.batch * source.pitch * (result.height * result.width + source.height * source.width)
    blocks = []
    for n, c in block_grid(groups, channels):
        number, box = groups.index(n), source.channel_box(*c)
        accesses = [gradient.read(n, None, c), result.read(n, None, c), source.read(n, None, c), read(weight, c)]
        for kind, vector in vectors.items():
            accesses.append(read(vector, (0, 3), box) if kind == "coefficients" else read(vector, box))
        accesses += [target.write(n, None, c), write(partials, (number, number + 1), c)]
        if before:
            accesses.append(write(sums, (number, number + 1), (0, 2), box))
        share = (n[1] - n[0]) * (c[1] - c[0]) / (low.batch * source.channels)
        bounds = {"n0": n[0], "n1": n[1], "c0": c[0], "c1": c[1], "partial": number}
        blocks.append((bounds, accesses, flops * share, moved * share))
    low.loop(
        f"{layer.name}.gradient",
        "channels_depthwise_norm_backward",
        operands,
        blocks,
        unit.layer.name,
        "backward",
        **result.attributes("out"),
        **source.attributes("in"),
        **geometry(low, layer),
        gradient_halo=gradient.halo,
        output_halo=target.halo,
        activation=after.activation,
        input_activation=before.activation if before else 0,
    )
