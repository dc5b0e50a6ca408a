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
    register(
        KernelSpec(
            name="test_hash",
            operands=("cells", "trace"),
            integers=("work", "fail_iteration", "fail_task"),
            bounds=("task", "r0", "r1", "w0", "w1", "u0", "u1"),
            address=ctypes.cast(loaded.hash_block, ctypes.c_void_p).value,
            instruction_sets=False,
        )
    )
    register(
        KernelSpec(
            name="test_kinds",
            operands=("cells", "folds", "trace"),
            integers=("work",),
            bounds=(
                "task",
                *(f"{kind}{end}" for kind in ("r", "w", "u", "n", "m", "fr", "fu", "fo") for end in (0, 1)),
            ),
            address=ctypes.cast(loaded.kinds_block, ctypes.c_void_p).value,
            instruction_sets=False,
        )
    )
    register(
        KernelSpec(
            name="test_copy",
            operands=("out", "in"),
            bounds=("w0", "w1", "r0", "r1"),
            address=ctypes.cast(loaded.copy_block, ctypes.c_void_p).value,
            instruction_sets=False,
        )
    )
