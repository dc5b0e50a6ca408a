"""Kernels: a folder a concept, with the Cython, C, CUDA and NumPy forms side by side."""
