"""Feature maps as NumPy sees them; geometry is described in kernels/maps/lanes.pxd."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np


def interior(array: np.ndarray, attributes, prefix: str) -> np.ndarray:
    """View of a map without its halo, shape (groups, channels, height, width, lanes)."""
    halo = attributes[f"{prefix}_halo"]
    height, width = attributes[f"{prefix}_height"], attributes[f"{prefix}_width"]
    return array[:, :, halo : halo + height, halo : halo + width]


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
