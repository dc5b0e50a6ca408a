"""Lowering: a network, a batch and options become a plan."""

from .lower import initialise, lower

__all__ = ["initialise", "lower"]
