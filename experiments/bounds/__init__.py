"""Bounds: what the structure of a graph allows at most, given the times of its blocks."""
