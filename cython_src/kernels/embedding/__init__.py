"""Token and position embeddings."""

from . import regions

__all__ = ["regions"]
