"""Sweeps on several nodes: which blocks are given to whom, what comes back, and where it is joined."""
