"""Maps of the layout "nhwc", and the halos that they need."""

from __future__ import annotations

from ....kernels.convolution import algorithms
from ....kernels.maps.nhwc import NhwcMap, Vector, statistics_shape
from ....networks.layers import Add, BatchNorm, Conv2d
from ...state import Lowering
from ...units import Unit


def new_map(low: Lowering, name: str, tensor: str, halo: int) -> NhwcMap:
    """Return a map, or a vector where a tensor has no pixels."""
    shape = low.shapes[tensor]
    if len(shape) == 1:
        return Vector(name, low.batch, *shape, 1, 1)
    return NhwcMap(name, low.batch, *shape, halo, image=tensor == "input" and _only_convolved(low, tensor))


def _only_convolved(low: Lowering, tensor: str) -> bool:
    """Return whether only convolutions without groups read a tensor: other kernels take maps of one pitch alone."""
    return all(isinstance(unit.layer, Conv2d) and unit.layer.groups == 1 for unit in low.readers[tensor])


def is_depthwise(low: Lowering, layer: Conv2d) -> bool:
    """Return whether depthwise kernels compute a convolution."""
    return layer.is_depthwise(low.shapes[low.layer_inputs[layer.name][0]])


def source_map(low: Lowering, unit: Unit) -> NhwcMap:
    """Return the map that a convolution reads: of its source, or of what the norm that it applies reads."""
    if unit.normalises:
        return low.maps[low.producer[unit.sources[0]].sources[0]]
    return low.maps[unit.sources[0]]


def vector_buffer(low: Lowering, name: str, feature_map: NhwcMap) -> str:
    """Declare a buffer of a number for each channel."""
    return low.builder.buffer(name, (feature_map.pitch,), role="temporary")


def statistics_buffer(low: Lowering, norm: str, count: int, feature_map: NhwcMap) -> str:
    """Declare the buffer of what blocks sum for a norm."""
    shape = statistics_shape(count, feature_map.pitch)
    return low.builder.buffer(f"{norm}.partials", shape, role="temporary")


def geometry(low: Lowering, layer: Conv2d) -> dict[str, int]:
    """Return the attributes of a convolution beside its maps."""
    result = {"kernel": layer.kernel, "stride": layer.stride, "padding": layer.padding}
    return result if is_depthwise(low, layer) else {**result, "dilation": layer.dilation}


def halo(low: Lowering, tensor: str) -> int:
    """Return the widest padding that a reader of a tensor needs."""
    layers = [unit.layer for unit in low.readers.get(tensor, ()) if tensor in unit.sources]
    padded = [layer.padding for layer in layers if isinstance(layer, Conv2d) and not is_depthwise(low, layer)]
    return max(padded, default=0)


def gradient_halo(low: Lowering, tensor: str) -> int:
    """Return the halo around a tensor's gradient, for the data gradient of the convolution that made it, or of one that
    made an input of sums, to which the gradient is passed on."""
    unit = low.producer.get(tensor)
    if unit is None or unit.activation or not low.learns[tensor]:
        return 0
    return gradient_halo_within(low, unit)


def gradient_halo_within(low: Lowering, unit: Unit) -> int:
    """Return the halo around the gradient before a unit's activation."""
    match unit.layer:
        case Conv2d() if unit.shortcut:
            return max(gradient_halo(low, unit.shortcut), _data_gradient_halo(low, unit))
        case Conv2d() if low.learns[unit.sources[0]] and not is_depthwise(low, unit.layer):
            return _data_gradient_halo(low, unit)
        case Add():
            return max(gradient_halo(low, name) for name in unit.sources)
        case BatchNorm() if unit.shortcut:
            return gradient_halo(low, unit.shortcut_norm or unit.shortcut)
    return 0


def _data_gradient_halo(low: Lowering, unit: Unit) -> int:
    source, target = low.shapes[unit.sources[0]], low.shapes[unit.target]
    if not low.learns[unit.sources[0]]:
        return 0
    sizes = {"in_height": target[1], "in_width": target[2], "out_height": source[1], "out_width": source[2]}
    return algorithms.required_halo(algorithms.DATA, {**sizes, **geometry(low, unit.layer)})
