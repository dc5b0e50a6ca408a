"""Depthwise convolutions with the norms before and after them in one loop."""

from __future__ import annotations

from ....kernels.maps.nhwc import NhwcMap
from ....plan.builder import block_bounds, ranges
from ...gradients import gradient_map
from ...state import Lowering
from ...units import Unit
from . import block_sizes
from .maps import geometry, source_map


def depthwise_norm_backward(low: Lowering, unit: Unit, gradient: NhwcMap) -> None:
    """Append weight gradient and gradient of the source for a depthwise convolution and the norm after it, whose
    gradient coefficients are already computed, and the sums of the norm that the convolution applies."""
    layer, builder = unit.layer, low.builder
    source, result = source_map(low, unit), low.maps[unit.target]
    after = low.readers[unit.target][0]
    before = low.producer[unit.sources[0]] if unit.normalises else None
    weight = f"{layer.name}.weight"
    target, _ = gradient_map(low, unit.sources[0])
    flops = 4.0 * layer.kernel**2 * low.batch * result.channels * result.height * result.width
    images, part = block_sizes.image_channel_blocks(low.options.cut, low.batch, source.channels, flops)
    groups, channels = ranges(low.batch, images), ranges(source.channels, part)
    partials = builder.buffer(
        f"{weight}.partials", (len(groups), source.channels, layer.kernel**2), role="gradient", carried=len(groups) == 1
    )
    low.partials[weight] = partials, len(groups)
    operands = {
        "gradient": gradient,
        "result": result,
        **{kind: f"{after.layer.name}.{kind}" for kind in ("scale", "shift", "mean", "coefficients")},
        "weight": weight,
        "input": source,
        "output": target,
        "weight_partials": partials,
    }
    if before:
        name = before.layer.name
        sums = builder.buffer(f"{name}.gradient_partials", (len(groups), 2, source.pitch), role="temporary")
        operands |= {f"input_{kind}": f"{name}.{kind}" for kind in ("scale", "shift", "mean", "inv_std")}
        operands["statistics"] = low.gradient_sums[name] = sums
    bounds = [{**b, "partial": number // len(channels)} for number, b in enumerate(block_bounds(n=groups, c=channels))]
    attributes = {**result.attributes("out"), **geometry(low, layer), "activation": after.activation}
    attributes["input_activation"] = before.activation if before else 0
    low.append(unit, "gradient", "nhwc_depthwise_norm_backward", operands, bounds, **attributes)
