"""Feature maps as NumPy sees them; geometry is described in kernels/maps/nchw.pxd."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ..interface.arguments import STRUCTS
from ..simd.instruction_sets import LANES

KERNEL = 5  # side of the convolutions' kernels


@dataclass(frozen=True)
class NchwMap:
    """A buffer (groups, channels, rows, pitch, lanes) and its geometry; see nchw.pxd.

    In the layout "nchw" (lanes = 1) the right halo of a row is the left halo of the next, and spare rows follow,
    so that the inner loops may read past the last row.
    """

    name: str
    groups: int
    channels: int
    height: int
    width: int
    lanes: int
    halo: int
    batch: int | None = None  # images, where the last group is not full

    @property
    def rows(self) -> int:
        """Physical rows, halo included."""
        spare = max(2, math.ceil((LANES + 2) / self.pitch)) if self.pixels_in_lanes and self.halo else 0
        return self.height + 2 * self.halo + spare

    @property
    def pitch(self) -> int:
        """Physical columns, halo included."""
        return self.width + (self.halo if self.pixels_in_lanes else 2 * self.halo)

    @property
    def pixels_in_lanes(self) -> bool:
        """Whether pixels stand in the vector lanes, not sixteen images."""
        return self.lanes == 1

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the buffer."""
        return (self.groups, self.channels, self.rows, self.pitch, self.lanes)

    def attributes(self, prefix: str) -> dict[str, int]:
        """The kernel attributes that describe this map."""
        return {f"{prefix}_{name}": getattr(self, name) for name in STRUCTS["Map"]}

    def written_rows(self, y0: int, y1: int) -> tuple[int, int]:
        """Physical rows that the producer of interior rows [y0, y1) writes, halo included."""
        return (0 if y0 == 0 else y0 + self.halo, self.rows if y1 == self.height else y1 + self.halo)

    def read_rows(self, y0: int, y1: int) -> tuple[int, int]:
        """Physical rows that rows [y0, y1) of the result of a convolution need; its padding is the halo."""
        stop = y1 + KERNEL - 1
        return (y0, self.rows if stop >= self.height + 2 * self.halo else stop + self.pixels_in_lanes)

    def interior_rows(self, y0: int, y1: int) -> tuple[int, int]:
        """Physical rows of interior rows [y0, y1)."""
        return (y0 + self.halo, y1 + self.halo)

    def natural(self) -> Callable[[Mapping[str, np.ndarray]], np.ndarray]:
        """Function of the arrays that gives the map as (batch, channels, height, width): a view where that is
        possible."""
        attributes = self.attributes("map")

        def view(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
            inside = interior(arrays[self.name], attributes, "map")
            if self.pixels_in_lanes:
                return inside[..., 0]
            images = np.moveaxis(inside, -1, 1)
            return images.reshape(-1, *images.shape[2:])[: self.batch]

        return view


class NchwFeatures(NchwMap):
    """A map of single pixels, which kernels that treat each element alone take."""

    def natural(self) -> Callable[[Mapping[str, np.ndarray]], np.ndarray]:
        """Function of the arrays that gives the features as (batch, features)."""

        def view(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
            array = arrays[self.name].reshape(self.groups, self.channels, self.lanes)
            return array.transpose(0, 2, 1).reshape(-1, self.channels)[: self.batch]

        return view


def operand_map(
    operand: str, prefix: str, attributes: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]
) -> NchwMap:
    """Return the map that is an operand of a kernel, by the attributes that describe it."""
    names = ("channels", "height", "width", "lanes", "halo")
    return _operand_map(operand, shapes[operand][0], *(attributes[f"{prefix}_{name}"] for name in names))


_operand_map = lru_cache(1024)(NchwMap)


def scaled(rows: tuple[int, int], scale: int) -> tuple[int, int]:
    """Rows of a map that is `scale` times as high."""
    return rows[0] * scale, rows[1] * scale


def interior(array: np.ndarray, attributes, prefix: str) -> np.ndarray:
    """View of a map without its halo, shape (groups, channels, height, width, lanes)."""
    halo = attributes[f"{prefix}_halo"]
    height, width = attributes[f"{prefix}_height"], attributes[f"{prefix}_width"]
    return array[:, :, halo : halo + height, halo : halo + width]


def unpool(out: np.ndarray, index: np.ndarray, values: np.ndarray) -> None:
    """Write values to those elements of 2 x 2 windows that an index says, zeros to the others."""
    for which in range(4):
        part = out[:, :, which // 2 :: 2, which % 2 :: 2]
        part[...] = np.where(index == which, values.reshape(index.shape), 0)


def pooling_windows(x: np.ndarray) -> np.ndarray:
    """Return the elements of windows of 2 x 2 pixels, along a first axis."""
    return np.stack([x[:, :, i::2, j::2] for i in (0, 1) for j in (0, 1)])


def clear_halo(array: np.ndarray, attributes, prefix: str, groups: slice, channels: slice, y0: int, y1: int) -> None:
    """Zero everything but the interior in the physical rows that belong to interior rows [y0, y1)."""
    halo, height, width = (attributes[f"{prefix}_{name}"] for name in ("halo", "height", "width"))
    if halo == 0:
        return
    part = array[groups, channels]
    first = 0 if y0 == 0 else y0 + halo
    last = attributes[f"{prefix}_rows"] if y1 == height else y1 + halo
    inside = part[:, :, y0 + halo : y1 + halo, halo : halo + width].copy()
    part[:, :, first:last] = 0
    part[:, :, y0 + halo : y1 + halo, halo : halo + width] = inside


def box(bounds: Mapping[str, int], scale: int = 1) -> tuple[slice, slice, slice]:
    """Return the groups, channels and rows of a block; rows of a map with `scale` times as many as the bounds count."""
    ends = (("g0", "g1", 1), ("c0", "c1", 1), ("y0", "y1", scale))
    groups, channels, rows = (slice(times * bounds[first], times * bounds[last]) for first, last, times in ends)
    return groups, channels, rows


def clear_box_halo(array: np.ndarray, attributes, bounds: Mapping[str, int], scale: int = 1) -> None:
    """Zero the halo of the output that belongs to a block's rows."""
    groups, channels, rows = box(bounds, scale)
    clear_halo(array, attributes, "out", groups, channels, rows.start, rows.stop)
