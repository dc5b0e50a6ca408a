"""From symbolic plans to pointers: the kernel contract, storage, the table of kernels, binding, checks of kernels."""
