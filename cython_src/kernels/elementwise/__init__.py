"""Activations, sums of maps, dropout."""
