"""Softmax, cross-entropy, and the sums kept for each step."""

from . import regions

__all__ = ["regions"]
