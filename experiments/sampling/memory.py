"""`forktask memory`: the bytes a plan needs, by what they are for, before it runs, and what the process then takes.

Buffers are known to the byte from the plan; so are scratch memory and the recorded graph. What Python and its
libraries take is measured where it is needed, in a fresh process.

    python -P -m forktask.experiments.sampling.memory < job.json
"""

from __future__ import annotations

import json
import os
import sys
from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from ...cython_src.errors import UsageError

COMMAND = (sys.executable, "-P", "-m", "forktask.experiments.sampling.memory")
# Role of a buffer -> what users call it.
KINDS = {
    "parameter": "weights",
    "statistic": "weights",
    "optimizer_state": "optimiser",
    "gradient": "gradients",
    "activation": "activations",
    "input": "activations",
    "arena": "activations and gradients, shared",
    "packed": "packed weights",
    "temporary": "temporaries",
    "dataset": "data and logs",
    "table": "data and logs",
    "log": "data and logs",
}
LIBRARIES_BYTES = 40 << 20  # of Python, NumPy and this package, about: measured is what `forktask memory` shows
NODE_BYTES = 128  # of a recorded task, at most
EDGE_BYTES = 4
BLOCK_BYTES = 3000  # of a block as Python objects, about
UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}
STEPS = 3  # before memory is measured
MORE_STEPS = 20  # before it is measured again


def parse_bytes(text: str) -> int:
    """Bytes from "1500000000", "1500M", "1.5GB" or "1.5GiB".

    Raises
    ------
    UsageError
        Not a positive number with one of these units.
    """
    number = text.strip().lower().removesuffix("b")
    unit = number.lstrip("0123456789.")
    try:
        value = float(number[: len(number) - len(unit)]) * UNITS[unit.strip()]
    except (ValueError, KeyError):
        value = 0.0
    if value < 1:
        raise UsageError(f"a memory limit must be a number of bytes such as 1500M or 1.5GiB, got {text!r}")
    return int(value)


def format_bytes(size: float) -> str:
    """With three digits and a unit."""
    for unit in ("B", "KiB", "MiB"):
        if abs(size) < 1000:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} GiB"


def planned_bytes(plan, threads: int, records: bool = True) -> dict[str, int]:
    """Bytes that a plan needs, by kind, before anything is allocated.

    Parameters
    ----------
    plan : Plan
    threads : int
        Each has scratch memory of its own.
    records : bool
        Whether the execution model records a task graph; then its nodes and edges count, the latter as many as
        the plan's accesses, which is more than there are.
    """
    result: dict[str, int] = {}
    for role, size in plan.memory_bytes().items():
        result[KINDS[role]] = result.get(KINDS[role], 0) + size
    result["temporaries"] = result.get("temporaries", 0) + threads * plan.scratch_bytes
    graph = NODE_BYTES * plan.num_tasks + EDGE_BYTES * len(plan.accesses.access_list) if records else 0
    table = sum(array.nbytes for array in vars(plan.accesses).values() if hasattr(array, "nbytes"))
    result["plan and graph"] = graph + table + BLOCK_BYTES * plan.num_tasks
    result["libraries"] = LIBRARIES_BYTES
    return result


def what_fits(options: Mapping[str, Any], limit: int, threads: int = 1) -> str:
    """The changes to a plan's options with which it fits, each alone, as a sentence; or that none was found."""
    from ...cython_src.lowering.lower import lower

    def fits(**changes) -> bool:
        try:
            plan = lower(**{**options, **changes})
        except UsageError:
            return False
        return sum(planned_bytes(plan, threads).values()) <= limit

    found = []
    if options.get("memory", "full") == "full" and fits(memory="shared"):
        found.append("memory 'shared'")
    if not found and options.get("phase", "train") == "train" and fits(memory="shared", recompute=True):
        found.append("memory 'shared' with recompute")
    batch = options["batch"] // 2
    while batch and not fits(batch=batch):
        batch //= 2
    if batch:
        found.append(f"batch {batch}")
    return f"{' or '.join(found)} would fit" if found else "no smaller batch fits either"


def check_fits(plan, options: Mapping[str, Any], limit: int | None, free: int | None, threads: int = 1) -> None:
    """Raise `MemoryError`, with what would fit, if a plan needs more than the limit or than the machine has free."""
    needed = sum(planned_bytes(plan, threads).values())
    allowed = min((n for n in (limit, free) if n is not None), default=None)
    if allowed is None or needed <= allowed:
        return
    source = "the memory limit is" if allowed == limit else "free are"
    raise MemoryError(
        f"the plan needs {format_bytes(needed)}, {source} {format_bytes(allowed)}; {what_fits(options, allowed, threads)}"
    )


def resident_bytes() -> int:
    """Resident memory of this process now.

    Raises
    ------
    UsageError
        The system does not tell.
    """
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        raise UsageError("measuring memory needs /proc/self/statm, which this system has not; use Linux") from None


def measure_memory(job: Mapping[str, Any]) -> dict[str, Any]:
    """Resident bytes of this process: before the plan, with it, with its buffers, after a few steps and after more."""
    from ...cython_src.lowering.lower import initialise, lower
    from .measure import fill_dataset
    from .models import bind_for, make_executor, parse_model

    spec = parse_model(job["model"])
    seen = {"libraries": resident_bytes()}
    plan = lower(**job["plan"])
    seen["plan"] = resident_bytes()
    check_fits(plan, job["plan"], job.get("memory_limit"), None, job["threads"])
    bound = bind_for(spec, plan)
    fill_dataset(bound, 0)
    bound.arrays["dataset.labels"][...] %= plan.attributes["num_classes"]
    initialise(bound, 0)
    seen["buffers"] = resident_bytes()
    with make_executor(spec, job["threads"]) as executor:
        executor.prepare(bound)
        executor.run(STEPS * plan.iteration_stride)
        seen["running"] = resident_bytes()
        executor.run(MORE_STEPS * plan.iteration_stride, first_iteration=STEPS * plan.iteration_stride)
        seen["later"] = resident_bytes()
    planned = planned_bytes(plan, job["threads"], spec.model.records)
    return {"kind": "memory", "planned": planned, "resident": seen}


def add_parser(subparsers) -> None:
    """Add `memory`."""
    parser = subparsers.add_parser(
        "memory",
        help="bytes that a network needs, planned and measured",
        description="Show the bytes of a training step or inference by what they are for, known before it runs, beside "
        "the resident memory of a process that runs it. Several batches make a sweep; what does not fit under the "
        "limit stays in the table with what would.",
    )
    parser.add_argument("--network", default="resnet18", help="default: %(default)s")
    parser.add_argument("--batch", default="64", metavar="B[,B...]", help="default: %(default)s")
    parser.add_argument("--phase", choices=("train", "forward"), default="train", help="default: %(default)s")
    parser.add_argument("--memory", choices=("full", "shared"), default="full", help="default: %(default)s")
    parser.add_argument(
        "--recompute", action="store_true", help="compute activations again in the backward pass; with --memory shared"
    )
    parser.add_argument("--optimizer", choices=("sgd", "adam", "adamw"), default="sgd", help="default: %(default)s")
    parser.add_argument("--model", default="taskiter", help="execution model; default: %(default)s")
    parser.add_argument("--threads", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--memory-limit", metavar="BYTES", help="such as 1500M or 2GiB")
    parser.add_argument("--plan-only", action="store_true", help="do not run anything")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run_memory)


def run_memory(arguments: Namespace) -> int:
    """`forktask memory`."""
    from ...cython_src.lowering.lower import lower
    from ..sweep.configuration import Measure
    from ..sweep.run import clean_environment, parse_numbers, run_sample, sample_environment
    from .environment import available_cpus, read_memory
    from .models import check_threads, parse_model

    model = parse_model(arguments.model)
    check_threads(arguments.threads)
    limit = parse_bytes(arguments.memory_limit) if arguments.memory_limit else None
    measure = Measure()
    rows = []
    for batch in parse_numbers(arguments.batch, "--batch"):
        options = {
            "network": arguments.network,
            "batch": batch,
            "phase": arguments.phase,
            "memory": arguments.memory,
            "optimizer": arguments.optimizer,
            "recompute": arguments.recompute,
        }
        plan = lower(**options)
        row: dict[str, Any] = {"batch": batch, "planned": planned_bytes(plan, arguments.threads, model.model.records)}
        rows.append(row)
        try:
            check_fits(plan, options, limit, read_memory()["available_bytes"], arguments.threads)
        except MemoryError as error:
            row["failure"] = str(error)
            continue
        if arguments.plan_only:
            continue
        job = {"plan": options, "model": str(model), "threads": arguments.threads, "cpus": None, "memory_limit": limit}
        settings = sample_environment(measure, arguments.threads, 0, len(available_cpus()))
        result = run_sample(job, clean_environment(os.environ, settings), measure.time_limit_s, COMMAND)
        row.update(result if "failure" not in result else {"failure": f"{result['failure']}: {result['message']}"})
    result = {
        "network": arguments.network,
        "model": str(model),
        "threads": arguments.threads,
        "limit_bytes": limit,
        "rows": rows,
    }
    print(json.dumps(result, indent=1) if arguments.json else as_text(result))
    return 0


def as_text(result: Mapping[str, Any]) -> str:
    """The tables for a terminal."""
    lines = [f"{result['network']}, {result['model']} on {result['threads']} thread{'s' * (result['threads'] > 1)}"]
    if result["limit_bytes"]:
        lines[0] += f", limit {format_bytes(result['limit_bytes'])}"
    for row in result["rows"]:
        planned, resident = row["planned"], row.get("resident")
        total = sum(planned.values())
        lines += ["", f"batch {row['batch']}: planned {format_bytes(total)}"]
        for kind, size in sorted(planned.items(), key=lambda item: -item[1]):
            lines.append(f"  {kind:36} {format_bytes(size):>10} {100 * size / total:5.1f} %")
        if "failure" in row:
            lines.append(f"  did not fit: {row['failure']}")
        elif resident:
            lines.append(
                f"  measured {format_bytes(resident['later'])}, {100 * resident['later'] / total:.1f} % of the plan: "
                f"libraries {format_bytes(resident['libraries'])}, plan {format_bytes(resident['plan'] - resident['libraries'])}, "
                f"buffers {format_bytes(resident['buffers'] - resident['plan'])}, execution "
                f"{format_bytes(resident['running'] - resident['buffers'])}, {MORE_STEPS} more steps "
                f"{format_bytes(resident['later'] - resident['running'])}"
            )
    return "\n".join(lines)


def main() -> int:
    """Measure one row."""
    from .measure import answer_job

    return answer_job(measure_memory, usage_failure="usage")


if __name__ == "__main__":
    sys.exit(main())
