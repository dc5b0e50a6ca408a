"""Kernels without numerical meaning, for tests and for measuring runtimes."""
