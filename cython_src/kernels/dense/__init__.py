"""Fully connected layers, and maps as vectors of features."""

from . import regions

__all__ = ["regions"]
