"""Batch normalisation."""

from . import regions

__all__ = ["regions"]
