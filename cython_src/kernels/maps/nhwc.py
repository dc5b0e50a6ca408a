"""Feature maps with the channels in the vector lanes (NHWC), as NumPy sees them.

A map is a buffer (batch, height + 2 halo, width + 2 halo, pitch). The pitch is the number of channels rounded up
to whole vectors of LANES floats (4 for input images of up to 4 channels that only convolutions without groups read);
channels past the last are zero, always, and so is the halo. Whoever writes a region writes its padding channels and the
halo beside its rows as zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from operator import itemgetter
from typing import Any

import numpy as np

from ...plan.model import Access, read, update, write
from ..interface.arguments import MAP_NAMES, nhwc_attributes
from ..simd.instruction_sets import LANES

IMAGE_PITCH = 4
STATISTICS_ROWS = 3  # of a block's statistics: mean, sum of squared deviations from it, number of pixels


@dataclass(frozen=True)
class Window:
    """Rows of a windowed layer: windows of `kernel` rows, `dilation` apart, every `stride` rows."""

    kernel: int
    stride: int
    padding: int
    dilation: int = 1

    @classmethod
    def of(cls, attributes: Mapping[str, Any]) -> Window:
        """Return the windows that a kernel's attributes describe."""
        return cls(*window_of(attributes), attributes.get("dilation", 1))

    @property
    def reach(self) -> int:
        return (self.kernel - 1) * self.dilation + 1

    def input_rows(self, rows: tuple[int, int]) -> tuple[int, int]:
        """Rows of the input, padding included, under output rows [y0, y1)."""
        first = rows[0] * self.stride - self.padding
        return first, (rows[1] - 1) * self.stride - self.padding + self.reach

    def gradient_rows(self, rows: tuple[int, int]) -> tuple[int, int]:
        """Rows of the output whose windows hold input rows [y0, y1); may lie outside the output."""
        first = -(-(rows[0] + self.padding - self.reach + 1) // self.stride)
        return first, (rows[1] - 1 + self.padding) // self.stride + 1


@dataclass(frozen=True)
class NhwcMap:
    """A buffer (batch, rows, columns, pitch) and its geometry, which declares accesses to itself. `name`: of the
    buffer, or of the operand of a kernel; `image`: input image that only convolutions without groups read: the pitch of
    up to 4 channels is 4."""

    name: str
    batch: int
    channels: int
    height: int
    width: int
    halo: int = 0
    image: bool = False

    @property
    def pitch(self) -> int:
        if self.image and self.channels <= IMAGE_PITCH:
            return IMAGE_PITCH
        return -(-self.channels // LANES) * LANES

    @property
    def rows(self) -> int:
        """Physical rows, halo included."""
        return self.height + 2 * self.halo

    @property
    def columns(self) -> int:
        """Physical columns, halo included."""
        return self.width + 2 * self.halo

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return (self.batch, self.rows, self.columns, self.pitch)

    def attributes(self, prefix: str) -> dict[str, int]:
        """The kernel attributes that describe this map."""
        return {f"{prefix}_{name}": getattr(self, name) for name in MAP_NAMES}

    def channel_box(self, c0: int, c1: int) -> tuple[int, int]:
        """Physical channels that belong to channels [c0, c1): padding with the last."""
        return (c0, channel_end(c1, self.pitch))

    def interior_rows(self, y0: int, y1: int) -> tuple[int, int]:
        """Physical rows of interior rows [y0, y1)."""
        return (y0 + self.halo, y1 + self.halo)

    def written_rows(self, y0: int, y1: int) -> tuple[int, int]:
        """Physical rows that the producer of interior rows [y0, y1) writes, halo included."""
        return (0 if y0 == 0 else y0 + self.halo, self.rows if y1 == self.height else y1 + self.halo)

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
        return self.read(images, (first, last), channels)

    def write(self, images, rows=None, channels=None, accumulate: int = 0) -> Access:
        """Write interior rows and the halo beside them; or add to the interior."""
        first, last = rows or (0, self.height)
        if accumulate:
            return update(self.name, *self.box(images, (first + self.halo, last + self.halo), channels))
        return write(self.name, *self.box(images, self.written_rows(first, last), channels))

    def natural(self) -> Callable[[Mapping[str, np.ndarray]], np.ndarray]:
        """Function of the arrays that gives the map as (batch, channels, height, width), a view."""
        h, height, width = self.halo, self.height, self.width

        def view(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
            inside = arrays[self.name][:, h : h + height, h : h + width, : self.channels]
            return inside.transpose(0, 3, 1, 2)

        return view


class Vector(NhwcMap):
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


def operand_map(
    operand: str, prefix: str, attributes: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]
) -> NhwcMap:
    """Return the map that is an operand of a kernel, by the attributes that describe it, or one that differs from it in
    its halo alone, which then has an attribute of its own, such as "out_halo"."""
    channels, height, width, halo, pitch = geometry(attributes, prefix)
    own, output = _halo_names(operand)
    halo = attributes.get(own, attributes.get(output, halo))
    shape = shapes[operand]
    return _operand_map(operand, len(shape), shape[0], channels, height, width, halo, pitch)


@cache
def _halo_names(operand: str) -> tuple[str, str | None]:
    return f"{operand}_halo", "out_halo" if operand == "output" else None


@lru_cache(1024)
def _operand_map(operand: str, dimensions: int, *sizes: int) -> NhwcMap:
    *own, pitch = sizes
    return (Vector if dimensions == 3 else NhwcMap)(operand, *own, image=pitch == IMAGE_PITCH)


def channel_end(c1: int, pitch: int) -> int:
    """One past the last physical channel of a block that ends at channel c1."""
    return min(pitch, -(-c1 // LANES) * LANES)


def channels_of(array: np.ndarray, bounds: Mapping[str, int], pitch: int) -> np.ndarray:
    """View of the physical channels of a block, the last dimension; bounds left out mean all."""
    return array[..., bounds.get("c0", 0) : channel_end(bounds.get("c1", pitch), pitch)]


def vectors(operands: Mapping, bounds: Mapping[str, int], attributes: Mapping, *names: str) -> list[np.ndarray]:
    """View of a block's channels in some operands that are vectors of channels, or several of them."""
    return [channels_of(operands[name], bounds, attributes["in_pitch"]) for name in names]


def statistics_shape(num_partials: int, pitch: int) -> tuple[int, int, int]:
    """Of the buffer of block statistics that `nhwc_norm_finish` merges."""
    return (num_partials, STATISTICS_ROWS, pitch)


@cache
def _geometry(prefix: str) -> Callable[[Mapping[str, Any]], tuple[int, int, int, int, int]]:
    return itemgetter(*nhwc_attributes(prefix))


def geometry(attributes: Mapping[str, Any], prefix: str) -> tuple[int, int, int, int, int]:
    """channels, height, width, halo, pitch."""
    return _geometry(prefix)(attributes)


def inside(
    array: np.ndarray, attributes: Mapping[str, Any], prefix: str, bounds: Mapping[str, int], halo: int | None = None
) -> np.ndarray:
    """View of a block's interior, shape (images, rows, width, physical channels).

    Bounds left out mean all rows or all channels. `halo` is another map's of otherwise equal geometry.
    """
    _, height, width, own, pitch = geometry(attributes, prefix)
    h = own if halo is None else halo
    array = array.reshape(len(array), height + 2 * h, width + 2 * h, pitch)  # a vector is a map of one pixel
    y0, y1 = bounds.get("y0", 0), bounds.get("y1", height)
    return channels_of(array[bounds["n0"] : bounds["n1"], y0 + h : y1 + h, h : h + width], bounds, pitch)


def all_rows(array: np.ndarray, attributes: Mapping[str, Any], prefix: str, bounds: Mapping[str, int]) -> np.ndarray:
    """View of all interior rows of a block's images and channels."""
    return inside(array, attributes, prefix, {name: bounds[name] for name in ("n0", "n1", "c0", "c1")})


def window_of(attributes: Mapping[str, Any]) -> tuple[int, int, int]:
    """Return kernel, stride and padding."""
    return attributes["kernel"], attributes["stride"], attributes["padding"]


def write_block(
    array: np.ndarray,
    attributes: Mapping[str, Any],
    prefix: str,
    bounds: Mapping[str, int],
    values: np.ndarray,
    halo: int | None = None,
    accumulate: int = 0,
) -> None:
    """Write a block, zeros in padding channels that the values lack, and the halo that belongs to its rows; or add to
    what is there."""
    target = inside(array, attributes, prefix, bounds, halo)[..., : values.shape[-1]]
    if accumulate:
        target += values
        return
    _, height, width, own, pitch = geometry(attributes, prefix)
    h = own if halo is None else halo
    y0, y1 = bounds.get("y0", 0), bounds.get("y1", height)
    first, last = 0 if y0 == 0 else y0 + h, height + 2 * h if y1 == height else y1 + h
    array = array.reshape(len(array), height + 2 * h, width + 2 * h, pitch)
    channels_of(array[bounds["n0"] : bounds["n1"], first:last], bounds, pitch)[...] = 0
    target[...] = values


def block_statistics(values: np.ndarray) -> np.ndarray:
    """Statistics of a block (images, rows, columns, channels): mean, sum of squared deviations, pixels; shape
    (3, channels).

    Not sums and sums of squares: their difference would lose what float32 has where the mean is large.
    """
    mean = values.mean(axis=(0, 1, 2))
    squares = ((values - mean) ** 2).sum(axis=(0, 1, 2))
    return np.stack([mean, squares, np.full_like(mean, values[..., 0].size)])


def windows(
    source: np.ndarray,
    kernel: int,
    stride: int,
    padding: int,
    y0: int,
    y1: int,
    width: int,
    fill: float = 0.0,
    dilation: int = 1,
):
    """Yield tap number and the elements that the tap meets for output rows [y0, y1), `width` columns. `source`:
    interior of a map, all rows; `fill`: what stands outside the map."""
    n, height, columns, channels = source.shape
    reach = (kernel - 1) * dilation + 1
    bottom = max(0, (y1 - 1) * stride + reach - height - padding)
    right = max(0, (width - 1) * stride + reach - columns - padding)
    padded = np.full((n, padding + height + bottom, padding + columns + right, channels), fill, source.dtype)
    padded[:, padding : padding + height, padding : padding + columns] = source
    for tap in range(kernel**2):
        y, x = (place * dilation for place in divmod(tap, kernel))
        rows = slice(y0 * stride + y, (y1 - 1) * stride + y + 1, stride)
        yield tap, padded[:, rows, x : (width - 1) * stride + x + 1 : stride]


def scatter_windows(
    contributions, shape: tuple[int, ...], kernel: int, stride: int, padding: int, dtype, dilation: int = 1
) -> np.ndarray:
    """Transpose of `windows` over all output rows: contributions[tap] are added where the tap met its element.
    `contributions`: of a tap number: array (images, output height, output width, channels); `shape`: (images, height,
    width, channels) of the result."""
    n, height, width, channels = shape
    rows, columns = ((size - 1) * stride for size in contributions(0).shape[1:3])
    reach = (kernel - 1) * dilation + 1
    total = np.zeros((n, max(height + padding, rows + reach), max(width + padding, columns + reach), channels), dtype)
    for tap in range(kernel**2):
        y, x = (place * dilation for place in divmod(tap, kernel))
        total[:, y : y + rows + 1 : stride, x : x + columns + 1 : stride] += contributions(tap)
    return total[:, padding : padding + height, padding : padding + width]
