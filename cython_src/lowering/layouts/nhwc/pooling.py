"""Pooling over windows and over whole maps."""

from __future__ import annotations

from ....kernels.maps.nhwc import NhwcMap
from ....networks.layers import AveragePool, GlobalPool, MaxPool
from ....plan.builder import block_bounds
from ...gradients import gradient_map, sent_to
from ...state import Loops, Lowering, loop_name, phase_of
from ...units import Unit
from .block_sizes import image_blocks, pixel_blocks

KERNELS = {MaxPool: "nhwc_max_pool", AveragePool: "nhwc_average_pool"}


def _windows(layer: MaxPool | AveragePool) -> dict[str, int]:
    return {"kernel": layer.size, "stride": layer.stride or layer.size, "padding": getattr(layer, "padding", 0)}


def _index(low: Lowering, unit: Unit) -> str | None:
    """Declare the buffer that says which element of its window each maximum was; an average has none."""
    if not isinstance(unit.layer, MaxPool):
        return None
    channels, height, width = low.shapes[unit.target]
    shape = (low.batch, height, width, NhwcMap("", 1, channels, height, width).pitch)
    return low.builder.buffer(f"{unit.target}.index", shape, "uint8")


def pool(low: Lowering, unit: Unit, again: bool) -> None:
    layer, target = unit.layer, low.output_map(unit, again)
    operands = {"input": low.maps[unit.sources[0]], "output": target, "index": _index(low, unit)}
    bounds, name, phase = pixel_blocks(low, target), loop_name(unit, again), phase_of(again)
    low.loop(name, KERNELS[type(layer)], operands, bounds, layer.name, phase, **_windows(layer))


def pool_backward(low: Lowering, unit: Unit, gradient: NhwcMap) -> None:
    layer, kernel = unit.layer, f"{KERNELS[type(unit.layer)]}_backward"
    with sent_to(low, unit, unit.sources[0], gradient) as (target, accumulate):
        operands = {"gradient": gradient, "output": target, "index": _index(low, unit)}
        attributes = _windows(layer) | {"accumulate": int(accumulate)}
        low.loop(
            f"{layer.name}.gradient", kernel, operands, pixel_blocks(low, target), layer.name, "backward", **attributes
        )


def global_pool(low: Lowering, unit: Unit, again: bool) -> None:
    source, name = low.maps[unit.sources[0]], unit.layer.name
    operands = {"input": source, "output": low.output_map(unit, again)}
    bounds = block_bounds(n=image_blocks(low), c=[(0, source.channels)])
    low.loop(name, "nhwc_global_pool", operands, bounds, name, "forward")


def global_pool_backward(low: Lowering, unit: Unit, gradient: NhwcMap) -> None:
    target, accumulate = gradient_map(low, unit.sources[0])
    operands, bounds, name = {"gradient": gradient, "output": target}, pixel_blocks(low, target), unit.layer.name
    kernel = "nhwc_global_pool_backward"
    low.loop(f"{name}.gradient", kernel, operands, bounds, name, "backward", accumulate=int(accumulate))


LOOPS = {**dict.fromkeys(KERNELS, Loops(pool, pool_backward)), GlobalPool: Loops(global_pool, global_pool_backward)}
