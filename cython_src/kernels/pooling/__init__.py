"""Pooling."""

from . import regions

__all__ = ["regions"]
