"""Feature maps: how they lie in memory, as Cython, NumPy and CUDA see them."""
