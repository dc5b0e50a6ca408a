"""Kernels of one's own: a description with a NumPy form, a compiled form, or both."""

from pathlib import Path

from .cython_src.arguments import check_arguments
from .cython_src.graphs.user_graph import KERNEL_ARGS
from .cython_src.kernels.interface.kernel_spec import KernelSpec, register

__all__ = ["KERNEL_ARGS", "KernelSpec", "get_include", "register"]


def get_include() -> str:
    """Return the folder for a C compiler's `-I`: it holds cython_src/kernels/interface/block_kernel.h."""
    return str(Path(__file__).parent)


check_arguments(globals())
