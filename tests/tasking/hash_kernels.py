"""Compiled test kernels, built when first asked for."""

import ctypes
from functools import cache
from pathlib import Path

from builds import built

import forktask
from forktask.cython_src.kernels.interface.kernel_spec import KernelSpec, register

HERE = Path(__file__).parent
HEADERS = Path(forktask.__file__).parent


@cache
def register_hash_kernels():
    """Register "test_hash", "test_kinds" and "test_copy" (hash_kernel.c)."""
    command = ["cc", "-std=gnu11", "-O2", "-fPIC", "-shared", "-I", HEADERS, HERE / "hash_kernel.c"]
    loaded = ctypes.CDLL(str(built("hash_kernel.so", command)))
    boxes = ("task", "r0", "r1", "w0", "w1", "u0", "u1")
    kinds = (f"{kind}{end}" for kind in ("r", "w", "u", "n", "m", "fr", "fu", "fo") for end in (0, 1))
    for name, function, operands, integers, bounds in (
        ("test_hash", loaded.hash_block, ("cells", "trace"), ("work", "fail_iteration", "fail_task"), boxes),
        ("test_kinds", loaded.kinds_block, ("cells", "folds", "trace"), ("work",), ("task", *kinds)),
        ("test_copy", loaded.copy_block, ("out", "in"), (), ("w0", "w1", "r0", "r1")),
    ):
        address = ctypes.cast(function, ctypes.c_void_p).value
        register(KernelSpec(name, operands, integers, (), bounds, address=address, instruction_sets=False))
