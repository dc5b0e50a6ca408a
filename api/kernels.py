"""Kernels of one's own: a description with a NumPy form, a compiled form, or both."""

from pathlib import Path

from .cython_src.binding.kernel_table import KernelSpec, register
from .cython_src.graphs.user_graph import KERNEL_ARGS

__all__ = ["KERNEL_ARGS", "KernelSpec", "get_include", "register"]


def get_include() -> str:
    """Return the folder for a C compiler's `-I`, so that `#include "cython_src/binding/block_kernel.h"` is found."""
    return str(Path(__file__).parent)
