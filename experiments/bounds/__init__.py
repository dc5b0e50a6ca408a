"""Bounds on the time of an iteration, from a graph and the times of its blocks."""
