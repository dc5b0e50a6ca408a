"""Activations, sums of maps, dropout."""

from . import regions

__all__ = ["regions"]
