"""The machine that a simulation runs on: cores, peak, bandwidth, latency, and what the executors' steps cost there."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta

from ...cython_src.errors import UsageError
from ...cython_src.reading import Amount, Text, check_keys, checked, read_toml
from ...cython_src.typed_text import MOST_SECONDS
from ..machine.numa import INTERLEAVE, POLICIES

MAX_CORES = 1024
MAX_NODES = 16  # shared_clock.h: CLOCK_NODES

Seconds = Annotated[float, Meta(ge=0, lt=MOST_SECONDS)]
Rate = Annotated[float, Meta(gt=0, lt=1e25)]
Threads = Annotated[int, Meta(ge=1, le=MAX_CORES)]


@dataclass(frozen=True)
class Overheads:
    """Seconds that the executors spend on their own steps."""

    block_s: Seconds = 0.0  # fork-join: on a block, besides its kernel
    chunk_s: Seconds = 0.0  # fork-join: to take a chunk from the common counter (dynamic, guided)
    # region_s, barrier_s, tree_s: fork-join: on a loop, by number of threads: parallel region and its barriers;
    # barrier in a persistent region, of the OpenMP library and as a tree (`join=tree`)
    region_s: Mapping[Threads, Seconds] = field(default_factory=dict)
    barrier_s: Mapping[Threads, Seconds] = field(default_factory=dict)
    tree_s: Mapping[Threads, Seconds] = field(default_factory=dict)
    # create_task_s, create_access_s: eager tasks: to create one, and for each cell that it accesses
    create_task_s: Seconds = 0.0
    create_access_s: Seconds = 0.0
    # eager_task_s, replay_task_s, program_task_s: to run a task: created eagerly, replayed from a deque, replayed
    # from a program
    eager_task_s: Seconds = 0.0
    replay_task_s: Seconds = 0.0
    program_task_s: Seconds = 0.0


@dataclass(frozen=True, eq=False)
class MachineModel:
    """A machine as the simulation sees it."""

    name: Text = "ideal"
    cores: Threads = MAX_CORES  # of the real machine; simulations may go beyond, and then continue its curves
    peak_flops_per_s: Rate = math.nan  # of one thread
    # from memory, by number of threads; empty: unlimited
    bandwidth_bytes_per_s: Mapping[Threads, Rate] = field(default_factory=dict)
    # work of all threads over that of one alone, by their number; empty: each adds one
    capacity: Mapping[Threads, Rate] = field(default_factory=dict)
    last_level_cache_bytes: Amount = 0.0
    line_s: Seconds = 0.0  # a cache line from one core to another
    # bytes that another core holds, over the time by which reading and writing them takes longer than in the own
    # core's cache; 0: no longer
    transfer_bytes_per_s: Amount = 0.0
    # wake_s, spin_s: to wake a sleeping thread; how long idle threads of the task models look for work before they
    # sleep
    wake_s: Seconds = 0.0
    spin_s: Annotated[float, Meta(ge=0)] = math.inf
    # {"saturates", "proportional"}; beyond the last point of `bandwidth_bytes_per_s`; see `saturated` and `continued`
    bandwidth_beyond: Literal["saturates", "proportional"] = "saturates"
    # {"counter", "tree"}; what a barrier costs beyond the last point of its curve; see `extrapolated`
    barrier_beyond: Literal["counter", "tree"] = "counter"
    # bandwidth of one thread by the NUMA node that it is on, then by that of the memory; empty: one node
    between_nodes: Mapping[Text, Mapping[Text, Rate]] = field(default_factory=dict)
    # threads fill one node after the other, and after the last again the first
    threads_per_node: Threads = MAX_CORES
    # {"interleave", "first_touch", "node0"}; where memory lies if there are several nodes
    memory_policy: Literal[POLICIES] = INTERLEAVE
    overheads: Overheads = field(default_factory=Overheads)

    @property
    def shares_anything(self) -> bool:
        """Whether blocks that run at once slow each other down."""
        return bool(self.bandwidth_bytes_per_s or self.capacity)

    @property
    def num_nodes(self) -> int:
        """NUMA nodes."""
        return max(len(self.between_nodes), 1)

    def bandwidth_of_node(self) -> dict[int, float]:
        """Return the bandwidth of one node by the number of its threads."""
        result: dict[int, float] = {}
        for threads, rate in sorted(self.bandwidth_bytes_per_s.items()):
            nodes = min(-(-threads // self.threads_per_node), self.num_nodes)
            result.setdefault(-(-threads // nodes), rate / nodes)
        return result

    def sharing(self, threads: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Return (bandwidth of a node in that of one thread, slowdown of arithmetic) by active threads, shape
        (threads + 1,)."""
        if not self.shares_anything:
            return None
        active = np.arange(1, threads + 1)
        go_on = saturated if self.bandwidth_beyond == "saturates" else continued
        bandwidth = go_on(self.bandwidth_of_node() or {1: 1.0}, active)
        capacity = np.minimum(continued(self.capacity or {1: 1.0}, active), active)
        one = bandwidth[0]
        return np.append(1.0, bandwidth / one), np.append(1.0, np.maximum(active / capacity, 1.0))

    def memory_seconds(self, num_bytes: np.ndarray, footprint_bytes: float) -> np.ndarray:
        """Return the seconds in which one thread gets from memory what the last-level cache does not hold: nothing of a
        footprint (all that an iteration touches) that fits, of a larger one the part that the cache cannot hold.
        `num_bytes`: that each task touches, float64, shape (num_tasks,)."""
        if not self.bandwidth_bytes_per_s or footprint_bytes <= self.last_level_cache_bytes:
            return np.zeros(len(num_bytes))
        missed = 1 - self.last_level_cache_bytes / footprint_bytes
        return num_bytes * missed / continued(self.bandwidth_bytes_per_s, np.array([1]))[0]

    def to_toml(self) -> str:
        """Return the text of a file that `read_machine` reads."""
        lines = [f"name = {json.dumps(self.name)}"]
        lines += [f"{f.name} = {_toml(getattr(self, f.name))}" for f in fields(self)[1:-1]]
        lines += ["", "[overheads]"]
        return "\n".join([*lines, *(f"{f.name} = {_toml(getattr(self.overheads, f.name))}" for f in fields(Overheads))])


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_toml(each)}" for key, each in sorted(value.items())) + " }"
    return f"{value:.4g}" if isinstance(value, float) else json.dumps(value)


def continued(curve: Mapping[int, float], threads: np.ndarray) -> np.ndarray:
    """Return values of a curve that grows with the threads, such as bandwidth: linear between its points, and beyond
    the last one in proportion, as if the machine went on with cores that bring as much as those measured.
    """
    known = sorted(curve)
    values = [curve[n] for n in known]
    inside = np.interp(threads, [0, *known], [0.0, *values])
    return np.where(threads > known[-1], values[-1] * threads / known[-1], inside)


def saturated(curve: Mapping[int, float], threads: np.ndarray) -> np.ndarray:
    """Return a bandwidth by threads that beyond its last point goes on as b(n) = n b(1) / (1 + s (n - 1)).

    Each further thread waits for the ones before it by the share s, which the last point gives; bandwidth never passes
    b(1) / s. Where the last point has more than its threads' part, s is 0.
    """
    last = max(curve)
    one = continued(curve, np.array([1]))[0]
    share = max(0.0, (last * one / curve[last] - 1) / (last - 1)) if last > 1 else 0.0
    beyond = curve[last] * (threads / last) * (1 + share * (last - 1)) / (1 + share * (threads - 1))
    return np.where(threads > last, beyond, continued(curve, threads))


def extrapolated(curve: Mapping[int, float], threads: int, line_s: float, form: str = "counter") -> float:
    """Return a cost that grows with the threads, such as that of a barrier: linear between its points. Beyond the last
    one a counter adds for each thread a transfer of the cache line on which all meet; a tree, for each doubling, one
    transfer on the way up and one down."""
    if not curve:
        return 0.0
    known = sorted(curve)
    value = float(np.interp(threads, known, [curve[n] for n in known]))
    if threads <= known[-1]:
        return value
    return value + line_s * (threads - known[-1] if form == "counter" else 2 * math.log2(threads / known[-1]))


def machine_of(values: Mapping[str, Any], source: str) -> MachineModel:
    """Return the machine that a file describes. Raises `UsageError`: a key that is unknown, or missing, or has an
    impossible value."""
    for table, kind in ((values, MachineModel), (values.get("overheads"), Overheads)):
        if isinstance(table, Mapping):
            check_keys(table, [f.name for f in fields(kind)], f"machine file {source}")
    for key in ("cores", "peak_flops_per_s", "bandwidth_bytes_per_s", "line_s"):
        if key not in values:
            raise UsageError(f"a machine file must say {key}, but {source} does not; see docs/guide/simulate.md")
    try:
        machine = checked({"name": source, **values}, MachineModel, str_keys=True)
    except ValueError as error:
        raise UsageError(
            f"a machine file must have numbers in their ranges, got {error} in {source}; see docs/guide/simulate.md"
        ) from None
    nodes = machine.between_nodes
    if len(nodes) > MAX_NODES or any(row.keys() != nodes.keys() for row in nodes.values()):
        raise UsageError(
            f"between_nodes of a machine file must have a bandwidth from each of at most {MAX_NODES} nodes to each, "
            f"got { {node: [*row] for node, row in nodes.items()} } in {source}; see docs/guide/simulate.md"
        )
    return machine


def read_machine(path: str) -> MachineModel:
    """Read a machine file. Raises `UsageError`: no such file, no TOML, or as in `machine_of`."""
    return machine_of(read_toml(path, "machine file; forktask info --machine FILE writes this machine's")[0], path)
