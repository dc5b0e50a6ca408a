"""The process that checks a plan: declared accesses, and the bits of each model against those of `serial`.

python -P -m forktask.experiments.plan_check.worker < job.json

A process of its own, since a kernel that leaves its buffers may end it.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...cython_src.binding.checks import AccessError, sample_accesses
from ...cython_src.plan.model import READ, Plan, UniformBlocks
from ..machine.disturbance import read_memory
from ..sampling.child import answer_job
from ..subjects.memory import format_bytes
from ..subjects.models import SERIAL, make_executor
from ..subjects.subject import build, result_hashes

PASSES = 3  # of a run: enough for iterations to overlap
RUNS = 4  # of each model, since a race does not show each time
SEED = 1
COPIES = 6  # of a plan's memory that the check takes, at most


def check(job: Mapping[str, Any]) -> dict[str, Any]:
    """Check the plan of a job.

    Parameters
    ----------
    job : mapping
        "plan": options with the network; "path": of the user's modules; "accesses": whether to check them; "models":
        [model, threads] each; "limit_s": seconds for each of both checks.

    Returns
    -------
    dict
        "whole": whether the time sufficed for all; or "fault": loop, layer, kernel, buffer and what differs; or
        "impossible": why nothing could be checked.
    """
    sys.path[:] = job["path"]
    try:
        bound = build({"plan": job["plan"], "seed": SEED, "threads": 1}, SERIAL)
        needed, free = COPIES * sum(bound.plan.memory_bytes().values()), read_memory()["available_bytes"]
        if free is not None and needed > free:
            return {"impossible": f"the check needs {format_bytes(needed)}, {format_bytes(free)} are free"}
        start = {name: array.copy() for name, array in bound.arrays.items()}
        fault, whole = _check_accesses(bound.plan, start, job["limit_s"]) if job["accesses"] else (None, True)
        if fault is None and bound.plan.deterministic:
            fault, all_ran = _check_bits(bound, start, job["models"], job["limit_s"])
            whole = whole and all_ran
    except MemoryError:
        raise
    except Exception as error:
        traceback.print_exc()
        return {"impossible": f"{type(error).__name__}: {error}"}
    return {"whole": whole} if fault is None else {"fault": fault}


def _check_accesses(plan: Plan, start: Mapping[str, np.ndarray], limit_s: float) -> tuple[dict | None, bool]:
    if any(isinstance(loop.blocks, UniformBlocks) for loop in plan.loops):
        return None, True  # made from arrays: its blocks name no regions

    def initialise(bound) -> None:
        for name, array in start.items():
            bound.arrays[name][...] = array

    try:
        return None, sample_accesses(plan, limit_s, initialise=initialise)[1]
    except AccessError as error:
        loop = next(loop for loop in plan.loops if loop.name == error.task_name.rpartition("[")[0])
        where = f"{error.fault} by block {error.task_name} at {error.index}: {error.explanation}"
        return _fault(loop, error.buffer, where), True


def _check_bits(bound, start: Mapping[str, np.ndarray], models: list, limit_s: float) -> tuple[dict | None, bool]:
    """Run each model several times from the same start, interleaved, until the time is over; each runs once at
    least."""

    def run(model: str, threads: int) -> dict[str, Any]:
        for name, array in start.items():
            bound.arrays[name][...] = array
        with make_executor(model, threads) as executor:
            executor.prepare(bound)
            executor.run(PASSES * bound.iteration_stride)
        return result_hashes(bound)

    expected = run(SERIAL, 1)
    truth = {name: array.copy() for name, array in bound.arrays.items()}
    deadline = time.monotonic() + limit_s
    for number in range(RUNS):
        for model, threads in models:
            if number and time.monotonic() > deadline:
                return None, False
            if run(model, threads) != expected:
                where = f"{model} on {threads} threads leaves other bits than serial after {PASSES} passes"
                return _fault(*_first_writer(bound, truth), where), True
    return None, True


def _first_writer(bound, truth: Mapping[str, np.ndarray]) -> tuple[Any, str]:
    """Return the first loop in plan order that writes a buffer whose content is not that of the serial run, and it."""
    wrong = {name for name, array in bound.arrays.items() if array.tobytes() != truth[name].tobytes()}
    for loop in bound.plan.loops:
        for block in loop.blocks:
            for access in block.accesses:
                if access.kind != READ and access.buffer in wrong:
                    return loop, access.buffer
    return bound.plan.loops[-1], min(wrong)


def _fault(loop, buffer: str, what: str) -> dict[str, str]:
    return {"loop": loop.name, "layer": loop.layer, "kernel": loop.kernel, "buffer": buffer, "what": what}


if __name__ == "__main__":
    sys.exit(answer_job(check))
