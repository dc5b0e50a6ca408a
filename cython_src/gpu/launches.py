"""CUDA forms of the kernels: their sources, and how a loop is launched.

Nothing here needs a GPU or CuPy. A form has the name, operands, attributes and bounds of the kernel it stands for
(cython_src/kernels/interface/kernel_spec.py), computes a range of a loop's blocks, and is launched as `grids.py` says.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import numpy as np

from ..errors import UsageError
from ..kernels import kernel_table
from ..kernels.convolution.specs import FORMS_OF_A_PORT
from ..kernels.interface import arguments
from ..kernels.interface.grids import CUDA_FORMS, THREADS, Launch
from .blas import Products

SOURCE_FOLDER = Path(__file__).parent.parent
SOURCE_FILES = tuple(sorted(str(file.relative_to(SOURCE_FOLDER)) for file in SOURCE_FOLDER.rglob("*.cu")))
# Denormals are flushed, as the CPU models do; expf, logf and division stay accurate.
COMPILE_OPTIONS = ("-std=c++17", "--ftz=true", "--prec-div=true", "--prec-sqrt=true", "--fmad=true")
MINIMUM_ARCHITECTURE = 70  # kernel parameters are __grid_constant__

MAX_OPERANDS, MAX_REALS, MAX_INTEGERS = 16, 4, 32
# What every kernel gets, GpuArgs of CUDA. Behind it are operands, reals and integers, by their names in its spec.
GPU_ARGS = {
    "bounds": "const int *",  # shape (blocks of the loop, bounds_width)
    "counter": "const long long *",  # added to `replay`: changes when a captured graph is launched again; or NULL
    "failure": "unsigned long long *",  # smallest code of a failed block, see fail(); all ones: none
    "scratch": "float *",  # of the loop: sums of which CUDA blocks have parts, see join_parts()
    "replay": "long long",
    **dict.fromkeys(("bounds_width", "first_block", "first_task", "iteration_stride", "iteration_offset"), "int"),
    # Parts of a product's sums; of one of several loops which CUDA block of its block, of how many, else zeros.
    **dict.fromkeys(("parts", "tile", "tiles"), "int"),
}
ARGS_DTYPE = np.dtype(
    [(name, {"int": "<i4", "long long": "<i8"}.get(kind, "<u8")) for name, kind in GPU_ARGS.items()]
    + [("operand", "<u8", MAX_OPERANDS), ("reals", "<f8", MAX_REALS), ("integers", "<i4", MAX_INTEGERS)]
)
MAX_GRID_ROWS = 65535  # blocks of one launch
# Products of TF32 in place of one of float32, by value of the option "products"; others compute in float32.
ARITHMETIC = {"tf32": 1, "3xtf32": 3}
TENSOR_CORES = 80  # the architecture that has TF32
GRIDS = kernel_table.import_grids()
TOGETHER = tuple(name for name, form in CUDA_FORMS.items() if form.together)  # of these a launch runs several loops


def _arguments() -> list[str]:
    """Return declarations of the kernels' arguments, `GpuArgs` and `<kernel>_args`."""
    limits = MAX_OPERANDS, MAX_REALS, MAX_INTEGERS
    shared = arguments.STRUCTS | arguments.BOXES
    structs = [f"struct {name} {{ int {', '.join(fields)}; }};" for name, fields in shared.items()]
    structs.append(f"struct GpuArgs {{ {' '.join(f'{kind} {name};' for name, kind in GPU_ARGS.items())} }};")
    return structs + [arguments.cuda_struct(kernel_table.get(name), limits) for name in sorted(CUDA_FORMS)]


def _sizes(room: str) -> list[str]:
    """Return definitions of the sizes of a room; FOR_<NAME>(F) calls F with each of several."""
    lines = []
    for name in GRIDS[room].SIZES:
        value = getattr(GRIDS[room], name)
        if isinstance(value, tuple):
            name, value = f"FOR_{name}(F)", " ".join(f"F({str(each).strip('()')})" for each in value)
        lines.append(f"#define {name} {value}")
    return lines


# Files that stand for what is written in Python.
WRITTEN: dict[str, Callable[[], list[str]]] = {
    "kernels/interface/arguments.cuh": _arguments,
    "kernels/interface/activation_codes.cuh": lambda: [arguments.activation_codes()],
    **{f"kernels/{room}/grid_sizes.cuh": partial(_sizes, room) for room in GRIDS},
}


@cache
def source(*files: str, products: str = "") -> str:
    """Some of `SOURCE_FILES` as one translation unit, in which each file that they include stands once. `products`: a
    key of `ARITHMETIC`; else they are of float32."""
    lines = [f"#define TF32_PRODUCTS {ARITHMETIC[products]}"] if products else []
    done: set[str] = set()

    def add(file: str) -> None:
        if file in done:
            return
        done.add(file)
        if file in WRITTEN:
            lines.extend(WRITTEN[file]())
            return
        for line in (SOURCE_FOLDER / file).read_text().splitlines():
            if line.startswith('#include "cython_src/'):
                add(line.split('"')[1].removeprefix("cython_src/"))
            else:
                lines.append(line)

    for file in files:
        add(file)
    return "\n".join(lines)


def launches_of(
    kernel: str,
    attributes: Mapping,
    bounds: np.ndarray,
    operands: Collection[str] = (),
    products: Products | None = None,
    arithmetic: str = "",
) -> tuple[Launch | Products, ...]:
    """How to launch a loop: one after the other, all with the same arguments.

    Parameters
    ----------
    attributes : mapping of str to number
        The loop's.
    bounds : int32, shape (num_blocks, bounds_width)
    operands : collection of str
        The operands that the loop gives, of which some are optional.
    products : Products, optional
        What cuBLAS does of it; `blas.products_of`.
    arithmetic : str, optional
        Value of the option "products". The symbol of a kernel that multiplies in TF32 ends with it, after "@".

    Raises
    ------
    UsageError
        A kernel, algorithm or size without a CUDA form.
    """
    form = CUDA_FORMS.get(kernel)
    if form is None:
        raise UsageError(
            f"kernel {kernel!r} has no CUDA form{_REMEDIES.get(kernel.partition('_')[0], '')}; use the CPU"
        )
    algorithms = kernel_table.get(kernel).algorithms
    if len(algorithms) > 1 and attributes.get("algorithm"):
        name = algorithms[attributes["algorithm"]]
        if name in form.algorithms:
            return (form.algorithms[name](f"{kernel}_{name}", attributes, bounds),)
        alone = ", or with phase 'forward' and fusion 'none'" if name in FORMS_OF_A_PORT else ""
        raise UsageError(
            f"algorithm {name!r} of kernel {kernel!r} has no CUDA form; lower the plan with conv 'direct'{alone}"
        )
    if form.lanes_divide_threads and THREADS % attributes["lanes"]:
        raise UsageError(f"lanes of {kernel!r} must divide {THREADS}, got {attributes['lanes']}; use 1 or 16")
    after = [
        launch(symbol, attributes, bounds) for operand, (symbol, launch) in form.after.items() if operand in operands
    ]
    if products is None:
        how = form.grid(kernel, attributes, bounds)
        if arithmetic in ARITHMETIC and file_of(how.symbol) in multiplying():
            how = replace(how, symbol=f"{how.symbol}@{arithmetic}")
        return (how, *after)
    beside = []
    if form.beside_products is not None:
        symbol, launch, needed = form.beside_products
        beside = [launch(symbol, attributes, bounds)] if needed(attributes, operands) else []
    return (products, *(how for how in (*beside, *after) if how.symbol != products.beside))


# What helps instead of a kernel without a CUDA form, by the beginning of its name.
_REMEDIES = {"winograd": "; lower the plan with conv 'direct'"}


@cache
def multiplying() -> tuple[str, ...]:
    """Source files whose kernels multiply in tiles."""
    return tuple(file for file in SOURCE_FILES if "struct Tile" in source(file))


@cache
def _texts() -> dict[str, str]:
    return {file: (SOURCE_FOLDER / file).read_text() for file in SOURCE_FILES}


@cache
def file_of(symbol: str) -> str:
    """The source file of a CUDA function; forms by the size of a tile (`<name>_<size>`) are instances of a macro."""
    many = f"KERNEL_MANY({symbol.removesuffix('_many')})"
    heads = f"KERNEL({symbol})", f"KERNEL_OF({symbol},", many, f"KERNEL_OF({symbol.rpartition('_')[0]}_##"
    return next(file for head in heads for file, text in _texts().items() if head in text)
