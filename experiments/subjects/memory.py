"""Bytes that a plan needs, by purpose, before it runs.

Buffers are known to the byte from the plan; so are scratch memory and the recorded graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any

from ...cython_src.binding.storage import Storage
from ...cython_src.errors import MachineError, UsageError
from ...cython_src.kernels.kernel_table import scratch_bytes
from ...cython_src.lowering.lower import lower, own_plan
from ...cython_src.lowering.options import PlanOptions, plan_options
from ...cython_src.networks.layers import Attention, Conv2d, Embedding, LayerNorm, Linear, Network, NoNorm, TiedHead
from ...cython_src.networks.registry import get_network
from ...cython_src.plan.model import BlockLoop, Plan
from ...cython_src.records import LARGEST_WHOLE
from ...cython_src.typed_text import format_bytes
from ..machine.disturbance import read_memory
from .models import ModelSpec, options_for

# Role of a buffer -> its name in tables.
KINDS = {
    **dict.fromkeys(("parameter", "statistic"), "weights"),
    "optimizer_state": "optimiser",
    "gradient": "gradients",
    **dict.fromkeys(("activation", "input"), "activations"),
    "arena": "activations and gradients, shared",
    "packed": "packed weights",
    "temporary": "temporaries",
    **dict.fromkeys(("dataset", "table", "log"), "data and logs"),
}
GRAPH = "plan and graph"
# Layers whose results are written in any plan; others may be joined to them, or to those that read them.
WRITTEN = (Conv2d, Linear, Embedding, LayerNorm, NoNorm, Attention, TiedHead)
# Python, NumPy and this package, with what they load and allocate once a plan runs: 47 to 50 MiB for eight plans of
# images and tokens, in training and inference. `libraries_bytes` of samples is what of it is there before the plan.
LIBRARIES_BYTES = 48 << 20
QUICKLY_LOWERED = 4096  # samples, or tokens of all samples: such a plan is made in seconds, and what would fit is found
NODE_BYTES = 128  # a recorded task, at most
EDGE_BYTES = 4
BLOCK_BYTES = 3000  # the Python objects of a block, about
UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


def parse_bytes(text: str) -> int:
    """Parse a number of bytes such as "1500000000", "1500M", "1.5GB" or "1.5GiB". Raises `UsageError`: not a positive
    number with one of these units."""
    number = text.strip().lower().removesuffix("b")
    unit = number.lstrip("0123456789.")
    try:
        value = float(number[: len(number) - len(unit)]) * UNITS[unit.strip()]
    except (ValueError, KeyError):
        value = 0.0
    if not 1 <= value < LARGEST_WHOLE:
        raise UsageError(f"a memory limit must be a number of bytes such as 1500M or 1.5GiB, got {text[:40]!r}")
    return int(value)


def planned_bytes(plan, threads: int, records: bool = True) -> dict[str, int]:
    """Return the bytes that a plan needs on some threads, each with scratch memory of its own, by kind; nothing is
    allocated. `records`: whether the execution model records a task graph. Its nodes and edges then count; the number
    of accesses stands for that of edges, which is lower."""
    result: dict[str, int] = {}
    for role, size in plan.memory_bytes().items():
        result[KINDS[role]] = result.get(KINDS[role], 0) + size
    result["temporaries"] = result.get("temporaries", 0) + threads * scratch_bytes(plan)
    result[GRAPH] = graph_bytes(plan, records)
    result["libraries"] = LIBRARIES_BYTES
    return result


def graph_bytes(plan, records: bool = True) -> int:
    """Return the bytes of a plan's own records and, where the model records one, of the task graph."""
    graph = NODE_BYTES * plan.num_tasks + EDGE_BYTES * len(plan.accesses.access_list) if records else 0
    table = sum(array.nbytes for array in vars(plan.accesses).values() if hasattr(array, "nbytes"))
    return graph + table + BLOCK_BYTES * plan.num_tasks


def needs_text(needed: float, free: int | None) -> str:
    """Return "needs x of y GiB", or what is known of it."""
    return f"needs {format_bytes(needed)}" + (f" of {format_bytes(free)} that are free" if free is not None else "")


def what_fits(
    options: Mapping[str, Any], limit: int, needed_bytes: Callable[[Plan], int], make: Callable[..., Plan] = lower
) -> str:
    """Return a sentence on the single changes of options with which a plan would fit, or that there is none.

    Parameters
    ----------
    options : mapping
        What `make` takes.
    limit : int
        Bytes of the host, or of a GPU.
    needed_bytes : callable
        Function of a plan.
    make : callable
        Function of options that makes the plan with its data.
    """

    def fits(**changes) -> bool:
        try:
            plan = make(**{**options, **changes})
        except UsageError:
            return False
        return needed_bytes(plan) <= limit

    result = []
    if options.get("memory", "full") == "full" and fits(memory="shared"):
        result.append("memory 'shared'")
    if not result and options.get("phase", "train") == "train" and fits(memory="shared", recompute=True):
        result.append("memory 'shared' with recompute")
    batch = options["batch"] // 2
    while batch and not fits(batch=batch):
        batch //= 2
    if batch:
        result.append(f"batch {batch}")
    return f"{' or '.join(result)} would fit" if result else "no smaller batch fits either"


def what_fits_gpu(options: Mapping[str, Any], storage: Storage, make: Callable[..., Plan] = lower):
    """Return the function of a GPU's free bytes that says what would fit there, for `bind_for`."""
    from ...cython_src.gpu.bind import device_bytes

    return lambda free: what_fits(options, free, partial(device_bytes, storage=storage), make)


def least_bytes(network: Network, options: PlanOptions) -> tuple[int, int]:
    """Return a lower bound on a plan's bytes, from its layers alone: of any batch, and of each sample.

    Parameters count, and what the layers of `WRITTEN` hand on, as small as what may be joined to them makes it: of the
    last one or the sample itself alone where buffers share memory.
    """
    kept = [math.prod(network.input_shape)]
    for layer, _, after in network.shapes():
        if isinstance(layer, WRITTEN):
            kept.append(math.prod(after))
        kept[-1] = min(kept[-1], math.prod(after))
    sample = sum(kept) if options.memory == "full" else max(kept[0], kept[-1])
    return LIBRARIES_BYTES + 4 * network.num_parameters, 4 * sample


def check_least(options: Mapping[str, Any], limit: int | None, free: int | None) -> None:
    """Raise `MemoryError` for a network's plan that would take long to make, if already its `least_bytes` are too many.
    `options`: what `lower` takes."""
    network, chosen = options["network"], plan_options(options)
    if own_plan(network) is not None:
        return
    network = get_network(network) if isinstance(network, str) else network
    if network.tokens:
        network = network.with_sequence(chosen.sequence)
    if chosen.batch * (chosen.sequence if network.tokens else 1) <= QUICKLY_LOWERED:
        return
    alone, sample = least_bytes(network, chosen)
    needed, (allowed, source) = alone + chosen.batch * sample, allowed_bytes(limit, free)
    if needed > allowed:
        batch = max(0, int(allowed) - alone) // sample
        raise MemoryError(
            f"the plan needs at least {format_bytes(needed)}, {source} {format_bytes(allowed)}; "
            f"{f'no batch above {batch} fits' if batch else 'no smaller batch fits either'}"
        )


def check_some_fit(plans: Iterable[tuple[str, PlanOptions]], limit: str = "") -> None:
    """Raise `MachineError` if no plan of these networks can fit, as `check_least` tells, before any of them is made."""
    result = []
    for network, options in plans:
        try:
            check_least({"network": network, **options.as_dict()}, *memory_bounds(limit))
            return
        except MemoryError as error:
            result.append(f"{network}, batch {options.batch}: {error}")
    raise MachineError(result[0])


def memory_bounds(limit: str | None = "") -> tuple[int | None, int | None]:
    """Return the bytes of a memory limit, None without one, and the machine's free bytes, if known."""
    return parse_bytes(limit) if limit else None, read_memory()["available_bytes"]


def allowed_bytes(limit: int | None, free: int | None) -> tuple[float, str]:
    """Return the fewer of the bytes of a limit and the free ones, and which they are in a sentence."""
    known = [(n, text) for n, text in ((limit, "the memory limit is"), (free, "free are")) if n is not None]
    return min(known, key=itemgetter(0), default=(math.inf, ""))


def check_fits(
    plan: Plan,
    options: Mapping[str, Any],
    limit: int | None,
    free: int | None,
    threads: int = 1,
    make: Callable[..., Plan] = lower,
) -> None:
    """Raise `MemoryError`, with what would fit, if a plan needs more than the limit or than the machine has free."""

    def needed_bytes(plan: Plan) -> int:
        return sum(planned_bytes(plan, threads).values())

    needed, (allowed, source) = needed_bytes(plan), allowed_bytes(limit, free)
    if needed <= allowed:
        return
    raise MemoryError(
        f"the plan needs {format_bytes(needed)}, {source} {format_bytes(allowed)}; "
        f"{what_fits(options, int(allowed), needed_bytes, make)}"
    )


def describe_plans(
    network: str, options: Sequence[PlanOptions], model: ModelSpec, threads: int = 1, limit: int | None = None
) -> dict[str, Any]:
    """Return the loops of each plan, and its bytes by what they are for.

    Returns
    -------
    dict
        model, threads, limit_bytes, free_bytes (of the machine, or None), and plans: {"options", "phases": list of
        {"phase", "loops", "tasks", "flops", "bytes"}, "planned", and "failure" where it does not fit}; of a large plan
        that cannot fit, which is not lowered, phases and planned are empty.

    Raises
    ------
    UsageError
        A plan that cannot be made.
    """
    rows = []
    free = read_memory()["available_bytes"]
    for chosen in options:
        job_plan = {"network": network, **chosen.as_dict(), **options_for(model, chosen.conv, chosen.granularity)}
        row: dict[str, Any] = {"options": job_plan, "phases": [], "planned": {}}
        rows.append(row)
        try:
            check_least(job_plan, limit, free)
            plan = lower(**job_plan)
            row["phases"] = [_phase(phase, loops) for phase, loops in groupby(plan.loops, attrgetter("phase"))]
            row["planned"] = planned_bytes(plan, threads, model.model.records)
            check_fits(plan, job_plan, limit, free, threads)
        except MemoryError as error:
            row["failure"] = str(error)
    return {"model": str(model), "threads": threads, "limit_bytes": limit, "free_bytes": free, "plans": rows}


def _phase(phase: str, loops: Iterable[BlockLoop]) -> dict[str, Any]:
    loops = list(loops)
    sums = {"tasks": "num_blocks", "flops": "flops", "bytes": "bytes"}
    return {
        "phase": phase,
        "loops": len(loops),
        **{name: sum(map(attrgetter(field), loops)) for name, field in sums.items()},
    }
