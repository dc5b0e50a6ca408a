"""Pooling over windows and over whole maps."""

from __future__ import annotations

from ....kernels.maps.nhwc import NhwcMap
from ....networks.layers import AveragePool, GlobalAvgPool, MaxPool
from ....plan.builder import block_bounds
from ...gradients import gradient_map, sent_to
from ...state import Loops, Lowering, repeated
from ...units import Unit
from .block_sizes import image_blocks, pixel_blocks


def _windows(layer: MaxPool | AveragePool) -> dict[str, int]:
    return {"kernel": layer.size, "stride": layer.stride or layer.size, "padding": getattr(layer, "padding", 0)}


def _index(low: Lowering, unit: Unit) -> str | None:
    """Declare the buffer that says which element of its window each maximum was; an average has none."""
    if not isinstance(unit.layer, MaxPool):
        return None
    channels, height, width = low.shapes[unit.target]
    shape = (low.batch, height, width, NhwcMap("", 1, channels, height, width).pitch)
    return low.builder.buffer(f"{unit.target}.index", shape, "uint8")


def pool(low: Lowering, unit: Unit, recomputed: bool) -> None:
    layer, target = unit.layer, low.output_map(unit, recomputed)
    operands = {"input": low.maps[unit.sources[0]], "output": target, "index": _index(low, unit)}
    low.append(unit, repeated(recomputed), "nhwc_pool", operands, pixel_blocks(low, target), **_windows(layer))


def pool_backward(low: Lowering, unit: Unit, gradient: NhwcMap) -> None:
    with sent_to(low, unit, unit.sources[0], gradient) as (target, accumulate):
        operands = {"gradient": gradient, "output": target, "index": _index(low, unit)}
        bounds, attributes = pixel_blocks(low, target), _windows(unit.layer) | {"accumulate": int(accumulate)}
        low.append(unit, "gradient", "nhwc_pool_backward", operands, bounds, **attributes)


def global_pool(low: Lowering, unit: Unit, recomputed: bool) -> None:
    source = low.maps[unit.sources[0]]
    operands = {"input": source, "output": low.output_map(unit, recomputed)}
    bounds = block_bounds(n=image_blocks(low), c=[(0, source.channels)])
    low.append(unit, "", "nhwc_global_pool", operands, bounds)


def global_pool_backward(low: Lowering, unit: Unit, gradient: NhwcMap) -> None:
    target, accumulate = gradient_map(low, unit.sources[0])
    operands, bounds = {"gradient": gradient, "output": target}, pixel_blocks(low, target)
    low.append(unit, "gradient", "nhwc_global_pool_backward", operands, bounds, accumulate=int(accumulate))


LOOPS = {
    **dict.fromkeys((MaxPool, AveragePool), Loops(pool, pool_backward)),
    GlobalAvgPool: Loops(global_pool, global_pool_backward),
}
