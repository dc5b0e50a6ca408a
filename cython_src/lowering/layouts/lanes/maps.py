"""Maps of the layouts "lanes" and "flat", which declare accesses to themselves."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from ....kernels.maps.lanes import interior
from ....kernels.simd.instruction_sets import LANES
from ....plan.model import Access, read, write

KERNEL = 5  # side of the convolutions' kernels


@dataclass(frozen=True)
class FeatureMap:
    """A buffer (groups, channels, rows, pitch, lanes) and its geometry; see kernels/maps/lanes.pxd.

    In the flat layout (lanes = 1) the right halo of a row is the left halo of the next, and spare rows follow,
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
        spare = max(2, math.ceil((LANES + 2) / self.pitch)) if self.flat and self.halo else 0
        return self.height + 2 * self.halo + spare

    @property
    def pitch(self) -> int:
        """Physical columns, halo included."""
        return self.width + (self.halo if self.flat else 2 * self.halo)

    @property
    def flat(self) -> bool:
        """Whether pixels stand in the vector lanes."""
        return self.lanes == 1

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the buffer."""
        return (self.groups, self.channels, self.rows, self.pitch, self.lanes)

    def attributes(self, prefix: str) -> dict[str, int]:
        """The kernel attributes that describe this map."""
        names = ("channels", "height", "width", "rows", "pitch", "halo", "lanes")
        return {f"{prefix}_{name}": getattr(self, name) for name in names}

    def written_rows(self, y0: int, y1: int) -> tuple[int, int]:
        """Physical rows that the producer of interior rows [y0, y1) writes, halo included."""
        return (0 if y0 == 0 else y0 + self.halo, self.rows if y1 == self.height else y1 + self.halo)

    def read_rows(self, y0: int, y1: int) -> tuple[int, int]:
        """Physical rows that rows [y0, y1) of the result of a convolution need; its padding is the halo."""
        stop = y1 + KERNEL - 1
        return (y0, self.rows if stop >= self.height + 2 * self.halo else stop + self.flat)

    def interior_rows(self, y0: int, y1: int) -> tuple[int, int]:
        """Physical rows of interior rows [y0, y1)."""
        return (y0 + self.halo, y1 + self.halo)

    def read(self, groups: tuple[int, int]) -> Access:
        """Read all of some groups."""
        return read(self.name, groups)

    def write(self, groups: tuple[int, int]) -> Access:
        """Write all of some groups."""
        return write(self.name, groups)

    def natural(self) -> Callable[[Mapping[str, np.ndarray]], np.ndarray]:
        """Function of the arrays that gives the map as (batch, channels, height, width): a view where that is
        possible."""
        attributes = self.attributes("map")

        def view(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
            inside = interior(arrays[self.name], attributes, "map")
            if self.flat:
                return inside[..., 0]
            images = np.moveaxis(inside, -1, 1)
            return images.reshape(-1, *images.shape[2:])[: self.batch]

        return view


class Features(FeatureMap):
    """A map of single pixels, which kernels that treat each element alone take."""

    def natural(self) -> Callable[[Mapping[str, np.ndarray]], np.ndarray]:
        """Function of the arrays that gives the features as (batch, features)."""

        def view(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
            array = arrays[self.name].reshape(self.groups, self.channels, self.lanes)
            return array.transpose(0, 2, 1).reshape(-1, self.channels)[: self.batch]

        return view
