"""Look-up of a kernel by its name, in this package's modules of kernels and among those that users registered."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from types import ModuleType

from ..errors import UsageError
from ..plan.model import Plan
from .interface.kernel_spec import KernelSpec, registered

# Modules that register kernels, and those that say what they touch.
MODULES = (
    *("attention.attention", "attention.regions", "bench.bench"),
    *("convolution.nchw_convolution", "convolution.nchw_regions"),
    *("convolution.nhwc_convolution", "convolution.nhwc_weight_gradient", "convolution.regions"),
    *("dense.dense", "dense.regions", "depthwise.depthwise", "depthwise.regions"),
    *("elementwise.elementwise", "elementwise.regions", "embedding.embedding", "embedding.regions"),
    *("linear.linear", "linear.regions", "load.load", "load.regions", "loss.loss", "loss.regions"),
    *("norm.norm", "norm.regions", "optimizer.optimizer", "optimizer.regions", "pooling.pooling", "pooling.regions"),
)
ROOMS = tuple(dict.fromkeys(name.partition(".")[0] for name in MODULES))  # folders of kernels


@cache
def import_kernels() -> None:
    """Import all modules that register kernels, or say what they touch."""
    for name in MODULES:
        import_module(f".{name}", __package__)


def get(name: str, own: Mapping[str, KernelSpec] | None = None) -> KernelSpec:
    """Return the kernel called `name`, from `own` (a plan's `attributes["kernels"]`) or else from the table."""
    if own and name in own:
        return own[name]
    import_kernels()
    specs = registered()
    if name not in specs:
        raise UsageError(f"no kernel is called {name!r}; known: {', '.join(sorted(specs)) or 'none'}")
    return specs[name]


def import_grids() -> dict[str, ModuleType]:
    """Import all modules that say how kernels are launched on a GPU, and return them by their folder."""
    return {room: import_module(f".{room}.grids", __package__) for room in ("interface", *ROOMS)}


def scratch_bytes(plan: Plan) -> int:
    """Return the bytes of scratch memory that each worker must offer the blocks of a plan."""
    own = plan.attributes.get("kernels")
    return max((get(loop.kernel, own).scratch_of(loop) for loop in plan.loops), default=0)
