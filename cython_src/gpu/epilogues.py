"""What follows a matrix product, within it, by cuBLASLt: bias, residual, activation and their gradients.

cuBLAS leaves these to kernels of their own (`kernels/linear/linear.cu`), which read and write the result once more, a
launch each. cuBLASLt has a fixed choice of them: a residual only without an activation, no gradient of ReLU from its
result, no bias gradient that is added to another. Where a loop wants these, the product stays cuBLAS's. Each form of a
product gets one algorithm, the library's first, so that its bits depend on the device alone.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from ..errors import UsageError
from ..kernels.interface.arguments import ACTIVATIONS
from . import blas
from .blas import FLOAT32, WORKSPACE_BYTES, Matrix, Product, Products, check
from .launches import MAX_OPERANDS

PITCH_OF_BEFORE = 8  # must divide it
Fused = Callable[[Product, Mapping, Mapping, Collection[str]], Product | None]


def _forward(p: Product, a: Mapping, b: Mapping, given: Collection[str]) -> Product | None:
    """y = act(x W^T + b), or x W^T + b + residual."""
    code = blas.BIAS if "bias" in given else 0
    p = replace(p, vector=Matrix(2, b["c0"], 1) if code else None)
    place = {"offset": b["r0"] * a["outputs"] + b["c0"], "pitch": a["outputs"]}
    match ACTIVATIONS[a["activation"]], "before" in given, "residual" in given:
        case "none", False, added if added or code:
            return replace(p, epilogue=code or blas.DEFAULT, addend=Matrix(3, **place) if added else None)
        case "relu", False, False:
            return replace(p, epilogue=code + blas.RELU)
        case "gelu", False, False:
            return replace(p, epilogue=code + blas.GELU)
        case "gelu", True, False if a["outputs"] % PITCH_OF_BEFORE == 0:
            return replace(p, epilogue=code + blas.GELU + blas.BEFORE, before=Matrix(4, **place))
    return None


def _data_gradient(p: Product, a: Mapping, b: Mapping, given: Collection[str]) -> Product | None:
    """dx = GELU'(before) (dy W)."""
    if "before" not in given or a.get("relu", 0) or p.accumulate or a["inputs"] % PITCH_OF_BEFORE:
        return None
    before = Matrix(2, b["r0"] * a["inputs"] + b["c0"], a["inputs"])
    return replace(p, epilogue=blas.GELU_DERIVATIVE, before=before)


def _weight_gradient(p: Product, a: Mapping, b: Mapping, given: Collection[str]) -> Product | None:
    """dW = dy^T x, and db beside it."""
    if "bias" not in given or p.accumulate:
        return None
    return replace(p, epilogue=blas.SUM_OF_LEFT, vector=Matrix(3, b["partial"] * a["outputs"] + b["o0"], 1))


# By kernel, with the CUDA function that does the same after cuBLAS's product.
_FUSED: dict[str, tuple[Fused, str]] = {
    "linear_forward": (_forward, "linear_output"),
    "linear_backward_data": (_data_gradient, "linear_data_gradient"),
    "linear_backward_weights": (_weight_gradient, "linear_bias_gradient"),
}


def fused(
    products: Products,
    kernel: str,
    attributes: Mapping,
    bounds: list[dict[str, int]],
    operands: Collection[str],
    offers: Callable[[Product], bool],
) -> Products:
    """The products of a loop with what follows them, where cuBLASLt can do that for every block; arguments as those of
    `blas.products_of`. `offers`: whether the library has a product on this device."""
    if kernel not in _FUSED:
        return products
    fuse, function = _FUSED[kernel]
    blocks = tuple(fuse(p, attributes, b, operands) for p, b in zip(products.blocks, bounds, strict=True))
    there = all(blocks) and all(map(offers, {p.form for p in blocks if p}))
    return Products(blocks, function) if there else products


# Attributes of cublasLt.h.
_TRANSPOSE_FIRST, _TRANSPOSE_SECOND, _EPILOGUE, _VECTOR, _BEFORE, _BEFORE_PITCH = 3, 4, 7, 8, 11, 12
_WORKSPACE, _ALIGNMENTS = 1, (5, 6, 7, 8)
_MOST_ALIGNED = 256


class _Choice(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace_bytes", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


class _Descriptor:
    """An object of cuBLASLt, which is destroyed with the last reference. `kind`: in the names of its functions."""

    def __init__(self, library, kind: str, *arguments):
        self._set, self.pointer = getattr(library, f"cublasLt{kind}SetAttribute"), ctypes.c_void_p()
        check(getattr(library, f"cublasLt{kind}Create")(ctypes.byref(self.pointer), *arguments), f"{kind}Create")
        weakref.finalize(self, getattr(library, f"cublasLt{kind}Destroy"), self.pointer).atexit = False

    def set(self, attribute: int, value) -> None:
        """Set an attribute to a value of ctypes."""
        size = ctypes.c_size_t(ctypes.sizeof(value))
        check(self._set(self.pointer, attribute, ctypes.byref(value), size), f"attribute {attribute}")


class BlasLt:
    """cuBLASLt, a library of ctypes. `workspace`: returns that of a stream, of `WORKSPACE_BYTES`."""

    def __init__(self, library, workspace: Callable[[int], ctypes.c_void_p]):
        self._library, self._workspace = library, workspace
        self._handle = ctypes.c_void_p()
        check(library.cublasLtCreate(ctypes.byref(self._handle)), "cublasLtCreate")
        self._choices: dict[tuple, _Choice] = {}
        self._one, self._zero = ctypes.c_float(1.0), ctypes.c_float(0.0)

    def offers(self, product: Product, tf32: bool) -> bool:
        """Whether the library has a product, of operands that are aligned as device memory is."""
        try:
            self.arguments(product, [_MOST_ALIGNED] * MAX_OPERANDS, tf32)
        except UsageError:
            return False
        return True

    def multiply(self, arguments: tuple, stream: int) -> None:
        """Give a product to a stream; see `arguments`."""
        given, _ = arguments
        behind = self._workspace(stream), ctypes.c_size_t(WORKSPACE_BYTES), ctypes.c_void_p(stream)
        check(self._library.cublasLtMatmul(self._handle, *given, *behind), "cublasLtMatmul")

    def arguments(self, product: Product, operands: Sequence[int], tf32: bool) -> tuple:
        """Arguments of a product between handle and workspace, as `Blas.arguments`, and objects that they point to.
        Raises `UsageError`: the library has no such product on this device."""
        p, arithmetic = product, blas.COMPUTE_TF32 if tf32 else blas.COMPUTE_FLOAT32
        operation = _Descriptor(self._library, "MatmulDesc", arithmetic, FLOAT32)
        for attribute, matrix in ((_TRANSPOSE_FIRST, p.right), (_TRANSPOSE_SECOND, p.left)):
            operation.set(attribute, ctypes.c_int32(blas.TRANSPOSED if matrix.transposed else blas.NORMAL))
        operation.set(_EPILOGUE, ctypes.c_uint32(p.epilogue))
        if p.vector:
            operation.set(_VECTOR, p.vector.address(operands))
        if p.before:
            operation.set(_BEFORE, p.before.address(operands))
            operation.set(_BEFORE_PITCH, ctypes.c_int64(p.before.pitch))
        addend = p.addend or p.out
        shapes = (p.inner, p.columns), (p.rows, p.inner), (p.rows, p.columns), (p.rows, p.columns)
        matrices = (p.right, p.left, addend, p.out)
        layouts = [self._layout(m, *shape) for m, shape in zip(matrices, shapes, strict=True)]
        addresses = [m.address(operands) for m in matrices]
        choice = self._choose(p, operation, layouts, addresses, tf32)
        add = self._one if p.accumulate or p.addend else self._zero
        placed = [(address, layout.pointer) for address, layout in zip(addresses, layouts, strict=True)]
        first, second, added, out = placed
        products = operation.pointer, ctypes.byref(self._one), *first, *second
        return (*products, ctypes.byref(add), *added, *out, ctypes.byref(choice.algorithm)), (operation, layouts)

    def _layout(self, matrix: Matrix, rows: int, columns: int) -> _Descriptor:
        """A matrix as it lies in memory, by columns of the library: rows of ours."""
        wide, high = (rows, columns) if matrix.transposed else (columns, rows)
        sizes = ctypes.c_uint64(wide), ctypes.c_uint64(high), ctypes.c_int64(matrix.pitch)
        return _Descriptor(self._library, "MatrixLayout", FLOAT32, *sizes)

    def _choose(
        self, p: Product, operation: _Descriptor, layouts: list[_Descriptor], addresses: list, tf32: bool
    ) -> _Choice:
        """The algorithm of products of this form."""
        aligned = tuple(min(_MOST_ALIGNED, a.value & -a.value) for a in addresses)
        key = p.form, tf32, aligned
        if key not in self._choices:
            limits = _Descriptor(self._library, "MatmulPreference")
            limits.set(_WORKSPACE, ctypes.c_uint64(WORKSPACE_BYTES))
            for attribute, number in zip(_ALIGNMENTS, aligned, strict=True):
                limits.set(attribute, ctypes.c_uint32(number))
            choice, count = _Choice(), ctypes.c_int(0)
            pointers = (d.pointer for d in (operation, *layouts, limits))
            status = self._library.cublasLtMatmulAlgoGetHeuristic(
                self._handle, *pointers, 1, ctypes.byref(choice), ctypes.byref(count)
            )
            if status or not count.value or choice.state:
                raise UsageError(
                    f"epilogues=cublaslt must find a product of {p.rows} x {p.inner} and {p.inner} x {p.columns} "
                    f"numbers with epilogue {p.epilogue} in cuBLASLt, which has none on this GPU (status "
                    f"{status or choice.state}); use epilogues=kernel"
                )
            self._choices[key] = choice
        return self._choices[key]
