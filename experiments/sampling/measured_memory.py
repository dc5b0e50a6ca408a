"""Resident memory of a process, and what plans need before they run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

from ...cython_src.errors import UsageError
from ...cython_src.lowering.lower import lower
from ...cython_src.lowering.options import PlanOptions
from ...cython_src.plan.model import BlockLoop
from ..machine.disturbance import read_memory
from ..machine.proc import read_fields
from ..subjects.memory import check_fits, check_least, planned_bytes
from ..subjects.models import ModelSpec, options_for


def resident_bytes(field: str = "VmRSS") -> int:
    """Return the resident memory of this process.

    Raises
    ------
    UsageError
        The system does not show it.
    """
    try:
        return 1024 * int(read_fields(Path("/proc/self/status"), ":")[field].split()[0])
    except (LookupError, ValueError):
        raise UsageError(f"measuring memory needs {field} in /proc/self/status, which this system has not") from None


def peak_resident_bytes() -> int:
    """Return the most memory that was resident in this process so far; raises like `resident_bytes`.

    The figure of `getrusage` would not do: a process inherits it from the one that started it.
    """
    return resident_bytes("VmHWM")


def own_and_free_bytes() -> int | None:
    """Return the bytes that this process holds or could get: None where the machine does not say what is free."""
    memory = read_memory()
    free, limit = memory["available_bytes"], memory["limit_bytes"]
    # What is resident includes files, which count as free as well.
    return None if free is None else min(filter(None, (free + resident_bytes(), limit)))


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
