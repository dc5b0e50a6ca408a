"""Optimisers and clipping."""

from . import regions

__all__ = ["regions"]
