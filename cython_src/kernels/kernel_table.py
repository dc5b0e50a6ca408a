"""Look-up of a kernel by its name, in this package's modules of kernels and among those that users registered."""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Mapping
from functools import cache
from importlib import import_module

from ..errors import UsageError
from ..plan.model import Plan
from .interface.kernel_spec import KernelSpec, registered


@cache
def import_kernels() -> None:
    """Import the modules that register kernels, or say what they touch: those that are called like their folder, or
    `regions`, with the name of a layout before it where each has its own."""
    for folder in pkgutil.iter_modules(import_module(__package__).__path__):
        if folder.ispkg:
            package = import_module(f".{folder.name}", __package__)
            for module in pkgutil.iter_modules(package.__path__):
                if re.fullmatch(rf"(.*_)?({folder.name}|regions)", module.name):
                    import_module(f".{module.name}", package.__name__)


def get(name: str, own: Mapping[str, KernelSpec] | None = None) -> KernelSpec:
    """Return the kernel called `name`, from `own` (a plan's `attributes["kernels"]`) or else from the table."""
    if own and name in own:
        return own[name]
    import_kernels()
    specs = registered()
    if name not in specs:
        raise UsageError(f"no kernel is called {name!r}; known: {', '.join(sorted(specs)) or 'none'}")
    return specs[name]


def scratch_bytes(plan: Plan) -> int:
    """Return the bytes of scratch memory that each worker must offer the blocks of a plan."""
    own = plan.attributes.get("kernels")
    return max((get(loop.kernel, own).scratch_of(loop) for loop in plan.loops), default=0)
