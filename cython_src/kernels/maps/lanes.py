"""Feature maps as NumPy sees them; geometry is described in kernels/maps/lanes.pxd."""

from __future__ import annotations

import numpy as np


def map_attributes(prefix: str) -> tuple[str, ...]:
    """Names of the integer attributes that describe one feature map of a kernel, in the order of the C struct."""
    names = ("channels", "height", "width", "rows", "pitch", "halo", "lanes")
    return tuple(f"{prefix}_{name}" for name in names)


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
