"""Optimisers and clipping."""
