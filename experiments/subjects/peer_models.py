"""Descriptions of peers: other programs that train the same networks by kernels of their own, PyTorch and
JAX, and functions and programs of the user's, which run no plan."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from ...cython_src.binding.execution_model import ExecutionModel
from ...cython_src.records import Record, about

MODES = ("eager", "channels_last", "sdpa", "compile")
SAYS = (
    "`eager`: PyTorch's default, attention as a product, a masked softmax and a product; `channels_last`: of images, "
    "channels in the innermost dimension; `sdpa`: of tokens, attention through `scaled_dot_product_attention`; "
    "`compile`: `torch.compile`, attention as in `sdpa`"
)


class TorchOptions(Record):
    """Options of `torch`."""

    mode: Annotated[str, about(SAYS, choices=MODES)] = "eager"


class GpuTorchOptions(Record):
    """Options of `gpu_torch`."""

    mode: Annotated[
        str,
        about(
            f"{SAYS}; `graph`, `graph_channels_last`: a step as one captured CUDA graph, attention likewise",
            choices=(*MODES, "graph", "graph_channels_last"),
        ),
    ] = "eager"
    products: Annotated[
        str, about("`tf32`: products and convolutions may round their inputs", choices=("float32", "tf32"))
    ] = "float32"


CALLED = about("what tables and figures call it; empty: as it is called")


class FunctionOptions(Record):
    """Options of `function`."""

    call: Annotated[
        str, about("`module:function` or `file.py:function`, which may have arguments: `solver:step(n=1000)`")
    ] = ""
    name: Annotated[str, CALLED] = ""


class ProgramOptions(Record):
    """Options of `program`."""

    command: Annotated[
        str, about("the program and its arguments, which no shell reads; `{threads}` stands for the number of threads")
    ] = ""
    threads_variable: Annotated[str, about("environment variable that holds the number of threads")] = "OMP_NUM_THREADS"
    time_pattern: Annotated[
        str,
        about(
            "regular expression with one group, the seconds that the program prints; empty: the time of the whole "
            "process"
        ),
    ] = ""
    name: Annotated[str, CALLED] = ""


_peer = partial(ExecutionModel, is_peer=True, is_reference=True, reproducible=False)
_torch = partial(_peer, package="torch>=2.4")
TORCH = _torch(
    "torch",
    ".experiments.peers.torch_executor:TorchExecutor",
    TorchOptions,
    says="PyTorch, by kernels of its own",
    colors=("red",),
    markers="DdHh",
)
GPU_TORCH = _torch(
    "gpu_torch", ".experiments.peers.torch_executor:GpuTorchExecutor", GpuTorchOptions, device="gpu", max_threads=1
)
JAX = _peer(
    "jax",
    ".experiments.peers.jax_executor:JaxExecutor",
    package="jax>=0.7",
    clashes={
        "XLA_FLAGS": "thread|parallel|device_count",
        "JAX_PLATFORMS": "^(?!cpu$).",
        "JAX_NUM_CPU_DEVICES": "^(?!1$).",
    },
    says="JAX, whose XLA compiles a whole step",
    colors=("purple",),
    markers="X",
)
FUNCTION = _peer(
    "function",
    ".experiments.peers.calls_executor:FunctionExecutor",
    FunctionOptions,
    is_call=True,
    says="a function of your own",
    reproducible=True,
    colors=("blue", "orange", "green", "red", "purple", "brown"),
    markers="osD^vP",
)
PROGRAM = _peer(
    "program",
    ".experiments.peers.calls_executor:ProgramExecutor",
    ProgramOptions,
    is_call=True,
    says="a program of your own",
    colors=("red", "purple", "brown", "blue", "orange", "green"),
    markers="^vPosD",
)
