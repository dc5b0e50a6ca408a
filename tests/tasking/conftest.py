"""The compiled kernels that the tests of the task runtime run."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

import forktask.cython_src
from forktask.cython_src import kernel_table
from forktask.cython_src.kernel_table import KernelSpec, register

HERE = Path(__file__).parent
HEADERS = Path(forktask.cython_src.__file__).parent


@pytest.fixture(scope="session")
def hash_kernel(tmp_path_factory):
    """Register the kernel "test_hash"; skips where there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler for its test kernel")
    library = tmp_path_factory.mktemp("kernel") / "hash_kernel.so"
    subprocess.run(
        [compiler, "-std=gnu11", "-O2", "-fPIC", "-shared", "-I", HEADERS, HERE / "hash_kernel.c", "-o", library],
        check=True,
    )
    loaded = ctypes.CDLL(str(library))
    if "test_hash" not in kernel_table._specs:
        register(KernelSpec(
            name="test_hash",
            operands=("cells", "trace"),
            integers=("work", "fail_iteration", "fail_task"),
            bounds=("task", "r0", "r1", "w0", "w1", "u0", "u1"),
            address=ctypes.cast(loaded.hash_block, ctypes.c_void_p).value,
            instruction_sets=False,
        ))
        register(KernelSpec(
            name="test_copy",
            operands=("out", "in"),
            bounds=("w0", "w1", "r0", "r1"),
            address=ctypes.cast(loaded.copy_block, ctypes.c_void_p).value,
            instruction_sets=False,
        ))
    return loaded
