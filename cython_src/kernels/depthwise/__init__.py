"""Depthwise convolutions, alone or joined with the norms around them."""

from . import regions

__all__ = ["regions"]
