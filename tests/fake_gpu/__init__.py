"""A GPU made of the CPU: the CUDA sources compiled by the host's compiler, and a device that reorders streams."""
