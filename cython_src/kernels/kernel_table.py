"""Look-up of a kernel by its name, in this package's modules of kernels and among those that users registered."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module

from ..errors import UsageError
from ..plan.model import Plan
from .interface.kernel_spec import KernelSpec, registered

# Folders of kernels, each with a module of its name that registers them and one that says what they touch.
FOLDERS = (
    *("attention", "dense", "depthwise", "elementwise", "embedding", "linear", "load", "loss", "norm", "optimizer"),
    "pooling",
)
# Modules of this folder that register kernels, or say what they touch, when imported; imported at the first look-up.
KERNEL_MODULES: tuple[str, ...] = (
    *(f"{folder}.{module}" for folder in FOLDERS for module in (folder, "regions")),
    "bench.bench",
    *("convolution.nhwc_convolution", "convolution.regions"),
    *("convolution.nchw_convolution", "convolution.nchw_regions"),
)


@cache
def _import_modules() -> None:
    for module in KERNEL_MODULES:
        import_module(f".{module}", __package__)


def get(name: str, own: Mapping[str, KernelSpec] | None = None) -> KernelSpec:
    """Return the kernel called `name`, from `own` (a plan's `attributes["kernels"]`) or else from the table."""
    if own and name in own:
        return own[name]
    _import_modules()
    specs = registered()
    if name not in specs:
        raise UsageError(f"no kernel is called {name!r}; known: {', '.join(sorted(specs)) or 'none'}")
    return specs[name]


def scratch_bytes(plan: Plan) -> int:
    """Return the bytes of scratch memory that each worker must offer the blocks of a plan."""
    own = plan.attributes.get("kernels")
    return max((get(loop.kernel, own).scratch_of(loop) for loop in plan.loops), default=0)
