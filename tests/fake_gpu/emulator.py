"""The CUDA sources compiled for the CPU, and kernels of plans that run through them."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
from forktask.cython_src import gpu_kernels, kernel_table

STATUS = (
    "ok",
    "some threads of a CUDA block ended while others wait at a barrier",
    "threads of a CUDA block wait at different barriers",
    "more shared memory was used than the launch asked for",
)


@cache
def library(defect: tuple[str, str] | None = None):
    """The emulated kernels, or None where there is no C++ compiler.

    Parameters
    ----------
    defect : (old, new), optional
        A text of the sources that is replaced: negative controls.
    """
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        return None
    source = gpu_kernels.source()
    if defect is not None:
        if defect[0] not in source:
            raise ValueError(f"the CUDA sources do not hold {defect[0]!r}")
        source = source.replace(*defect)
    with tempfile.TemporaryDirectory() as folder:
        file, result = Path(folder) / "kernels.cpp", Path(folder) / "kernels.so"
        file.write_text(source)
        command = [compiler, "-std=c++17", "-O2", "-fPIC", "-shared", "-Wno-unknown-pragmas"]
        include = ["-include", Path(__file__).with_name("emulation.h")]
        subprocess.run([*command, *include, file, "-o", result], check=True)
        return ctypes.PyDLL(str(result))  # keeps the GIL: the emulation's state is one for the process


def launch(symbol: str, args: np.ndarray, tiles: int, rows: int, shared_bytes: int, seed: int = 0, defect=None) -> None:
    """Run a grid of `rows` times `tiles` CUDA blocks now."""
    kernels = library(defect)
    status = kernels.emulate(
        getattr(kernels, symbol),
        ctypes.c_void_p(args.ctypes.data),
        ctypes.c_uint(tiles),
        ctypes.c_uint(rows),
        ctypes.c_uint(shared_bytes),
        ctypes.c_ulonglong(seed),
    )
    if status:
        raise AssertionError(f"{symbol}: {STATUS[status]}")


def emulated(name: str, seed: int = 0, convolution: str = "tiled", defect=None) -> kernel_table.KernelSpec:
    """The kernel `name` with its CUDA form, emulated, in the place of its NumPy form; a launch for each block."""
    spec = kernel_table.get(name)

    def run(operands, attributes, bounds, iteration):
        row = np.array([list(bounds.values())], dtype=np.int32).reshape(1, -1)
        how = gpu_kernels.launch_of(name, attributes, row, convolution)
        failure = np.array([2**64 - 1], np.uint64)
        args = np.zeros((), gpu_kernels.ARGS_DTYPE)
        for i, operand in enumerate(spec.operands):
            if operand in operands:
                args["operand"][i] = operands[operand].ctypes.data
        args["integers"][: len(spec.integers)] = [attributes[n] for n in spec.integers]
        args["reals"][: len(spec.reals)] = [attributes[n] for n in spec.reals]
        args["bounds"], args["bounds_width"] = row.ctypes.data, row.shape[1]
        args["failure"], args["replay"], args["iteration_stride"] = failure.ctypes.data, iteration, 1
        launch(how.symbol, args, how.tiles, 1, how.shared_bytes, seed, defect)
        return 0 if failure[0] == 2**64 - 1 else int(failure[0]) & 255

    return replace(spec, address=None, reference=run)


def with_cuda_kernels(plan, seed: int = 0, convolution: str = "tiled", defect=None):
    """The plan with all kernels in their emulated CUDA form, for every executor and check."""
    kernels = {k: emulated(k, seed, convolution, defect) for k in {loop.kernel for loop in plan.loops}}
    return replace(plan, attributes={**plan.attributes, "kernels": kernels})
