"""Binding a plan to its target: this processor, NumPy, or a GPU."""

from __future__ import annotations

from typing import Annotated

from .binding.bind import TARGETS as HOST_TARGETS
from .binding.bind import BoundPlan
from .binding.bind import bind as bind_to_host
from .binding.storage import Storage
from .errors import UsageError, check_choice, refuse_copies
from .gpu.bind import GpuBoundPlan
from .plan.model import Plan

TARGETS: tuple[str, ...] = (*HOST_TARGETS, "gpu")

for _kind in (BoundPlan, GpuBoundPlan):
    refuse_copies(_kind, "call bind() where it is needed")


def bind(
    plan: Annotated[Plan, "call bind(lower(network, batch=16))"],
    storage: Annotated[Storage | None, "give that of another bound plan"] = None,
    target: str = "cpu",
    instruction_set: str | None = None,
) -> BoundPlan | GpuBoundPlan:
    """Give a plan memory and kernels.

    Parameters
    ----------
    storage : Storage, optional
        Owner of persistent buffers; several plans may bind to one. Default: a new one.
    target : {"cpu", "numpy", "float64", "gpu"}
        Compiled kernels; the kernels' NumPy form in the plan's own dtypes; the same in float64 (the reference); CUDA
        kernels on the machine's first GPU (`gpu.bind.GpuBoundPlan`, whose constructor takes another one).
    instruction_set : str, optional
        Of the compiled kernels; default: the best this processor has.

    Returns
    -------
    BoundPlan or GpuBoundPlan

    Raises
    ------
    UsageError
        No GPU, an instruction set for a GPU, unknown target or kernel, or a storage that holds a buffer of the same
        name and another shape.
    """
    check_choice("target", target, TARGETS)
    if target != "gpu":
        return bind_to_host(plan, storage, target, instruction_set)
    if instruction_set is not None:
        raise UsageError(f"only target 'cpu' has instruction sets, got {instruction_set!r} for 'gpu'; leave it out")
    return GpuBoundPlan(plan, storage)
