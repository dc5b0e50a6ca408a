"""Checks of the plan contract: do kernels touch what their blocks declare, and are declared regions as narrow as told?

Regions that are too narrow give rare wrong bits, those that are too wide serialise in silence. `check_accesses` finds
the first kind block by block, `check_orders` end to end; `span_in_tasks` and the number of edges, compared with what
the network's formula says, find the second. All of it is meant for a user's own kernels as much as for ours.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ..errors import UsageError
from ..kernels import kernel_table
from ..plan.cells import build_access_table
from ..plan.dependences import TaskGraph, record_graph, topological_order
from ..plan.model import READ, WRITE, BlockLoop, Plan, UniformBlocks
from ..reading import Count, Number
from .bind import BlockFailure, BoundPlan, Workers, bind
from .storage import Storage

PATTERNS = ("nan", "huge", "random")
GUARD_BYTES = 4096
BLOCKS_OF_A_LOOP = 2  # that `sample_accesses` checks
OTHERS_BYTES = 4 << 20  # of buffers that are no operands, of which `sample_accesses` looks at each loop's


class AccessError(AssertionError):
    """A block touches what it does not declare, or does not do what it declares.

    Attributes
    ----------
    buffer : str
        Name of the buffer; "scratch" for the worker's scratch memory.
    index : tuple of int
        First offending element.
    fault : {"undeclared write", "not fully overwritten", "undeclared read", "failed", "outside buffer"}
    """

    def __init__(self, task_name: str, buffer: str, index: tuple[int, ...], fault: str, explanation: str):
        super().__init__(f"{task_name}, buffer {buffer!r}, index {index}: {fault}; {explanation}")
        self.task_name = task_name
        self.buffer = buffer
        self.index = index
        self.fault = fault
        self.explanation = explanation


# --- single blocks ------------------------------------------------------------------------------------------------


def check_accesses(
    plan: Plan,
    target: str = "numpy",
    *,
    initialise: Callable[[BoundPlan], Any] | None = None,
    num_replays: Number = 2,
    blocks_per_loop: Number | None = None,
    seed: Count = 0,
) -> int:
    """Run the plan in order and check every block against the accesses it declares.

    Each block runs once on the data as they are and once for each poison pattern (NaN, huge, random bits; integers
    stay within the buffer's range of values, because kernels use them as indices), with everything poisoned that it
    does not declare as read: its pure outputs, other blocks' regions, scratch memory, guard bands around all buffers.
    What it declares as written must come out bitwise the same each time, everything else must be left as it was.

    Parameters
    ----------
    plan : Plan
        Shared memory is laid out anew, so that each buffer has memory of its own.
    target : {"cpu", "numpy", "float64"}
    initialise : callable, optional
        `initialise(bound)` fills parameters and data. Without it, persistent floats are drawn from (0.1, 1) and
        integers are zero.
    num_replays : int
        Passes through the plan, so that optimizer state and iteration numbers take realistic values.
    blocks_per_loop : int, optional
        Check this many blocks of each loop, drawn at random, the first and the last among them. Default: all.

    Returns
    -------
    int
        Number of blocks that were checked.

    Raises
    ------
    AccessError
        Names the block, the buffer and the first offending element.
    BlockFailure
        A kernel failed on data that were not poisoned.
    UsageError
        The plan was made from arrays and has no regions.
    """
    checker = _prepare(plan, target, initialise, seed)
    for replay in range(num_replays):
        for number, loop in enumerate(plan.loops):
            checker.check_loop(number, loop, _sample(loop.num_blocks, blocks_per_loop, checker.rng), replay)
    return checker.num_checked


def sample_accesses(
    plan: Plan, limit_s: float, *, initialise: Callable[[BoundPlan], Any] | None = None
) -> tuple[int, bool]:
    """Check some blocks of every loop as `check_accesses` does, on the compiled kernels, for a limited time.

    The loops of each kernel come in turns, over several passes through the plan: what differs most is checked first. Of
    the buffers that are no operands of a loop it looks at some, drawn at random.

    `plan`, `initialise`: as for `check_accesses`; `limit_s`: after this time no further loop is begun. Returns
    number of blocks that were checked, and whether all loops were. Raises `AccessError`, `BlockFailure`, `UsageError`:
    as `check_accesses`.
    """
    checker = _prepare(plan, "cpu", initialise, 0)
    deadline = time.monotonic() + limit_s
    place, places = [], Counter[str]()  # of each loop among those of its kernel
    for loop in plan.loops:
        place.append(places[loop.kernel])
        places[loop.kernel] += 1
    first, replay = 0, 0
    while first <= max(place):
        for number, loop in enumerate(plan.loops):
            if time.monotonic() > deadline:
                return checker.num_checked, False
            if first <= place[number] <= 2 * first:
                chosen = _sample(loop.num_blocks, BLOCKS_OF_A_LOOP, checker.rng)
                checker.check_loop(number, loop, chosen, replay, OTHERS_BYTES)
            else:
                for block in range(loop.num_blocks):
                    checker.run(number, block, replay)
        first, replay = 2 * first + 1, replay + 1
    return checker.num_checked, True


def find_unused_reads(
    plan: Plan,
    target: str = "numpy",
    *,
    initialise: Callable[[BoundPlan], Any] | None = None,
    num_replays: Number = 2,
    blocks_per_loop: Number | None = None,
    seed: Count = 0,
) -> list[tuple[str, str, tuple[tuple[int, int], ...]]]:
    """Find what blocks declare as read, or as updated, without reading it: regions that serialise for nothing.

    Each cell that a block declares as read is poisoned alone; if what the block writes never changes, the block does
    not use it. Only buffers that the plan writes are looked at: reading others too widely costs nothing. An update
    that is found should be a write.

    Parameters
    ----------
    plan, target, initialise, num_replays, blocks_per_loop, seed
        As for `check_accesses`.

    Returns
    -------
    list of (task name, buffer, box)
        Empty for a plan that is as narrow as its kernels. What a kernel uses may depend on the data (a gradient
        behind a ReLU), so look at what is found before you believe it; more replays find less by chance.
    """
    checker = _prepare(plan, target, initialise, seed)
    _, cuts, _ = build_access_table(plan.buffers, plan.loops)
    written = {a.buffer for loop in plan.loops for block in loop.blocks for a in block.accesses if a.kind != READ}
    used: dict[tuple[str, str, tuple[tuple[int, int], ...]], bool] = {}
    for replay in range(num_replays):
        for number, loop in enumerate(plan.loops):
            chosen = _sample(loop.num_blocks, blocks_per_loop, checker.rng)
            for block in range(loop.num_blocks):
                if block in chosen:
                    checker.try_reads(number, loop, block, replay, written, cuts, used)
                checker.run(number, block, replay)
    return [key for key, shown in used.items() if not shown]


def _prepare(plan, target, initialise, seed):
    """Bind a plan to guarded memory of its own and fill in the data."""
    for loop in plan.loops:
        if isinstance(loop.blocks, UniformBlocks):
            raise UsageError(
                f"accesses can be checked only where blocks name their regions, but loop {loop.name!r} of plan "
                f"{plan.name!r} was made from arrays; build a small one with PlanBuilder"
            )
    rng = np.random.default_rng(seed)
    guarded = Storage(guard_bytes=GUARD_BYTES)
    bound = bind(dataclasses.replace(plan, arena_of={}), guarded, target)
    if initialise is not None:
        initialise(bound)
        return _BlockChecker(bound, guarded, rng)
    for buffer in plan.buffers.values():
        array = bound.arrays[buffer.name]
        if buffer.persistent and array.dtype.kind == "f":
            array[...] = rng.uniform(0.1, 1.0, array.shape)
    return _BlockChecker(bound, guarded, rng)


def _sample(num_blocks: int, wanted: int | None, rng: np.random.Generator) -> set[int]:
    if wanted is None or wanted >= num_blocks:
        return set(range(num_blocks))
    return {0, num_blocks - 1, *rng.integers(num_blocks, size=max(0, wanted - 2)).tolist()}


class _BlockChecker:
    """Runs blocks of one bound plan on poisoned memory."""

    def __init__(self, bound: BoundPlan, storage: Storage, rng: np.random.Generator):
        self.bound = bound
        self.storage = storage
        self.rng = rng
        own = bound.plan.attributes.get("kernels")
        # Of each loop; what follows in scratch memory is checked to be left alone.
        self.scratch_sizes = [kernel_table.get(loop.kernel, own).scratch_of(loop) for loop in bound.plan.loops]
        self.workers = Workers(1, bound.scratch_bytes + GUARD_BYTES)
        self.scratch = self.workers.scratch[0]
        self.num_checked = 0

    def check_loop(
        self, number: int, loop: BlockLoop, chosen: set[int], replay: int, others_bytes: int | None = None
    ) -> None:
        buffers = sorted(loop.buffers)
        # Memory that is no operand can only be hit by a stray pointer: one comparison for the loop will do.
        names = [name for name in self.bound.arrays if name not in buffers]
        others = {name: self.bound.arrays[name].copy() for name in self.some_of(names, others_bytes)}
        for block in range(loop.num_blocks):
            if block in chosen:
                self.check_block(number, loop, block, buffers, replay)
                self.num_checked += 1
            else:
                self.run(number, block, replay)
        some = f"{loop.name}[some of {loop.num_blocks} blocks]"
        self.check_guards(some, None)
        for name, former in others.items():
            where = _first_difference(self.bound.arrays[name], former)
            if where is not None:
                raise AccessError(some, name, where, "undeclared write", "the buffer is no operand of the kernel")

    def some_of(self, names: list[str], num_bytes: int | None) -> Iterable[str]:
        """Draw buffers of `num_bytes` together; None: all."""
        if num_bytes is None:
            return names
        sizes = ((name, self.bound.arrays[name].nbytes) for name in self.rng.permutation(names).tolist())
        return [name for name, size in sizes if (num_bytes := num_bytes - size) >= 0]

    def check_guards(self, name: str, buffers: list[str] | None) -> None:
        hit = self.storage.broken_guard(buffers)
        if hit is not None:
            raise AccessError(name, hit[0], (hit[1],), "outside buffer", "the index counts bytes from its start")

    def run(self, number: int, block: int, replay: int) -> None:
        with np.errstate(all="ignore"):
            self.bound.run_task(number, block, replay, self.workers)
        self.bound.raise_failure(self.workers)

    def check_block(self, number: int, loop: BlockLoop, block: int, buffers: list[str], replay: int) -> None:
        arrays = self.bound.arrays
        accesses = loop.blocks[block].accesses
        name = self.bound.plan.task_name(loop.first_task + block)
        before = {buffer: arrays[buffer].copy() for buffer in buffers}
        self.scratch[:] = 0
        self.run(number, block, replay)
        after = {buffer: arrays[buffer].copy() for buffer in buffers}
        for buffer in buffers:
            where = _first_difference(after[buffer], _written(accesses, buffer, before[buffer], after[buffer]))
            if where is not None:
                raise AccessError(
                    name, buffer, where, "undeclared write", f"declared as written: {_describe(accesses, buffer)}"
                )
        for pattern in PATTERNS:
            poisoned = {}
            for buffer in buffers:
                array = arrays[buffer]
                self.poison(array, before[buffer], pattern)
                for access in accesses:
                    if access.buffer == buffer and access.kind != WRITE:
                        array[_slices(access.box)] = before[buffer][_slices(access.box)]
                poisoned[buffer] = array.copy()
            spare = self.poison_surroundings(number, buffers, pattern)
            try:
                self.run(number, block, replay)
            except BlockFailure as error:
                raise AccessError(
                    name, buffers[0], (), "failed", f"it fails once what it does not declare as read holds {pattern}"
                ) from error
            for buffer in buffers:
                self.compare(name, accesses, buffer, pattern, poisoned[buffer], before[buffer], after[buffer])
            self.check_scratch(name, number, loop, spare)
            self.check_guards(name, buffers)
        for buffer in buffers:
            arrays[buffer][...] = after[buffer]

    def poison_surroundings(self, number: int, buffers: list[str], pattern: str) -> np.ndarray:
        """Poison guards and scratch memory; return a copy of the scratch memory that the kernel has not asked for."""
        random = pattern == "random"
        self.scratch[:] = np.frombuffer(self.rng.bytes(self.scratch.size), np.uint8) if random else 0xFF
        self.storage.fill_guards(0xFF if pattern == "nan" else 0x7E, buffers)
        return self.scratch[self.scratch_sizes[number] :].copy()

    def check_scratch(self, name: str, number: int, loop: BlockLoop, spare: np.ndarray) -> None:
        size = self.scratch_sizes[number]
        where = _first_difference(self.scratch[size:], spare)
        if where is not None:
            requested = f"kernel {loop.kernel!r} asks for {size} bytes of scratch memory"
            raise AccessError(name, "scratch", (where[0] + size,), "outside buffer", requested)

    def try_reads(self, number: int, loop: BlockLoop, block: int, replay: int, written, cuts, used) -> None:
        """Poison each cell that a block declares as read, alone, and note whether that shows."""
        arrays = self.bound.arrays
        accesses = loop.blocks[block].accesses
        name = self.bound.plan.task_name(loop.first_task + block)
        before = {buffer: arrays[buffer].copy() for buffer in loop.buffers}
        outputs = [(a.buffer, _slices(a.box)) for a in accesses if a.kind != READ]
        self.run(number, block, replay)
        truth = [arrays[buffer][box].tobytes() for buffer, box in outputs]
        for access in accesses:
            if access.kind == WRITE or access.buffer not in written:
                continue
            edges = cuts[access.buffer]
            box = [*access.box, *((0, n) for n in arrays[access.buffer].shape[len(access.box) : len(edges)])]
            inside = [c[(c >= start) & (c <= stop)].tolist() for c, (start, stop) in zip(edges, box, strict=True)]
            for cell in itertools.product(*(itertools.pairwise(c) for c in inside)):
                key = (name, access.buffer, cell)
                for pattern in ("huge", "nan", "random"):
                    if used.setdefault(key, False):
                        break
                    for buffer, array in before.items():
                        arrays[buffer][...] = array
                    where = arrays[access.buffer][_slices(cell)]
                    poison = np.empty(where.shape, where.dtype)
                    self.poison(poison, before[access.buffer], pattern)
                    where[...] = poison
                    try:
                        self.run(number, block, replay)
                        used[key] = truth != [arrays[buffer][box].tobytes() for buffer, box in outputs]
                    except BlockFailure:
                        used[key] = True
        for buffer, array in before.items():
            arrays[buffer][...] = array

    def compare(self, name, accesses, buffer, pattern, poisoned, before, after) -> None:
        now = self.bound.arrays[buffer]
        where = _first_difference(now, _written(accesses, buffer, poisoned, after))
        if where is None:
            return
        declared = [a for a in accesses if a.buffer == buffer and a.kind != READ and _holds(a.box, where)]
        regions = f"declared as written: {_describe(accesses, buffer)}"
        if not declared:
            fault, explanation = "undeclared write", f"it wrote {now[where]!r}; {regions}"
        elif now[where].tobytes() == poisoned[where].tobytes() and all(a.kind == WRITE for a in declared):
            fault, explanation = "not fully overwritten", f"{regions}; declare an update or write all of it"
        else:
            fault = "undeclared read"
            explanation = (
                f"it wrote {after[where]!r}, but {now[where]!r} once what it does not declare as read holds {pattern}"
            )
        raise AccessError(name, buffer, where, fault, explanation)

    def poison(self, array: np.ndarray, former: np.ndarray, pattern: str) -> None:
        """Overwrite an array; integers keep to the range of values that the buffer, `former`, holds."""
        if array.dtype.kind == "f":
            if pattern == "huge":
                array.fill(np.finfo(array.dtype).max / 4)
                return
            bits = array.reshape(-1).view(np.dtype(f"u{array.dtype.itemsize}"))
            bits[...] = np.frombuffer(self.rng.bytes(array.nbytes), bits.dtype)
            if pattern == "nan":
                # Each with a payload of its own: a NaN that was computed differs from the one that was there.
                bits |= np.array(np.nan, array.dtype).view(bits.dtype)
        elif array.dtype.kind == "b":
            array.fill(not former.all() if pattern == "nan" else former.all())
        else:
            low, high = int(former.min()), int(former.max())
            if low == high:
                array.fill(high - 1 if high > 0 else high + 1)
            elif pattern == "random":
                array[...] = self.rng.integers(low, high, size=array.shape, dtype=array.dtype, endpoint=True)
            else:
                array.fill(low if pattern == "nan" else high)


def _slices(box) -> tuple[slice, ...]:
    return tuple(slice(start, stop) for start, stop in box)


def _written(accesses, buffer: str, former: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Return what a buffer holds when a block has written `after` where it declares to write, and nothing else."""
    expected = former.copy()
    for access in accesses:
        if access.buffer == buffer and access.kind != READ:
            expected[_slices(access.box)] = after[_slices(access.box)]
    return expected


def _holds(box, index) -> bool:
    return all(start <= i < stop for (start, stop), i in zip(box, index, strict=False))


def _describe(accesses, buffer: str) -> str:
    boxes = [a.box or "all" for a in accesses if a.buffer == buffer and a.kind != READ]
    return ", ".join(map(str, boxes)) or "nothing"


def _bits(array: np.ndarray) -> np.ndarray:
    """The same memory as unsigned integers, so that NaN equals itself and -0 differs from 0."""
    return array.view(np.dtype(f"u{array.dtype.itemsize}"))


def _first_difference(a: np.ndarray, b: np.ndarray) -> tuple[int, ...] | None:
    """Index of the first element in which two arrays differ bitwise, or None."""
    differs = _bits(a) != _bits(b)
    if not differs.any():
        return None
    return tuple(int(i) for i in np.unravel_index(int(differs.argmax()), a.shape))


# --- whole plans in random order ----------------------------------------------------------------------------------


def run_serial(bound: BoundPlan, num_replays: int, workers: Workers | None = None) -> None:
    """Run a plan in plan order on the calling thread: the order that is always right. Raises `BlockFailure`."""
    workers = workers or Workers(1, bound.scratch_bytes)
    for replay in range(num_replays):
        for number, loop in enumerate(bound.plan.loops):
            for block in range(loop.num_blocks):
                if bound.run_task(number, block, replay, workers):
                    bound.raise_failure(workers)


class RandomOrder:
    """Runs a task graph on one thread in random legal orders, iterations overlapping.

    Each node has a counter of unfinished predecessors. It starts at `num_intra`; when a node is done, it is armed
    again to `num_intra + num_cross` before its successors are released. Which ready node comes next is drawn; in half
    of the runs some nodes are held back for as long as anything else is ready, because a missing edge shows best
    when its source comes late. A graph that is not closed has a barrier between iterations.
    """

    def __init__(self, bound: BoundPlan, graph: TaskGraph):
        if graph.num_tasks != bound.num_tasks:
            raise UsageError(f"the graph has {graph.num_tasks} tasks, the plan {bound.num_tasks}; record it anew")
        self.bound = bound
        self.graph = graph
        self.workers = Workers(1, bound.scratch_bytes)
        table = bound.plan.loops
        self.where = [(number, block) for number, loop in enumerate(table) for block in range(loop.num_blocks)]
        bounds = zip(graph.successor_offsets[:-1].tolist(), graph.successor_offsets[1:].tolist(), strict=True)
        targets = graph.successors.tolist()
        self.successors = [targets[start:stop] for start, stop in bounds]
        self.initial = graph.num_intra.tolist()
        self.armed = (graph.num_intra + graph.num_cross).tolist()

    def run(self, num_replays: int, rng: np.random.Generator) -> list[tuple[int, int]]:
        """Run `num_replays` passes and return the order as (task, replay) pairs. Raises `AssertionError`: the graph
        released a node twice, or not as often as asked; `BlockFailure`."""
        if not self.graph.closed:
            order = []
            for replay in range(num_replays):
                order += [(task, replay) for task, _ in self._run(1, rng, first=replay)]
            return order
        return self._run(num_replays, rng, first=0)

    def _run(self, num_replays: int, rng: np.random.Generator, first: int) -> list[tuple[int, int]]:
        num_nodes, num_tasks = self.graph.num_nodes, self.graph.num_tasks
        counters = list(self.initial)
        done = [0] * num_nodes
        waiting = [counter == 0 for counter in counters]
        late: set[int] = set()
        if rng.random() < 0.5:
            late = set(rng.choice(num_nodes, size=min(num_nodes, int(rng.integers(1, 4))), replace=False).tolist())
        furthest_first = rng.random() < 0.25  # most overlap of iterations
        ready = [node for node in range(num_nodes) if waiting[node] and node not in late]
        held = [node for node in range(num_nodes) if waiting[node] and node in late]
        order = []
        draws = rng.random(num_replays * num_nodes).tolist()
        while ready or held:
            source = ready or held
            pick = int(draws.pop() * len(source))
            if furthest_first:
                pick = max([*range(pick, len(source)), *range(pick)], key=lambda i: done[source[i]])
            source[pick], source[-1] = source[-1], source[pick]
            node = source.pop()
            waiting[node] = False
            if node < num_tasks:
                loop, block = self.where[node]
                order.append((node, first + done[node]))
                if self.bound.run_task(loop, block, first + done[node], self.workers):
                    self.bound.raise_failure(self.workers)
            done[node] += 1
            counters[node] += self.armed[node]
            for target in self.successors[node]:
                counters[target] -= 1
                if counters[target] == 0 and done[target] < num_replays:
                    assert not waiting[target], f"node {target} was released twice"
                    waiting[target] = True
                    (held if target in late else ready).append(target)
        assert all(count == num_replays for count in done), "the graph is stuck"
        return order


def check_orders(
    bound: BoundPlan,
    graph: TaskGraph | None = None,
    *,
    num_orders: Number = 100,
    num_replays: Number = 3,
    seed: Count = 0,
    tolerance: float | None = None,
) -> int:
    """Run a plan serially and then in random legal orders, from the same data: all must leave the same bits.

    Parameters
    ----------
    bound : BoundPlan
        With its data filled in. They are left as the serial run leaves them.
    graph : TaskGraph, optional
        Default: the plan's closed graph.
    tolerance : float, optional
        Relative to the largest number in a buffer; needed for a plan that is not deterministic. Default: bitwise.

    Returns
    -------
    int
        Number of different orders among those that were tried.

    Raises
    ------
    AssertionError
        Some buffer differs: a region is too narrow, or the graph lacks an edge.
    UsageError
        The plan is not deterministic and no tolerance is given.
    """
    if not bound.plan.deterministic and tolerance is None:
        raise UsageError(f"plan {bound.plan.name!r} is not deterministic, got no tolerance; give one")
    graph = record_graph(bound.plan.accesses, closed=True) if graph is None else graph
    start = {name: array.copy() for name, array in bound.arrays.items()}
    run_serial(bound, num_replays)
    truth = {name: array.copy() for name, array in bound.arrays.items()}
    executor = RandomOrder(bound, graph)
    seen = set()
    for number in range(num_orders):
        for name, array in bound.arrays.items():
            array[...] = start[name]
        seen.add(hash(tuple(executor.run(num_replays, np.random.default_rng([seed, number])))))
        for name, array in bound.arrays.items():
            where = _first_difference(array, truth[name])
            if tolerance is not None and where is not None:
                limit = tolerance * np.abs(truth[name]).max()
                where = None if np.allclose(array, truth[name], rtol=0, atol=limit) else where
            assert where is None, (
                f"order {number} of seed {seed} leaves other bits in buffer {name!r} at {where}: "
                f"{array[where]!r} instead of {truth[name][where]!r}"
            )
    return len(seen)


# --- the width of a graph -----------------------------------------------------------------------------------------


def span_in_tasks(graph: TaskGraph, num_replays: Number = 1) -> int:
    """Tasks on the longest path through `num_replays` iterations of a graph; joins count nothing. Raises `UsageError`:
    more than one replay of a graph that is not closed."""
    if num_replays > 1 and not graph.closed:
        raise UsageError(f"a graph that is not closed has 1 iteration, got num_replays={num_replays}; close it")
    arrays = graph.successor_offsets, graph.successor_split, graph.successors
    order = topological_order(*arrays).tolist()
    start, split, targets = (array.tolist() for array in arrays)
    ready = [0] * graph.num_nodes
    longest = 0
    for _ in range(num_replays):
        following = [0] * graph.num_nodes
        for node in order:
            finish = ready[node] + (node < graph.num_tasks)
            longest = max(longest, finish)
            for target in targets[start[node] : split[node]]:
                ready[target] = max(ready[target], finish)
            for target in targets[split[node] : start[node + 1]]:
                following[target] = max(following[target], finish)
        ready = following
    return longest
