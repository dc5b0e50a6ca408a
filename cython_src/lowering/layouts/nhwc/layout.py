"""The layout "nhwc": the channels of a pixel side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

from ....kernels.convolution.algorithms import NHWC_OPTIONS
from ....kernels.maps.nhwc import NhwcMap, Vector
from ....networks.layers import Add, AveragePool, BatchNorm, Conv2d, GlobalAvgPool, Layer, MaxPool, ReLU, ReLU6, Sigmoid
from ....plan.builder import block_bounds, ranges
from ... import dense, elementwise
from ...ends import IMAGES
from ...gradients import gradient_map, sent_back, sent_to
from ...options import FUSIONS
from ...state import ImageLayout, Loops, Lowering, Maps, repeated
from ...units import Unit
from . import convolutions, norms
from .block_sizes import image_blocks, pixel_blocks
from .maps import gradient_halo, gradient_halo_within, halo, new_map

FC_PARTIALS = 4  # partial sums of a fully connected layer's weight gradient


# --- pooling over windows and over whole maps ---


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


class Nhwc(ImageLayout):
    """Maps are buffers (batch, height + 2 halo, width + 2 halo, pitch); see `NhwcMap`."""

    name = "nhwc"
    fusions = frozenset(FUSIONS) - {"pooling"}
    conv_options = NHWC_OPTIONS
    ends = IMAGES
    load_kernel = "nhwc_load_images"
    sample_blocks = staticmethod(image_blocks)
    loops: ClassVar = {
        **convolutions.LOOPS,
        **norms.LOOPS,
        **elementwise.LOOPS,
        **dict.fromkeys((ReLU, ReLU6, Sigmoid), elementwise.ACTIVATION),
        **dict.fromkeys((MaxPool, AveragePool), Loops(pool, pool_backward)),
        GlobalAvgPool: Loops(global_pool, global_pool_backward),
        **dense.LOOPS,
    }

    def can_join(self, parts: Sequence[Layer], consumers: Mapping[str, Sequence[Layer]]) -> bool:
        """Norms, convolutions and sums take an activation; norms and convolutions a shortcut."""
        match parts:
            case (BatchNorm(), Add()):
                return True
            case (Conv2d() as convolution, Add() as add):
                return _can_add(convolution, add, consumers)
            case (BatchNorm() | Add() | Conv2d(), ReLU() | ReLU6()):
                return True
        return False

    def weight_blocks(self, low: Lowering) -> list[tuple[int, int]]:
        return ranges(low.batch, max(1, -(-low.batch // FC_PARTIALS)))

    def activation(self, low: Lowering, name: str, tensor: str) -> NhwcMap:
        return new_map(low, name, tensor, halo(low, tensor))

    def gradient(self, low: Lowering, name: str, tensor: str, before_activation: Unit | None = None) -> NhwcMap:
        if before_activation:
            return new_map(low, name, tensor, gradient_halo_within(low, before_activation))
        return new_map(low, name, tensor, gradient_halo(low, tensor))

    def vector(self, low: Lowering, name: str, length: int) -> Vector:
        return Vector(name, low.batch, length, 1, 1)

    def features(self, low: Lowering, unit: Unit) -> Vector:
        """Return what a fully connected layer reads; a map with pixels is copied in the order channel, row, column."""
        source = low.maps[unit.sources[0]]
        if isinstance(source, Vector):
            return source
        name = f"{unit.sources[0]}.flat"
        is_new = name not in low.builder.buffers
        flat = low.keep(self.vector(low, name, math.prod(low.shapes[unit.sources[0]])))
        if is_new:
            operands = {"input": source, "output": flat}
            low.loop(name, "nhwc_flatten", operands, low.sample_bounds(), unit.layer.name, "forward")
        return flat

    def send_features(self, low: Lowering, unit: Unit, gradient: Vector) -> None:
        """Append the data gradient of a fully connected layer, and its way back to a map with pixels."""
        tensor = unit.sources[0]
        if isinstance(low.maps[tensor], Vector):
            with sent_back(low, unit, tensor) as target:
                dense.data_gradient(low, unit, gradient, target)
            return
        flat = low.keep(self.vector(low, f"{unit.layer.name}.flat_gradient", math.prod(low.shapes[tensor])), "gradient")
        dense.data_gradient(low, unit, gradient, flat)
        target, accumulate = gradient_map(low, tensor)
        operands, bounds = {"gradient": flat, "output": target}, pixel_blocks(low, target)
        low.append(unit, "flat_gradient", "nhwc_flatten_backward", operands, bounds, accumulate=int(accumulate))

    def elementwise(
        self, low: Lowering, unit: Unit, what: str, operation: str, maps: Maps, **attributes: float
    ) -> None:
        low.append(unit, what, f"nhwc_{operation}", maps, pixel_blocks(low, maps["output"]), **attributes)


def _can_add(convolution: Conv2d, add: Add, consumers: Mapping[str, Sequence[Layer]]) -> bool:
    """Return whether a convolution can add a shortcut to its result: then the two maps must be alike, without halo."""
    shortcut = next(name for name in add.inputs if name != convolution.name or add.inputs[0] == add.inputs[1])
    readers = [*consumers[shortcut], *consumers.get(add.name, ())]
    for reader in consumers.get(add.name, ()):
        if isinstance(reader, ReLU | ReLU6):
            readers += consumers.get(reader.name, ())
    needs_halo = any(isinstance(r, Conv2d) and r.padding for r in readers)
    return shortcut != "input" and convolution.groups == 1 and not needs_halo
