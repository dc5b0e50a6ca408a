"""cuBLAS and cuBLASLt as they are called: libraries that compute by columns what they are told, on the host."""

import ctypes

import numpy as np
import pytest
from gpu.fake_gpu import emulator

from forktask.cython_src.errors import UsageError
from forktask.cython_src.gpu import blas
from forktask.cython_src.gpu.blas import WORKSPACE_BYTES, Blas, Matrix, Product
from forktask.cython_src.gpu.epilogues import BlasLt
from forktask.cython_src.kernels.simd import activations


def by_columns(pointer, pitch, stride, rows, width, transposed, count=1):
    """View of (count, rows, width) numbers of a matrix that lies in memory by columns, or of its transpose."""
    shape = (rows, width) if not transposed else (width, rows)
    size = (count - 1) * stride + (shape[1] - 1) * pitch + shape[0]
    flat = np.frombuffer((ctypes.c_float * size).from_address(pointer.value), np.float32)
    view = np.lib.stride_tricks.as_strided(flat, (count, *shape), (4 * stride, 4, 4 * pitch))
    return view.transpose(0, 2, 1) if transposed else view


class Library:
    """cuBLAS's interface as cublas_api.h declares it, for float32 by columns."""

    def __init__(self, status=0):
        self.status, self.streams, self.workspaces, self.types = status, {}, {}, []

    def cublasCreate_v2(self, handle):
        handle._obj.value = 100 + len(self.streams)
        return self.status

    def cublasSetStream_v2(self, handle, stream):
        self.streams[handle.value] = stream.value
        self.workspaces.pop(handle.value, None)  # a new stream has the library's workspace
        return 0

    def cublasSetWorkspace_v2(self, handle, workspace, size):
        self.workspaces[handle.value] = workspace.value, size.value
        return 0

    def cublasGemmStridedBatchedEx(self, handle, transa, transb, m, n, k, alpha, *matrices):
        a, atype, lda, stride_a, b, btype, ldb, stride_b, beta, c, ctype, *rest = matrices
        ldc, stride_c, count, compute, algorithm = rest
        assert (atype, btype, ctype, algorithm) == (0, 0, 0, -1) and handle.value in self.workspaces
        self.types.append(compute)

        left = by_columns(a, lda, stride_a.value, m, k, transa, count)
        right = by_columns(b, ldb, stride_b.value, k, n, transb, count)
        out = by_columns(c, ldc, stride_c.value, m, n, 0, count)
        out[...] = alpha._obj.value * (left @ right) + (beta._obj.value * out if beta._obj.value else 0)
        return 0


@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True)])
def test_products_are_given_by_columns(transposed):
    """Check products with pitches, offsets, strides and sums into what is there against NumPy's."""
    rng = np.random.default_rng(1)
    rows, columns, inner, batch, handed = 3, 5, 4, 2, []
    library = Blas(Library(), lambda size: handed.append(size) or 4096)
    shapes = [(rows, inner), (inner, columns), (rows, columns)]
    stored = [shape[::-1] if t else shape for shape, t in zip(shapes, (*transposed, False), strict=True)]
    arrays = [rng.standard_normal((batch, shape[0], shape[1] + 3)).astype(np.float32) for shape in stored]
    matrices = [
        Matrix(i, 2, array.shape[2], t, array[0].size)
        for i, (array, t) in enumerate(zip(arrays, (*transposed, False), strict=True))
    ]
    parts = [array[:, :, 2 : 2 + shape[1]] for array, shape in zip(arrays, stored, strict=True)]
    left, right = (part.transpose(0, 2, 1) if t else part for part, t in zip(parts, transposed, strict=False))
    for accumulate in (False, True):
        before = arrays[2].copy()
        expected = left @ right + (parts[2] if accumulate else 0)
        product = Product(rows, columns, inner, *matrices, accumulate, batch)
        library.multiply(library.arguments(product, [array.ctypes.data for array in arrays], accumulate), 7)
        np.testing.assert_allclose(parts[2], expected, rtol=1e-5)
        before[:, :, 2 : 2 + columns] = parts[2]
        assert (before == arrays[2]).all()
    assert handed == [WORKSPACE_BYTES] and library._library.types == [68, 77]


# Bytes of the attributes of cuBLASLt's objects.
SIZES = {
    "MatmulDesc": {3: 4, 4: 4, 7: 4, 8: 8, 11: 8, 12: 8},
    "MatmulPreference": {1: 8, 5: 4, 6: 4, 7: 4, 8: 4},
    "MatrixLayout": {},
}


class LibraryLt:
    """cuBLASLt's interface as cublasLt.h declares it, for float32 by columns."""

    def __init__(self, algorithms=1):
        self.algorithms, self.objects, self.chosen, self.number = algorithms, {}, [], 0
        for kind in SIZES:
            setattr(self, f"cublasLt{kind}Create", lambda handle, *rest, kind=kind: self._create(kind, handle, rest))
            setattr(self, f"cublasLt{kind}SetAttribute", self._set)
            setattr(self, f"cublasLt{kind}Destroy", lambda handle: self.objects.pop(handle.value) and 0)

    def _create(self, kind, handle, arguments):
        self.number += 1
        handle._obj.value = self.number
        self.objects[self.number] = kind, [getattr(a, "value", a) for a in arguments], {}
        return 0

    def _set(self, handle, attribute, value, size):
        kind, _, attributes = self.objects[handle.value]
        attributes[attribute] = value._obj.value
        return 0 if SIZES[kind][attribute] == size.value else 7

    def cublasLtCreate(self, handle):
        handle._obj.value = 1
        return 0

    def cublasLtMatmulAlgoGetHeuristic(self, handle, operation, a, b, c, d, limits, wanted, choice, count):
        self.chosen.append(self.objects[limits.value][2])
        choice._obj.algorithm[7] = 55
        count._obj.value = self.algorithms
        return 0 if self.algorithms else 15

    def cublasLtMatmul(self, handle, operation, alpha, a, a_of, b, b_of, beta, c, c_of, d, d_of, algorithm, *behind):
        workspace, size, stream = (value.value for value in behind)
        assert (workspace, size, stream, algorithm._obj[7]) == (4096 + 7, WORKSPACE_BYTES, 7, 55)
        _, (compute, scale), given = self.objects[operation.value]
        assert scale == 0 and compute in (68, 77)

        def matrix(pointer, layout, transposed=0):
            (kind, rows, columns, pitch), shape = self.objects[layout.value][1], None
            assert kind == 0
            shape = (columns, rows) if transposed else (rows, columns)
            return by_columns(pointer, pitch, 0, *shape, transposed)[0]

        first, second = matrix(a, a_of, given[3]), matrix(b, b_of, given[4])
        result = alpha._obj.value * (first @ second) + (beta._obj.value * matrix(c, c_of) if beta._obj.value else 0)
        rows, columns = result.shape
        epilogue = given[7]
        if epilogue == 512:
            by_columns(ctypes.c_void_p(given[8]), columns, 0, columns, 1, 0)[0, :, 0] = second.sum(0)
        elif epilogue & 4:
            result += by_columns(ctypes.c_void_p(given[8]), rows, 0, rows, 1, 0)[0]
        if epilogue & 128:
            before = by_columns(ctypes.c_void_p(given[11]), given[12], 0, rows, columns, 0)[0]
            if epilogue & 64:
                result *= activations.gelu_derivative(before)
            else:
                before[...] = result
        if epilogue & 32:
            result = activations.gelu(result)
        matrix(d, d_of)[...] = np.maximum(result, 0) if epilogue & 2 else result
        return 0


@pytest.mark.parametrize(
    "epilogue",
    [
        blas.DEFAULT,
        blas.BIAS,
        blas.RELU,
        blas.RELU + blas.BIAS,
        *(blas.GELU + kept + bias for kept in (0, blas.BEFORE) for bias in (0, blas.BIAS)),
        blas.GELU_DERIVATIVE,
        blas.SUM_OF_LEFT,
    ],
)
def test_epilogues_are_given_by_columns(epilogue):
    """Check what cuBLASLt is told of each epilogue, with pitches, offsets and an addend, against NumPy; that one form
    has one choice, by the alignment of its matrices; and that objects are given back."""
    rng = np.random.default_rng(1)
    rows, columns, inner = 3, 5, 4
    library = LibraryLt()
    lt = BlasLt(library, lambda stream: ctypes.c_void_p(4096 + stream))
    pitches = {"left": inner, "right": inner, "out": columns, "addend": columns, "before": columns, "vector": 1}
    arrays = [rng.standard_normal((8, 16)).astype(np.float32) for _ in pitches]
    matrices = {name: Matrix(n, 2 + n, pitch + 2, name == "right") for n, (name, pitch) in enumerate(pitches.items())}
    matrices["vector"] = Matrix(5, 3, 1)
    del matrices["addend" if epilogue & blas.BEFORE or epilogue & blas.GELU else "before"]
    product = Product(rows, columns, inner, **matrices, epilogue=epilogue)
    expected = [array.copy() for array in arrays]
    emulator.multiply(product, [array.ctypes.data for array in expected])
    for _ in range(2):
        got = [array.copy() for array in arrays]
        lt.multiply(lt.arguments(product, [array.ctypes.data for array in got], False), 7)
        for one, other, before in zip(got, expected, arrays, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5)
            assert (one == before).sum() >= one.size - rows * columns
    assert len(library.chosen) <= 2 and library.chosen[0][1] == WORKSPACE_BYTES and not library.objects
    assert all(2 <= library.chosen[0][attribute] <= 256 for attribute in (5, 6, 7, 8))


def test_a_product_that_cublaslt_has_not_is_refused():
    """Check what is said where the library finds no algorithm."""
    product = Product(8, 8, 8, *(Matrix(n, 0, 8) for n in range(3)), epilogue=blas.BIAS)
    has, has_not = (BlasLt(LibraryLt(algorithms), lambda stream: ctypes.c_void_p(4096)) for algorithms in (1, 0))
    assert has.offers(product, True) and not has_not.offers(product, True)
    with pytest.raises(UsageError, match=r"product of 8 x 8 and 8 x 8 numbers .* \(status 15\); use epilogues=kernel$"):
        has_not.arguments(product, [256] * 3, False)
