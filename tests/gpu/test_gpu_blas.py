"""cuBLAS as it is called: a library that computes by columns what it is told, on the host."""

import ctypes

import numpy as np
import pytest

from forktask.cython_src.gpu.blas import WORKSPACE_BYTES, Blas, Matrix, Product


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

        def columns(pointer, pitch, stride, rows, width, transposed):
            shape = (rows, width) if not transposed else (width, rows)
            size = (count - 1) * stride.value + (shape[1] - 1) * pitch + shape[0]
            flat = np.frombuffer((ctypes.c_float * size).from_address(pointer.value), np.float32)
            view = np.lib.stride_tricks.as_strided(flat, (count, *shape), (4 * stride.value, 4, 4 * pitch))
            return view.transpose(0, 2, 1) if transposed else view

        left, right = columns(a, lda, stride_a, m, k, transa), columns(b, ldb, stride_b, k, n, transb)
        out = columns(c, ldc, stride_c, m, n, 0)
        out[...] = alpha._obj.value * (left @ right) + (beta._obj.value * out if beta._obj.value else 0)
        return 0


@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True)])
def test_products_are_given_by_columns(transposed):
    """Check products with pitches, offsets, strides and sums into what is there against NumPy's."""
    rng = np.random.default_rng(1)
    rows, columns, inner, batch, handed = 3, 5, 4, 2, []
    blas = Blas(Library(), lambda size: handed.append(size) or 4096)
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
        blas.multiply(blas.arguments(product, [array.ctypes.data for array in arrays], accumulate), 7)
        np.testing.assert_allclose(parts[2], expected, rtol=1e-5)
        before[:, :, 2 : 2 + columns] = parts[2]
        assert (before == arrays[2]).all()
    assert handed == [WORKSPACE_BYTES] and blas._library.types == [68, 77]
