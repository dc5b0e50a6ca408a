"""Maps of the layout "channels", which declare accesses to themselves, and the halos that they need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ....kernels.convolution import algorithms
from ....kernels.maps.channels import ChannelsMap, statistics_shape
from ....networks.layers import Add, BatchNorm, Convolution, Dropout, Layer, MaxPool
from ....plan.model import Access, read, update, write
from ...state import Lowering
from ...units import Unit
from .block_sizes import Window


@dataclass(frozen=True)
class FeatureMap(ChannelsMap):
    """A `ChannelsMap` that declares accesses to itself."""

    def box(self, images: tuple[int, int], rows: tuple[int, int], channels: tuple[int, int] | None = None):
        """Region: images, physical rows, all columns, channels (all of them where none are given)."""
        if channels is None or channels == (0, self.channels):
            return (images, rows)
        return (images, rows, (0, self.columns), self.channel_box(*channels))

    def read(self, images, rows=None, channels=None) -> Access:
        """Read interior rows."""
        first, last = rows or (0, self.height)
        return read(self.name, *self.box(images, (first + self.halo, last + self.halo), channels))

    def read_window(self, images, window: Window, rows: tuple[int, int], channels=None) -> Access:
        """Read what a window needs for its output rows, halo included; the nearest row where it meets padding alone."""
        first, last = window.input_rows(rows)
        first = min(max(first, -self.halo), self.height + self.halo - 1)
        last = max(min(last, self.height + self.halo), first + 1)
        return read(self.name, *self.box(images, (first + self.halo, last + self.halo), channels))

    def write(self, images, rows=None, channels=None, accumulate: bool = False) -> Access:
        """Write interior rows and the halo beside them; or add to the interior."""
        first, last = rows or (0, self.height)
        if accumulate:
            return update(self.name, *self.box(images, (first + self.halo, last + self.halo), channels))
        return write(self.name, *self.box(images, self.written_rows(first, last), channels))


class Vector(FeatureMap):
    """Features without pixels, (batch, length, 1): a map of one pixel for kernels that treat each element alone."""

    @property
    def pitch(self) -> int:
        return self.channels

    @property
    def shape(self) -> tuple[int, int, int]:
        return (self.batch, self.channels, 1)

    def box(self, images, rows, channels=None):
        return (images,)

    def natural(self) -> Callable:
        return lambda arrays: arrays[self.name].reshape(self.batch, self.channels)


def new_map(low: Lowering, name: str, tensor: str, halo: int) -> FeatureMap:
    """Return a map, or a vector where a tensor has no pixels."""
    shape = low.shapes[tensor]
    if len(shape) == 1:
        return Vector(name, low.batch, *shape, 1, 1)
    return FeatureMap(name, low.batch, *shape, halo, image=tensor == "input" and _only_convolved(low, tensor))


def _only_convolved(low: Lowering, tensor: str) -> bool:
    """Return whether only convolutions without groups read a tensor: other kernels take maps of one pitch alone."""
    return all(isinstance(unit.layer, Convolution) and unit.layer.groups == 1 for unit in low.readers[tensor])


def source_map(low: Lowering, unit: Unit) -> FeatureMap:
    """Return the map that a convolution reads: of its source, or of what the norm that it applies reads."""
    if unit.normalises:
        return low.maps[low.producer[unit.sources[0]].sources[0]]
    return low.maps[unit.sources[0]]


def vector_buffer(low: Lowering, name: str, feature_map: FeatureMap) -> str:
    """Declare a buffer of a number for each channel."""
    return low.builder.buffer(name, (feature_map.pitch,), role="temporary")


def statistics_buffer(low: Lowering, norm: str, count: int, feature_map: FeatureMap) -> str:
    """Declare the buffer of what blocks sum for a norm."""
    shape = statistics_shape(count, feature_map.pitch)
    return low.builder.buffer(f"{norm}.partials", shape, role="temporary")


def window(layer: Layer, source: tuple[int, ...], target: tuple[int, ...]) -> Window:
    """Return the windows of a layer from the shapes of a sample before and after it."""
    if isinstance(layer, Convolution):
        return Window(layer.kernel, layer.stride, layer.padding, layer.dilation, source[1], target[1])
    padding = layer.padding if isinstance(layer, MaxPool) else 0
    return Window(layer.size, layer.stride or layer.size, padding, 1, source[1], target[1])


def geometry(low: Lowering, layer: Convolution) -> dict[str, int]:
    """Return the attributes of a convolution beside its maps."""
    result = {"kernel": layer.kernel, "stride": layer.stride, "padding": layer.padding}
    return result if low.is_depthwise(layer) else {**result, "dilation": layer.dilation}


def halo(low: Lowering, tensor: str) -> int:
    """Return the widest padding that a reader of a tensor needs."""
    readers = [unit for unit in low.readers.get(tensor, ()) if tensor in unit.sources]
    dropout = next((unit for unit in readers if isinstance(unit.layer, Dropout)), None)
    if dropout and not low.options.training:  # it returns its input as it is, so its readers' padding counts too
        return max(halo(low, dropout.target), *(_padding(low, [unit]) for unit in readers), 0)
    return _padding(low, readers)


def _padding(low: Lowering, readers: Sequence[Unit]) -> int:
    layers = [unit.layer for unit in readers]
    padded = [layer.padding for layer in layers if isinstance(layer, Convolution) and not low.is_depthwise(layer)]
    return max(padded, default=0)


def gradient_halo(low: Lowering, tensor: str) -> int:
    """Return the halo around a tensor's gradient, for the data gradient of the convolution that made it, or of one that
    made an input of sums, to which the gradient is passed on."""
    unit = low.producer.get(tensor)
    if unit is None or not low.learns[tensor]:
        return 0
    return 0 if unit.activation else gradient_halo_within(low, unit)


def gradient_halo_within(low: Lowering, unit: Unit) -> int:
    """Return the halo around the gradient before a unit's activation."""
    match unit.layer:
        case Convolution() if unit.shortcut:
            return max(gradient_halo(low, unit.shortcut), _data_gradient_halo(low, unit))
        case Convolution() if low.learns[unit.sources[0]] and not low.is_depthwise(unit.layer):
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
