"""Sweeps on several nodes: which shards are given to whom, what comes back, and where it is joined."""
