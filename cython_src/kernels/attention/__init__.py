"""Attention of tokens."""

from . import regions

__all__ = ["regions"]
