"""Convolutions: direct, im2col and Winograd, with images or channels in the vector lanes."""

from . import lanes_regions, regions

__all__ = ["lanes_regions", "regions"]
