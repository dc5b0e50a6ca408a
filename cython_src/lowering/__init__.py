"""Lowering: a network, a batch and options become a plan."""

from .lower import initialise, lower
from .options import PlanOptions

__all__ = ["PlanOptions", "initialise", "lower"]
