"""Matrix products by cuBLAS: which blocks are one, and the library's C interface.

A block is a whole product where its operands lie in memory as matrices do: weight gradients of 1 x 1 convolutions
without halo, fully connected layers, and linear layers of tokens. Each block is a product of its own, so that its
numbers do not depend on how a loop is launched. cuBLAS gets a loop that has one block, or where each product fills a
device alone; our own kernels run all blocks of a loop at once, and so take the smaller ones of several. The plan
decides: all models compute alike.

CuPy loads cuBLAS, but its calls take CuPy's current stream and leave the workspace to the library, whose results may
then differ when several streams are busy. So the library is called directly, with a handle and a workspace for each
stream.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..kernels.convolution import algorithms
from ..kernels.interface.grids import guess
from ..kernels.simd.instruction_sets import LANES

# Multiply-adds of a product that fills a device: for each of 128 multiprocessors a tile of 128 x 128 numbers, or, where
# the library splits the sum, of 512 terms of one. A guess until it is measured.
FILLING = 128 * 128 * 128 * 512
ALIGNED = 64  # elements, of 256 bytes: what lies further off is aligned alike
# Epilogues of cublasLt.h, which may be added up: max(y, 0); y + bias; GELU in its tanh form, and times its derivative;
# what stands before the activation is kept; the sums of the left factor's rows.
DEFAULT, RELU, BIAS, GELU, GELU_DERIVATIVE, BEFORE, SUM_OF_LEFT = 1, 2, 4, 32, 192, 128, 512
WRITTEN_BESIDE = {GELU + BEFORE: ("before",), GELU + BEFORE + BIAS: ("before",), SUM_OF_LEFT: ("vector",)}
MASKS = {"activation", "index"}  # operands by which a fully connected layer's gradient is more than a product


@dataclass(frozen=True)
class Matrix:
    """Where a matrix lies in an operand.

    Parameters
    ----------
    operand : int
        Its position in the kernel's operands.
    offset : int
        Of the first element.
    pitch : int
        Elements from one row to the next.
    transposed : bool
        Memory holds the transpose.
    stride : int
        Elements from the matrix of one product of a batch to that of the next.
    """

    operand: int
    offset: int
    pitch: int
    transposed: bool = False
    stride: int = 0

    def address(self, operands: Sequence[int]) -> ctypes.c_void_p:
        """Of the first element, from those of the operands."""
        return ctypes.c_void_p(operands[self.operand] + 4 * self.offset)


@dataclass(frozen=True)
class Product:
    """out = left right, or out += left right, `batch` times; `left` is rows x inner, `right` inner x columns.

    Parameters
    ----------
    epilogue : int
        What cuBLASLt does with the result, or beside it; 0: nothing, cuBLAS computes the product. See `epilogues`.
    addend, vector, before : Matrix, optional
        What an epilogue reads or writes: rows x columns numbers that are added; a bias, or its gradient; the values
        before an activation.
    """

    rows: int
    columns: int
    inner: int
    left: Matrix
    right: Matrix
    out: Matrix
    accumulate: bool = False
    batch: int = 1
    epilogue: int = 0
    addend: Matrix | None = None
    vector: Matrix | None = None
    before: Matrix | None = None

    @property
    def form(self) -> Product:
        """What products have in common for which the library chooses the same kernel: sizes, pitches, alignment."""
        return self._placed(("left", "right", "out", "addend", "vector", "before"), operand=0)

    def on_scratch(self, operands: Sequence[int], scratch: int) -> tuple[Product, list[int]]:
        """The product and the addresses of operands with which all that it writes goes to `scratch_size` numbers of
        other memory."""
        places = {getattr(self, name).operand for name in self._written}
        return self._placed(self._written), [scratch if n in places else a for n, a in enumerate(operands)]

    @property
    def scratch_size(self) -> int:
        """Numbers of memory that `on_scratch` needs."""
        matrices = [getattr(self, name) for name in self._written]
        return ALIGNED + max((self.batch - 1) * m.stride + (self.rows - 1) * m.pitch + self.columns for m in matrices)

    @property
    def _written(self) -> tuple[str, ...]:
        return ("out", *WRITTEN_BESIDE.get(self.epilogue, ()))

    def _placed(self, names: Iterable[str], **changes) -> Product:
        """The product with some matrices at the least offset that is aligned alike."""
        given = {name: getattr(self, name) for name in names}
        return replace(self, **{n: replace(m, offset=m.offset % ALIGNED, **changes) for n, m in given.items() if m})


@dataclass(frozen=True)
class Products:
    """The products of a loop, one for each of its blocks. `beside`: a CUDA function whose work they do too."""

    blocks: tuple[Product, ...]
    beside: str = ""


def _is_matrix(attributes: Mapping) -> bool:
    """Whether the pixels of a 1 x 1 convolution lie side by side in gradient and input."""
    if attributes["algorithm"] != algorithms.CODES["direct"]:
        return False
    plain = attributes["kernel"] == attributes["stride"] == attributes["groups"] == 1 and attributes["padding"] == 0
    return plain and all(attributes[f"{m}_halo"] == 0 and attributes[f"{m}_pitch"] % LANES == 0 for m in ("dy", "in"))


def _pixels(attributes: Mapping, prefix: str) -> int:
    return attributes[f"{prefix}_height"] * attributes[f"{prefix}_width"]


def _weight_gradient(a: Mapping, b: Mapping) -> Product | None:
    if not _is_matrix(a):
        return None
    first, inputs = b["n0"] * _pixels(a, "dy"), a["in_channels"]
    return Product(
        b["o1"] - b["o0"],
        b["i1"] - b["i0"],
        (b["n1"] - b["n0"]) * _pixels(a, "dy"),
        Matrix(0, first * a["dy_pitch"] + b["o0"], a["dy_pitch"], transposed=True),
        Matrix(1, first * a["in_pitch"] + b["i0"], a["in_pitch"]),
        Matrix(2, (b["partial"] * a["dy_channels"] + b["o0"]) * inputs + b["i0"], inputs),
        bool(a["accumulate"]),
    )


def _fully_connected(transposed: bool, out: int) -> Callable[[Mapping, Mapping], Product | None]:
    """y = x W^T (transposed), or dx = dy W; with several lanes a product for each group, the weights on the left."""

    def product(a: Mapping, b: Mapping) -> Product | None:
        if a.get("out_halo"):
            return None
        sizes = (a["features"], a["outputs"]) if transposed else (a["outputs"], a["features"])
        inner, columns = sizes
        lanes, groups = a["lanes"], b["g1"] - b["g0"]
        weight = a["features"]  # pitch
        start = b["g0"] * lanes
        if lanes == 1:
            return Product(
                groups,
                columns,
                inner,
                Matrix(0, start * inner, inner),
                Matrix(1, 0, weight, transposed),
                Matrix(out, start * columns, columns),
            )
        return Product(
            columns,
            lanes,
            inner,
            Matrix(1, 0, weight, not transposed),
            Matrix(0, start * inner, lanes, stride=inner * lanes),
            Matrix(out, start * columns, lanes, stride=columns * lanes),
            batch=groups,
        )

    return product


def _fully_connected_weights(a: Mapping, b: Mapping) -> Product | None:
    """The last column of a partial is the bias's gradient, and left alone."""
    if a["lanes"] != 1:
        return None
    features, outputs = a["features"], a["outputs"]
    return Product(
        outputs,
        features,
        b["g1"] - b["g0"],
        Matrix(0, b["g0"] * outputs, outputs, transposed=True),
        Matrix(1, b["g0"] * features, features),
        Matrix(2, b["partial"] * outputs * (features + 1), features + 1),
        bool(a["accumulate"]),
    )


def _linear_forward(a: Mapping, b: Mapping) -> Product | None:
    """y = x W^T of some rows and output features; with a further weight it is no single product."""
    if a.get("further_inputs", 0):
        return None
    inputs, pitch = a["inputs"], a["output_pitch"]
    return Product(
        b["r1"] - b["r0"],
        b["c1"] - b["c0"],
        inputs,
        Matrix(0, b["r0"] * inputs, inputs),
        Matrix(1, b["c0"] * inputs, inputs, transposed=True),
        Matrix(5, b["r0"] * pitch + b["c0"] + a.get("output_offset", 0), pitch),
    )


def _linear_data(a: Mapping, b: Mapping) -> Product:
    """dx = dy W of some rows and input features."""
    inputs, pitch = a["inputs"], a["gradient_pitch"]
    out_pitch = a.get("output_pitch", 0) or inputs
    return Product(
        b["r1"] - b["r0"],
        b["c1"] - b["c0"],
        a["outputs"],
        Matrix(0, b["r0"] * pitch + a.get("gradient_offset", 0), pitch),
        Matrix(1, b["c0"], inputs),
        Matrix(3, b["r0"] * out_pitch + b["c0"] + a.get("output_offset", 0), out_pitch),
        bool(a["accumulate"]),
    )


def _linear_weights(a: Mapping, b: Mapping) -> Product:
    """dW = dy^T x of some rows and outputs, in a partial."""
    inputs, pitch = a["inputs"], a["gradient_pitch"]
    in_pitch = a.get("input_pitch", 0) or inputs
    return Product(
        b["o1"] - b["o0"],
        inputs,
        b["r1"] - b["r0"],
        Matrix(0, b["r0"] * pitch + b["o0"] + a.get("gradient_offset", 0), pitch, transposed=True),
        Matrix(1, b["r0"] * in_pitch + a.get("input_offset", 0), in_pitch),
        Matrix(2, (b["partial"] * a["outputs"] + b["o0"]) * inputs, inputs),
        bool(a["accumulate"]),
    )


_PRODUCTS: dict[str, Callable[[Mapping, Mapping], Product | None]] = {
    "nhwc_conv_backward_weights": _weight_gradient,
    "fc_forward": _fully_connected(True, 3),
    "fc_backward_data": _fully_connected(False, 2),
    "fc_backward_weights": _fully_connected_weights,
    "linear_forward": _linear_forward,
    "linear_backward_data": _linear_data,
    "linear_backward_weights": _linear_weights,
}


def products_of(
    kernel: str, attributes: Mapping, bounds: list[dict[str, int]], operands: Collection[str] = ()
) -> Products | None:
    """The products of a loop's blocks; None unless every block is one, and fills a device where there are several.
    `bounds`: of each block, by name; `operands`: that the loop gives."""
    make = None if MASKS & {*operands} else _PRODUCTS.get(kernel)
    blocks = tuple(make(attributes, b) for b in bounds) if make else ()
    least = guess("FORKTASK_GPU_FILLING", FILLING) if len(blocks) > 1 else 0
    chosen = blocks and all(p and p.batch * p.rows * p.columns * p.inner >= least for p in blocks)
    return Products(blocks) if chosen else None


# cublas_api.h
_SUCCESS, _NO_MEMORY = 0, 3
_DEFAULT_ALGORITHM = -1
NORMAL, TRANSPOSED, FLOAT32, COMPUTE_FLOAT32, COMPUTE_TF32 = 0, 1, 0, 68, 77
WORKSPACE_BYTES = 32 << 20  # what NVIDIA's manual recommends for its largest architectures


def check(status: int, what: str) -> None:
    """Raise `MemoryError` or `RuntimeError` where a call of cuBLAS or cuBLASLt failed."""
    if status == _NO_MEMORY:
        raise MemoryError(f"the GPU has no memory left for {what} of cuBLAS; use a smaller batch, or products=own")
    if status != _SUCCESS:
        raise RuntimeError(f"cuBLAS failed in {what} with status {status}")


class Blas:
    """cuBLAS, a library of ctypes, with a handle and a workspace for each stream. `allocate`: returns the address of
    new device memory, from its size in bytes."""

    def __init__(self, library, allocate: Callable[[int], int]):
        self._library, self._allocate = library, allocate
        self._handles: dict[int, tuple[ctypes.c_void_p, ctypes.c_void_p]] = {}  # and the workspace, by stream
        self._one, self._zero = ctypes.c_float(1.0), ctypes.c_float(0.0)

    @property
    def num_workspaces(self) -> int:
        """Streams that have one."""
        return len(self._handles)

    def prepare(self, stream: int) -> tuple[ctypes.c_void_p, ctypes.c_void_p]:
        """The stream's handle and workspace, of `WORKSPACE_BYTES`. Made here and not while a graph is captured."""
        if stream not in self._handles:
            handle = ctypes.c_void_p()
            check(self._library.cublasCreate_v2(ctypes.byref(handle)), "cublasCreate")
            check(self._library.cublasSetStream_v2(handle, ctypes.c_void_p(stream)), "cublasSetStream")
            workspace = ctypes.c_void_p(self._allocate(WORKSPACE_BYTES))
            size = ctypes.c_size_t(WORKSPACE_BYTES)
            check(self._library.cublasSetWorkspace_v2(handle, workspace, size), "cublasSetWorkspace")
            self._handles[stream] = handle, workspace
        return self._handles[stream]

    def multiply(self, arguments: tuple, stream: int) -> None:
        """Give a product to a stream; see `arguments`."""
        status = self._library.cublasGemmStridedBatchedEx(self.prepare(stream)[0], *arguments)
        check(status, "cublasGemmStridedBatchedEx")

    def arguments(self, product: Product, operands: Sequence[int], tf32: bool) -> tuple:
        """Arguments of a product after the handle; `operands` are the addresses of their first elements. The library
        takes matrices by columns, so it is given the transposed product: the right factor first."""
        p = product

        def matrix(m: Matrix) -> tuple:
            return m.address(operands), FLOAT32, m.pitch, ctypes.c_longlong(m.stride)

        left, right, out = map(matrix, (p.left, p.right, p.out))
        operations = (TRANSPOSED if m.transposed else NORMAL for m in (p.right, p.left))
        return (
            *operations,
            p.columns,
            p.rows,
            p.inner,
            ctypes.byref(self._one),
            *right,
            *left,
            ctypes.byref(self._one if p.accumulate else self._zero),
            *out,
            p.batch,
            COMPUTE_TF32 if tf32 else COMPUTE_FLOAT32,
            _DEFAULT_ALGORITHM,
        )
