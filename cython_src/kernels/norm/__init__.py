"""Batch normalisation."""
