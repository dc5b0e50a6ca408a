"""Capabilities of this machine: peaks, speed of kernels, fitness for measuring."""
