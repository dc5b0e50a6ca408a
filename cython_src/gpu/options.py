"""Options of binding a plan on a GPU."""

from __future__ import annotations

from typing import Annotated

from ..records import Record, about

PRODUCTS = ("cublas", "tf32", "3xtf32", "own")
BY_LIBRARY = PRODUCTS[:2]
EPILOGUES = ("kernel", "cublaslt")


Launching = Annotated[
    str,
    about(
        "pdl: kernels are launched before the one before them on their stream is done (sm_90 or newer)",
        choices=("plain", "pdl"),
    ),
]


class GpuOptions(Record):
    """Options of binding that all models of a GPU have."""

    memory: Annotated[
        str, about("the host's memory that plans share with the device", choices=("pageable", "pinned", "managed"))
    ] = "pageable"
    products: Annotated[
        str,
        about(
            "what multiplies matrices. cublas: the library where a loop is one product, or each fills the device, "
            "else our kernels; tf32: the same, with factors of TF32; 3xtf32: our kernels, three products of TF32 for "
            "one; own: our kernels alone",
            choices=PRODUCTS,
        ),
    ] = "cublas"
    epilogues: Annotated[
        str,
        about(
            "bias, residual and activation of a linear layer. kernel: by a kernel after the library's product; "
            "cublaslt: within it, where cuBLASLt can",
            choices=EPILOGUES,
        ),
    ] = "kernel"
