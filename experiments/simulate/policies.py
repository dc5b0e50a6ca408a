"""Simulation of the execution models: what each one's scheduler does with a plan's blocks on P workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...cython_src.binding.storage import home_of
from ...cython_src.errors import UsageError
from ...cython_src.plan.barriers import barrier_after, record_with_barriers
from ...cython_src.plan.cells import commutative_locks
from ...cython_src.plan.dependences import TaskGraph
from ...cython_src.plan.model import READ, Plan
from ...tasking.executor import expected_cost_ns
from ...tasking.runtimes import CLAIM_NS, PATIENCE, program_order
from ..machine.numa import INTERLEAVE, NODE0
from ..subjects.models import MODELS, ModelSpec
from . import event_loop
from .event_loop import EAGER, LOOPS, PROGRAMS, STEALING
from .machine_model import MAX_CORES, MachineModel, extrapolated

SCHEDULES = MODELS["forkjoin"].fields["schedule"].choices
SIMULATED = ("serial", "forkjoin", "tasks", "taskgraph", "taskiter")
CLAIM_S = 1e-9 * CLAIM_NS  # tasks shorter than this are not worth a claim
PATIENCE_S = PATIENCE / 24e6  # before a waiting worker looks for a task to claim: a pause takes some 42 ns
# Iterations of two runs, the slope of which is the time of a step as `sampling/timing.py` measures it.
RUN_LENGTHS = {"none": (4, 8), "loop": (1, 2), "phase": (1, 2), "iteration": (1, 2)}


@dataclass(frozen=True)
class SimulatedRun:
    """Result of a simulation."""

    step_s: float  # seconds of an iteration: the slope between a short and a long run
    # useful_s, inflation_s, runtime_s, idle_s: of an iteration of the long run, summed over workers: blocks as long
    # as alone on the machine; what sharing it adds; the executor's own steps; the rest
    useful_s: float
    inflation_s: float
    runtime_s: float
    idle_s: float
    # "start", "finish" (seconds) and "worker", shape (iterations, num_tasks), where it was asked for
    schedule: Mapping[str, np.ndarray] | None = None


def can_simulate(spec: ModelSpec) -> bool:
    """Return whether the policy of a model is known here: outside runtimes, joblib, GPUs, fork-join by place or with
    needed barriers are measured only."""
    return spec.name in SIMULATED and not {"unroll", "order"} & {*spec.chosen} and "needed" not in spec.chosen.values()


class Subject:
    """A plan with the durations of its blocks, each alone on the machine that measured it, and its graphs, recorded
    once. By default that machine shares nothing."""

    def __init__(self, plan: Plan, seconds: np.ndarray, measured_on: MachineModel | None = None):
        self.plan = plan
        self.seconds = np.asarray(seconds, dtype=np.float64)
        self.measured_on = measured_on or MachineModel()
        self.block_bytes = np.repeat(
            [loop.bytes / max(loop.num_blocks, 1) for loop in plan.loops], [loop.num_blocks for loop in plan.loops]
        )
        self.footprint_bytes = float(sum(plan.memory_bytes().values()))
        table = plan.accesses
        sizes = np.diff(table.list_offsets)[table.access_list]
        sums = np.concatenate([[0], np.cumsum(sizes)])
        self.num_cells = np.diff(sums[table.task_offsets])
        self.locks = commutative_locks(table)
        self._graphs: dict[str, TaskGraph] = {}

    def graph(self, barrier: str) -> TaskGraph:
        """Return the closed graph with barriers of this kind."""
        if barrier not in self._graphs:
            self._graphs[barrier] = record_with_barriers(self.plan, barrier)
        return self._graphs[barrier]

    @cached_property
    def cell_bytes(self) -> np.ndarray:
        """Bytes of a cell of each access, float64, shape (num_accesses,): the mean over the cells of its buffer."""
        table = self.plan.accesses
        sizes = np.array([buffer.size_bytes for buffer in self.plan.buffers.values()], dtype=np.float64)
        pairs = np.unique(np.stack([table.access_buffer, table.access_list]), axis=1)
        lengths = np.diff(table.list_offsets)[pairs[1]]
        starts = np.repeat(table.list_offsets[pairs[1]] - np.concatenate([[0], np.cumsum(lengths)[:-1]]), lengths)
        cells = table.list_cells[starts + np.arange(lengths.sum())].astype(np.int64)
        owners = np.unique(np.repeat(pairs[0], lengths).astype(np.int64) * table.num_cells + cells) // table.num_cells
        counts = np.bincount(owners, minlength=len(sizes))
        return (sizes / np.maximum(counts, 1))[table.access_buffer]

    def memory_parts(self, machine: MachineModel, nodes: np.ndarray) -> np.ndarray:
        """Return the part of each task's bytes on each node of a machine, float64, shape (num_tasks, num_nodes);
        `nodes`: those of the threads."""
        num_tasks, num_nodes, table = self.plan.num_tasks, machine.num_nodes, self.plan.accesses
        if machine.memory_policy == INTERLEAVE:
            return np.full((num_tasks, num_nodes), 1 / num_nodes)
        lies = np.zeros(table.num_cells, np.int64)
        lengths = np.diff(table.list_offsets)[table.access_list]
        starts = np.repeat(table.list_offsets[table.access_list] - np.cumsum(lengths) + lengths, lengths)
        cells = table.list_cells[starts + np.arange(len(starts))]
        tasks = np.repeat(np.repeat(np.arange(num_tasks), np.diff(table.task_offsets)), lengths)
        if machine.memory_policy != NODE0:  # each cell on the node of the task that writes it first
            blocks = ((loop, number) for loop in self.plan.loops for number in range(loop.num_blocks))
            homes = nodes[[home_of(*each, len(nodes)) for each in blocks]]
            written = np.repeat(table.access_kind != READ, lengths)
            own, first = np.unique(cells[written], return_index=True)
            lies[own] = homes[tasks[written][first]]
        sizes = np.repeat(self.cell_bytes, lengths)
        parts = np.bincount(tasks * num_nodes + lies[cells], sizes, num_tasks * num_nodes).reshape(-1, num_nodes)
        parts[parts.sum(axis=1) == 0, 0] = 1.0  # of tasks without data
        return parts / parts.sum(axis=1, keepdims=True)

    def memory_on(self, machine: MachineModel, threads: int) -> tuple[int, np.ndarray, np.ndarray, np.ndarray]:
        """Return where threads and memory are, and how much longer remote memory takes: `SimulatedNodes` of
        event_loop.h."""
        count = machine.num_nodes
        nodes = np.arange(threads) // machine.threads_per_node % count
        if count == 1:
            return 1, nodes, np.zeros(self.plan.num_tasks), np.ones((self.plan.num_tasks, 1))
        rates = np.array([[row[name] for name in machine.between_nodes] for row in machine.between_nodes.values()])
        parts = self.memory_parts(machine, nodes)
        home = np.where(parts.max(axis=1) > 0.5, parts.argmax(axis=1), count)
        return count, nodes, home, parts @ (rates.diagonal()[:, np.newaxis] / rates).T

    def on(self, machine: MachineModel, measured: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return (seconds of each block alone on a machine with near memory, the share of it that waits for memory),
        from its seconds on the machine that measured, by default `seconds`."""
        measured = self.seconds if measured is None else measured
        own = np.minimum(self.measured_on.memory_seconds(self.block_bytes, self.footprint_bytes), measured)
        if self.measured_on.num_nodes > 1:  # part of the measured time is that of remote memory
            remote = self.memory_on(self.measured_on, 1)[3][:, 0]
            taken = np.minimum(own * remote, measured)
            measured, own = measured - taken + taken / remote, taken / remote
        if machine is self.measured_on:
            seconds, memory = measured, own
        else:
            speed = self.measured_on.peak_flops_per_s / machine.peak_flops_per_s
            rest = (measured - own) * (speed if np.isfinite(speed) else 1.0)
            memory = machine.memory_seconds(self.block_bytes, self.footprint_bytes)
            seconds = rest + memory
        return seconds, np.divide(memory, seconds, out=np.zeros_like(seconds), where=seconds > 0)


def simulate(
    subject: Subject,
    spec: ModelSpec,
    threads: int,
    machine: MachineModel | None = None,
    *,
    seed: int = 0,
    run_lengths: tuple[int, int] | None = None,
    keep_schedule: bool = False,
) -> SimulatedRun:
    """Simulate a model on a number of threads.

    Parameters
    ----------
    spec : ModelSpec
        One of `SIMULATED`, with its options.
    machine : MachineModel, optional
        Default: the one that measured the durations.
    seed : int
        Of the choice among idle workers and victims; the same seed gives the same result.
    run_lengths : (int, int), optional
        Iterations of the short and of the long run, from 1 on.
    keep_schedule : bool
        Return where and when each block ran.

    Raises
    ------
    UsageError
        A model whose policy is not known, or an impossible number of threads.
    """
    machine = subject.measured_on if machine is None else machine
    if not can_simulate(spec):
        known = ", ".join(SIMULATED)
        raise UsageError(
            f"a simulated model must be one of {known}, without unroll, order=place and barrier=needed, got {spec}"
        )
    if not 1 <= threads <= MAX_CORES:
        raise UsageError(f"threads must be in [1, {MAX_CORES}], got {threads}")
    short, long = run_lengths or RUN_LENGTHS[spec.barrier]
    if spec.model.max_threads == 1:
        threads = 1
    seconds, share = subject.on(machine)
    graph, policy, extra, creation, waits = _policy(subject, spec, threads, machine, seconds)
    overheads = machine.overheads
    serial = spec.is_serial
    costs = {
        "chunk": overheads.chunk_s + (machine.line_s if threads > 1 else 0.0),
        "barrier": 0.0 if serial else barrier_s(machine, spec, threads),
        "line": machine.line_s,
        "wake": machine.wake_s,
        "spin": machine.spin_s,
        "patience": PATIENCE_S if machine.line_s else 0.0,
    }
    loop_end = np.cumsum([loop.num_blocks for loop in subject.plan.loops])
    moves = threads > 1 and machine.transfer_bytes_per_s > 0
    per_byte = 1 / machine.transfer_bytes_per_s if moves else 0.0
    data = (subject.plan.accesses, subject.cell_bytes if moves else (), per_byte, machine.last_level_cache_bytes)
    tasks = (graph, loop_end, waits, seconds, share, extra, creation, subject.locks, data)
    nodes = subject.memory_on(machine, threads)
    machine_costs = (nodes, policy, costs, machine.sharing(threads), threads)
    first = event_loop.run(*tasks, *machine_costs, short, seed, False)
    result = event_loop.run(*tasks, *machine_costs, long, seed, keep_schedule)
    total = float(result["iteration_end"].max())
    useful, inflation, runtime = (result[name] / long for name in ("useful_s", "inflation_s", "runtime_s"))
    return SimulatedRun(
        step_s=(total - float(first["iteration_end"].max())) / (long - short),
        useful_s=useful,
        inflation_s=inflation,
        runtime_s=runtime,
        idle_s=threads * total / long - useful - inflation - runtime,
        schedule={name: result[name] for name in ("start", "finish", "worker")} if keep_schedule else None,
    )


def barrier_s(machine: MachineModel, spec: ModelSpec, threads: int) -> float:
    """Return the seconds that a form of fork-join takes for the barriers of a loop on a machine."""
    overheads, beyond = machine.overheads, machine.barrier_beyond
    curve = overheads.barrier_s if spec.option("region") == "persistent" else overheads.region_s
    if spec.option("join") == "tree":
        curve, beyond = overheads.tree_s or curve, "tree"
    return extrapolated(curve, threads, machine.line_s, beyond)


def _policy(subject: Subject, spec: ModelSpec, threads: int, machine: MachineModel, seconds: np.ndarray):
    """Return (graph, policy of event_loop.h, seconds of the runtime by task, of its creation, waits after loops)."""
    plan, cost = subject.plan, machine.overheads
    none = np.zeros(plan.num_tasks)
    policy = {"kind": LOOPS, "schedule": 0, "chunk_size": 0, "window": 1, "claims": 0}
    policy |= dict.fromkeys(("roots", "root_workers", "program", "program_first"), ())
    waits = np.zeros(len(plan.loops), np.uint8)
    if spec.is_serial or spec.name == "forkjoin":
        policy["schedule"] = SCHEDULES.index(spec.option("schedule", "static"))
        policy["chunk_size"] = spec.option("chunk_size", 0)
        block = 0.0 if spec.is_serial else cost.block_s
        return subject.graph("none"), policy, none + block, none, waits
    if spec.name == "tasks":
        policy["kind"] = EAGER
        policy["window"] = 1 << max(2, (spec.option("window") - 1).bit_length())
        creation = cost.create_task_s + cost.create_access_s * subject.num_cells
        waits = np.array(barrier_after(plan, spec.barrier), np.uint8)
        return subject.graph("none"), policy, none + cost.eager_task_s, creation, waits
    graph = subject.graph(spec.barrier)
    cost_ns = expected_cost_ns(plan)  # programs are compiled from the same numbers as in the executor
    if spec.option("placement") == "stealing":
        roots, root_workers = _roots(graph, threads)
        policy |= {"kind": STEALING, "roots": roots, "root_workers": root_workers}
        return graph, policy, none + cost.replay_task_s, none, waits
    programs = program_order(plan, graph, cost_ns, threads, spec.option("priority") == "newest")
    policy |= {
        "kind": PROGRAMS,
        "program": np.concatenate(programs),
        "program_first": np.cumsum([0, *map(len, programs)]),
        "claims": int(float(seconds.mean()) > CLAIM_S) if len(seconds) else 0,
    }
    return graph, policy, none + cost.program_task_s, none, waits


def _roots(graph: TaskGraph, threads: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the tasks that are ready at the start and the workers that get them, as replay.h has them."""
    pending = graph.num_intra.astype(np.int64)
    for join in np.flatnonzero(graph.num_intra[graph.num_tasks :] == 0) + graph.num_tasks:
        np.subtract.at(pending, graph.successors[graph.successor_offsets[join] : graph.successor_split[join]], 1)
    roots = np.flatnonzero(pending[: graph.num_tasks] == 0)[::-1]
    workers = (len(roots) - 1 - np.arange(len(roots))) * threads // max(len(roots), 1)
    return roots, workers
