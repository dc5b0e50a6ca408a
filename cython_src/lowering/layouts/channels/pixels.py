"""Loops without windows: each pixel is treated alone."""

from __future__ import annotations

from collections.abc import Iterator

from ....kernels.maps.channels import ChannelsMap
from ....plan.builder import block_bounds, ranges
from ...state import Lowering
from . import block_sizes


def image_blocks(low: Lowering) -> list[tuple[int, int]]:
    """Return the images of a block that has all rows."""
    return ranges(low.batch, block_sizes.pixel_blocks(low.options.cut, low.batch, 1)[0])


def pixel_blocks(low: Lowering, feature_map: ChannelsMap) -> Iterator[dict[str, int]]:
    """Yield the bounds of blocks of images and rows of a map, with their numbers."""
    images, rows = block_sizes.pixel_blocks(low.options.cut, low.batch, feature_map.height)
    cuts = {"n": ranges(low.batch, images), "y": ranges(feature_map.height, rows), "c": [(0, feature_map.channels)]}
    for number, block in enumerate(block_bounds(**cuts)):
        yield {**block, "partial": number}
