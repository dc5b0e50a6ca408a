"""Fully connected layers, and maps as vectors of features."""
