"""The CUDA sources compiled for the CPU, and kernels of plans that run through them."""

from __future__ import annotations

import ctypes
import hashlib
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
from builds import built

from forktask.cython_src.gpu import blas, epilogues
from forktask.cython_src.gpu import launches as gpu_launches
from forktask.cython_src.kernels import kernel_table
from forktask.cython_src.kernels.interface.kernel_spec import KernelSpec
from forktask.cython_src.kernels.simd import activations

STATUS = (
    "ok",
    "some threads of a CUDA block ended while others wait at a barrier",
    "threads of a CUDA block wait at different barriers",
    "more shared memory was used than the launch asked for",
    "a copy of 16 bytes is from or to an address that is no multiple of them",
)


@cache
def library(defect: tuple[str, str] = ("", ""), products: str = ""):
    """The emulated kernels.

    Parameters
    ----------
    products : str, optional
        A key of `ARITHMETIC`; then only kernels that multiply are there.
    defect : (old, new), optional
        A text of the sources that is replaced: negative controls. Only the kernels of the file that holds it are there.
    """
    files = gpu_launches.multiplying() if products else gpu_launches.SOURCE_FILES
    source = gpu_launches.source(*([file_of(defect)] if defect[0] else files), products=products).replace(*defect)
    name = f"kernels-{hashlib.sha256(source.encode()).hexdigest()}.so"
    command = ["g++", "-std=c++17", "-O2", "-fPIC", "-shared", "-Wno-unknown-pragmas"]
    command += ["-include", Path(__file__).with_name("emulation.h"), "-x", "c++", "-"]
    # PyDLL keeps the GIL: the emulation's state is one for the process.
    return ctypes.PyDLL(str(built(name, command, source)))


def file_of(defect: tuple[str, str]) -> str:
    """The source file that holds the text of a defect; of a header, the first that includes it."""
    texts = {name: (gpu_launches.SOURCE_FOLDER / name).read_text() for name in gpu_launches.SOURCE_FILES}
    for name in (*texts, *gpu_launches.SOURCE_FILES):
        if defect[0] in texts.pop(name, gpu_launches.source(name)):
            return name
    raise ValueError(f"the CUDA sources do not hold {defect[0]!r}")


def launch(symbol, args: np.ndarray, tiles: int, rows: int, shared_bytes: int, seed: int = 0, defect=("", "")) -> None:
    """Run a grid of `rows` times `tiles` CUDA blocks now."""
    symbol, _, products = symbol.partition("@")
    there = defect[0] and gpu_launches.file_of(symbol) == file_of(defect)
    kernels = library(defect if there else ("", ""), products)
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


def _elements(matrix, address: int, rows: int, columns: int, batch: int) -> np.ndarray:
    """View (batch, rows, columns) of device memory."""
    if matrix.transposed:
        rows, columns = columns, rows
    size = (batch - 1) * matrix.stride + (rows - 1) * matrix.pitch + columns
    flat = np.frombuffer((ctypes.c_float * size).from_address(address + 4 * matrix.offset), np.float32)
    strides = (4 * matrix.stride, 4 * matrix.pitch, 4)
    view = np.lib.stride_tricks.as_strided(flat, (batch, rows, columns), strides)
    return view.transpose(0, 2, 1) if matrix.transposed else view


def multiply(product, operands) -> None:
    """What cuBLAS computes; with an epilogue, what cuBLASLt does, as its manual says."""
    p = product

    def elements(matrix, rows, columns):
        return _elements(matrix, operands[matrix.operand], rows, columns, p.batch)

    left, right = elements(p.left, p.rows, p.inner), elements(p.right, p.inner, p.columns)
    out = elements(p.out, p.rows, p.columns)
    result = left @ right
    if p.accumulate:
        result += out
    if p.addend:
        result += elements(p.addend, p.rows, p.columns)
    if p.epilogue == blas.SUM_OF_LEFT:
        elements(p.vector, p.rows, 1)[...] = left.sum(2, keepdims=True)
    elif p.epilogue & blas.BIAS:
        result += elements(replace(p.vector, transposed=True), 1, p.columns)
    if p.epilogue == blas.GELU_DERIVATIVE:
        result *= activations.gelu_derivative(elements(p.before, p.rows, p.columns))
    elif p.epilogue & blas.BEFORE:
        elements(p.before, p.rows, p.columns)[...] = result
    if p.epilogue & blas.GELU:
        result = activations.gelu(result)
    elif p.epilogue & blas.RELU:
        result = np.maximum(result, 0)
    out[...] = result


def emulated(name: str, seed=0, defect=("", ""), products: str = "own") -> KernelSpec:
    """The kernel `name` with its CUDA form, emulated, in the place of its NumPy form; a launch for each block."""
    spec = kernel_table.get(name)

    def run(operands, attributes, bounds, iteration):
        row = np.array([list(bounds.values())], dtype=np.int32).reshape(1, -1)
        whole = blas.products_of(name, attributes, [bounds], operands) if products in ("cublas", "cublaslt") else None
        if whole and products == "cublaslt":
            whole = epilogues.fused(whole, name, attributes, [bounds], operands, lambda product: True)
        launches = gpu_launches.launches_of(name, attributes, row, operands, whole, products)
        failure = np.array([2**64 - 1], np.uint64)
        args = np.zeros((), gpu_launches.ARGS_DTYPE)
        for i, operand in enumerate(spec.operands):
            if operand in operands:
                args["operand"][i] = operands[operand].ctypes.data
        args["integers"][: len(spec.integers)] = [
            attributes.get(n, 0) if n in spec.optional_integers else attributes[n] for n in spec.integers
        ]
        args["reals"][: len(spec.reals)] = [attributes[n] for n in spec.reals]
        args["bounds"], args["bounds_width"] = row.ctypes.data, row.shape[1]
        args["failure"], args["replay"], args["iteration_stride"] = failure.ctypes.data, iteration, 1
        for how in launches:
            if isinstance(how, gpu_launches.Launch):
                scratch = np.zeros(how.scratch_bytes, np.uint8)
                args["scratch"], args["parts"] = scratch.ctypes.data, how.parts
                launch(how.symbol, args, how.tiles, 1, how.shared_bytes, seed, defect)
                continue
            (product,) = how.blocks
            multiply(product, args["operand"].tolist())
        return 0 if failure[0] == 2**64 - 1 else int(failure[0]) & 255

    named = tuple(f"{operand}?" if operand in spec.optional else operand for operand in spec.operands)
    integers = tuple(f"{name}?" if name in spec.optional_integers else name for name in spec.integers)
    return replace(spec, operands=named, integers=integers, address=None, reference=run)


def with_cuda_kernels(plan, seed: int = 0, defect=("", ""), products: str = "own"):
    """The plan with all kernels in their emulated CUDA form, for every executor and check."""
    kernels = {k: emulated(k, seed, defect, products) for k in {loop.kernel for loop in plan.loops}}
    return replace(plan, attributes={**plan.attributes, "kernels": kernels})
