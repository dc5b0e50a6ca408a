"""This machine as a `MachineModel`: its measured limits, its latencies, and what the executors' steps cost here."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any

from ...cython_src.binding.bind import bind
from ...cython_src.graphs.task_bench import task_bench
from ..machine.core_latency import measure_latency, measure_transfer
from ..machine.limits import measure_machine
from ..machine.topology import available_cpus, core_counts, cpu_order, places_of
from ..results.files import MACHINE, write_atomically
from ..results.rows import MachineRow, make_row
from ..sampling.timing import Stepper
from ..subjects.models import make_executor
from .machine_model import MachineModel, Overheads

WIDE, NARROW, STEPS = 256, 1, 16  # blocks of the loops whose times are compared
RUN_S, RUNS = 0.0005, 40  # shorter than the slice that a busy system gives a thread, so that some runs are undisturbed
TRANSFER_BYTES = 1 << 16  # as much as a block of a few images; in the own cache of any core
SPIN_S = 50e-6  # tasking/executor.py: SPIN_NS


def measure_this_machine(
    environment: Mapping[str, Any] | None = None, limits: MachineRow | None = None
) -> MachineModel:
    """Measure this machine, for simulations: some three seconds, or two where its limits are at hand."""
    from ..machine.environment import collect

    environment = collect() if environment is None else environment
    limits = make_row(MachineRow, measure_machine(environment=environment)) if limits is None else limits
    cpus = cpu_order(len(available_cpus()))
    line = measure_latency(cpus[0], cpus[1]) if len(cpus) > 1 else 0.0
    wake = measure_latency(cpus[0], cpus[1], sleeps=True, rounds=500) if len(cpus) > 1 else 0.0
    nodes = [node for _, node, _, _ in places_of(cpus)]
    bandwidth = {int(n): v for n, v in limits.bandwidth_bytes_per_s.items()}
    seconds_per_byte = measure_transfer(cpus[0], cpus[1], TRANSFER_BYTES) if len(cpus) > 1 else 0.0
    return MachineModel(
        name=(environment.get("cpu") or {}).get("model") or platform.node(),
        cores=len(cpus),
        peak_flops_per_s=limits.peak_flops_per_s_1thread,
        # More threads can move what fewer can: where the curve falls, it was disturbed.
        bandwidth_bytes_per_s={n: max(v for m, v in bandwidth.items() if m <= n) for n in sorted(bandwidth)},
        capacity={int(n): min(v, float(n)) for n, v in limits.capacity.items()},
        last_level_cache_bytes=float(environment["last_level_cache_bytes"]),
        line_s=line,
        transfer_bytes_per_s=1 / seconds_per_byte if seconds_per_byte else 0.0,
        wake_s=wake,
        spin_s=SPIN_S,
        between_nodes=limits.between_nodes,
        threads_per_node=next((n for n, node in enumerate(nodes) if node != nodes[0]), len(nodes)),
        overheads=measure_overheads(),
    )


def measure_overheads() -> Overheads:
    """Measure what the executors' steps cost, on graphs with empty kernels.

    Costs of a block or task are those on one thread, less what the serial executor takes for a block: that is part of
    the serial time which simulations scale their durations to. Task models come first: OpenMP's idle threads spin on
    after a run.
    """
    counts = core_counts(siblings=True)
    free, stencil = (task_bench(pattern, WIDE, STEPS) for pattern in ("trivial", "stencil_1d"))
    narrow = task_bench("trivial", NARROW, STEPS)
    serial = _pass("serial", 1, stencil) / stencil.num_tasks

    def task_s(model: str, plan) -> float:
        return _pass(model, 1, plan) / plan.num_tasks

    replay = max(task_s("taskiter:placement=stealing", stencil) - serial, 0.0)
    program = max(task_s("taskiter:placement=partitioned", stencil) - serial, 0.0)
    # A task of the trivial pattern accesses a cell, one of the stencil four, its own twice: the difference is three.
    few, many = task_s("tasks", free) - serial, task_s("tasks", stencil) - serial
    access = max((many - few) / 3, 0.0)
    wide_s, narrow_s = (_pass("forkjoin:region=persistent", 1, plan) for plan in (free, narrow))
    block = max((wide_s - narrow_s) / (STEPS * (WIDE - NARROW)) - serial, 0.0)
    dynamic = _pass("forkjoin:region=persistent:schedule=dynamic", 1, free)
    return Overheads(
        block_s=block,
        chunk_s=max((dynamic - wide_s) / free.num_tasks, 0.0),
        region_s={n: _loop_s("forkjoin", n) for n in counts},
        barrier_s={n: _loop_s("forkjoin:region=persistent", n) for n in counts},
        tree_s={n: _loop_s("forkjoin:region=persistent:join=tree", n) for n in counts},
        create_task_s=max(few - access - replay, 0.0),
        create_access_s=access,
        eager_task_s=replay,
        replay_task_s=replay,
        program_task_s=program,
    )


def _pass(model: str, threads: int, plan) -> float:
    """Return the seconds of a pass through a graph with empty kernels: the least of many short runs, for whatever
    disturbs a run lengthens it."""
    with make_executor(model, threads, cpus=cpu_order(threads)) as executor:
        executor.prepare(bind(plan))
        return min(Stepper(executor).pass_times(RUN_S, RUNS))


def _loop_s(model: str, threads: int) -> float:
    """Return the seconds of a loop with a block for each thread."""
    return _pass(model, threads, task_bench("trivial", threads, STEPS)) / STEPS


def write_machine(path: str) -> None:
    """Measure this machine and write a file that `machine_model.read_machine` reads."""
    write_atomically(path, measure_this_machine().to_toml() + "\n", kind=MACHINE)
