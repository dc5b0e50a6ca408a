"""Resident memory of a process that runs a plan, beside what the plan needs.

python -P -m forktask.experiments.sampling.measured_memory < job.json
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

from ...cython_src.errors import UsageError
from ...cython_src.gpu import device as gpu_device
from ...cython_src.lowering.lower import initialise, lower
from ...cython_src.lowering.options import PlanOptions
from ...cython_src.plan.model import BlockLoop
from ..machine.disturbance import read_memory
from ..machine.topology import available_cpus
from ..subjects.memory import check_fits, planned_bytes, what_fits_gpu
from ..subjects.models import ModelSpec, bind_for, convolution_for, make_executor, parse_model, storage_for
from ..subjects.subject import fill_dataset
from .child import answer_job, clean_environment, measure_in_process, sample_environment

COMMAND = (sys.executable, "-P", "-m", "forktask.experiments.sampling.measured_memory")
STEPS = 3  # steps before memory is first measured
MORE_STEPS = 20  # further steps before it is measured again, fewer
MORE_SECONDS = 20.0  # where they would take longer


def resident_bytes() -> int:
    """Return the resident memory of this process.

    Raises
    ------
    UsageError
        The system does not show it.
    """
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        raise UsageError("measuring memory needs /proc/self/statm, which this system has not; use Linux") from None


def peak_resident_bytes() -> int:
    """Return the most memory that was resident in this process so far.

    The figure of `getrusage` would not do: a process inherits it from the one that started it.

    Raises
    ------
    UsageError
        The system does not show it.
    """
    try:
        with open("/proc/self/status") as file:
            return next(1024 * int(line.split()[1]) for line in file if line.startswith("VmHWM:"))
    except (OSError, ValueError, StopIteration):
        raise UsageError("measuring memory needs VmHWM in /proc/self/status, which this system has not") from None


def measure_memory(job: Mapping[str, Any]) -> dict[str, Any]:
    """Measure this process's resident bytes: before the plan, with it, with its buffers, after few and more steps."""
    spec = parse_model(job["model"])
    seen = {"libraries": resident_bytes()}
    plan = lower(**job["plan"])
    seen["plan"] = resident_bytes()
    check_fits(plan, job["plan"], job.get("memory_limit"), None, job["threads"])
    storage = storage_for(spec)
    bound = bind_for(spec, plan, storage, what_fits_gpu(job["plan"], storage))
    fill_dataset(bound, 0)
    if "dataset.labels" in bound.arrays:
        bound.arrays["dataset.labels"][...] %= plan.attributes["num_classes"]
    initialise(bound, 0)
    seen["buffers"] = resident_bytes()
    with make_executor(spec, job["threads"]) as executor:
        executor.prepare(bound)
        began = time.monotonic()
        executor.run(STEPS * plan.iteration_stride)
        fitting = MORE_SECONDS * STEPS / (time.monotonic() - began)
        more_steps = max(1, min(MORE_STEPS, int(fitting)))
        seen["running"] = resident_bytes()
        executor.run(more_steps * plan.iteration_stride, first_iteration=STEPS * plan.iteration_stride)
        seen["later"] = resident_bytes()
    seen["peak"] = peak_resident_bytes()
    planned = planned_bytes(plan, job["threads"], spec.model.records)
    return {"kind": "memory", "planned": planned, "resident": seen, "more_steps": more_steps}


def describe_plans(
    network: str,
    options: Sequence[PlanOptions],
    model: ModelSpec,
    threads: int = 1,
    limit: int | None = None,
    measure: bool = False,
) -> dict[str, Any]:
    """Return the loops of each plan, and its bytes by what they are for, planned and, with `measure`, measured.

    Returns
    -------
    dict
        model, threads, limit_bytes, free_bytes (of the machine, or None), and plans: {"options", "phases": list of
        {"phase", "loops", "tasks", "flops", "bytes"}, "planned", "resident" and "more_steps" or "failure"}.

    Raises
    ------
    UsageError
        A plan that cannot be made; a model of a GPU that is to be measured where there is none.
    """
    if measure and model.model.device == "gpu":
        gpu_device.count_gpus()
    rows = []
    free = read_memory()["available_bytes"]
    for chosen in options:
        job_plan = {"network": network, **chosen.as_dict(), "conv": convolution_for(model, chosen.conv)}
        plan = lower(**job_plan)
        row: dict[str, Any] = {
            "options": job_plan,
            "phases": [_phase(phase, loops) for phase, loops in groupby(plan.loops, attrgetter("phase"))],
            "planned": planned_bytes(plan, threads, model.model.records),
        }
        rows.append(row)
        try:
            check_fits(plan, job_plan, limit, free, threads)
        except MemoryError as error:
            row["failure"] = str(error)
            continue
        if not measure:
            continue
        job = {"plan": job_plan, "model": str(model), "threads": threads, "cpus": None, "memory_limit": limit}
        settings = sample_environment(threads, 0, len(available_cpus()))
        result = measure_in_process(job, clean_environment(os.environ, settings), command=COMMAND)
        row.update(result if "failure" not in result else {"failure": f"{result['failure']}: {result['message']}"})
    return {"model": str(model), "threads": threads, "limit_bytes": limit, "free_bytes": free, "plans": rows}


def _phase(phase: str, loops: Iterable[BlockLoop]) -> dict[str, Any]:
    loops = list(loops)
    sums = {"tasks": "num_blocks", "flops": "flops", "bytes": "bytes"}
    return {
        "phase": phase,
        "loops": len(loops),
        **{name: sum(map(attrgetter(field), loops)) for name, field in sums.items()},
    }


if __name__ == "__main__":
    sys.exit(answer_job(measure_memory, usage_failure="usage"))
