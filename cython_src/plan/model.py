"""The plan: one training step as an ordered list of block loops with declared accesses.

A plan is symbolic. It names kernels, buffers and the regions that each block reads and writes; it holds no pointer
and says nothing about who runs a block and when. Executing its loops in order is always right; every executor is a
legal reordering. Cut points split each buffer into cells, and all dependences, those of real OpenMP tasks included, are
found on the same cell ids (`Plan.accesses`).
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ..errors import UsageError, refuse_copies
from ..shown import Shown

READ, WRITE, UPDATE, CONCURRENT, COMMUTATIVE, REDUCTION = 0, 1, 2, 3, 4, 5
ACCESS_KINDS = ("read", "write", "update", "concurrent", "commutative", "reduction")
PHASES = ("load", "forward", "backward", "update", "other")

# Buffers with these roles outlive a step: they are owned by `Storage`, shared by several plans, and never share memory.
PERSISTENT_ROLES = frozenset({"parameter", "optimizer_state", "statistic", "dataset", "table", "log"})
TRANSIENT_ROLES = frozenset({"input", "activation", "gradient", "temporary", "packed"})


@dataclass(frozen=True)
class Buffer:
    """A named array.

    Parameters
    ----------
    shape : tuple of int
        Physical shape, halo and vector lanes included.
    dtype : str
        Any NumPy dtype name; float buffers become float64 when the plan is bound to the reference.
    role : str
        One of `PERSISTENT_ROLES` or `TRANSIENT_ROLES`.
    carried : bool
        A transient buffer whose content is read by the next iteration (it never shares memory).
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    role: str = "activation"
    carried: bool = False

    @property
    def persistent(self) -> bool:
        return self.role in PERSISTENT_ROLES

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def bytes_of(self, box: tuple[tuple[int, int], ...]) -> int:
        """Return the bytes of a region."""
        elements = math.prod(stop - start for start, stop in box) * math.prod(self.shape[len(box) :])
        return elements * np.dtype(self.dtype).itemsize


class Access(NamedTuple):
    """One access of a block to a region: a box of up to four index ranges over the buffer's leading dimensions."""

    kind: int
    buffer: str
    box: tuple[tuple[int, int], ...] = ()


def unused(name: str, taken: Container[str]) -> str:
    """Return a name that is not taken: this one, with primes where needed."""
    while name in taken:
        name += "'"
    return name


def read(buffer: str, *box: tuple[int, int]) -> Access:
    """The block reads `buffer[start:stop, ...]`, a range for each leading dimension; none means all of it."""
    return Access(READ, buffer, tuple(box))


def write(buffer: str, *box: tuple[int, int]) -> Access:
    """The block overwrites every element of the region without having read it."""
    return Access(WRITE, buffer, tuple(box))


def update(buffer: str, *box: tuple[int, int]) -> Access:
    """The block reads and writes the region (OpenMP's and OmpSs-2's `inout`), in plan order."""
    return Access(UPDATE, buffer, tuple(box))


def concurrent(buffer: str, *box: tuple[int, int]) -> Access:
    """The block updates the region at the same time as others that say so; its kernel must use atomic operations.

    OmpSs-2's `concurrent`, OpenMP's `inoutset`. The result depends on the order, so the plan is not deterministic.
    """
    return Access(CONCURRENT, buffer, tuple(box))


def commutative(buffer: str, *box: tuple[int, int]) -> Access:
    """The block updates the region in any order with others that say so, but one at a time, which `run_block` ensures.

    OmpSs-2's `commutative`, OpenMP's `mutexinoutset`. The result depends on the order, so the plan is not
    deterministic.
    """
    return Access(COMMUTATIVE, buffer, tuple(box))


def reduction(buffer: str, *box: tuple[int, int]) -> Access:
    """The block adds something to the region.

    OpenMP's and OmpSs-2's `reduction`. It works on a private copy, filled with zeros, that a group of blocks shares;
    `PlanBuilder.build` adds the loops that fill and combine the copies, in a fixed order, so the plan stays
    deterministic.
    """
    return Access(REDUCTION, buffer, tuple(box))


@dataclass(frozen=True)
class Block:
    """A unit of work.

    Parameters
    ----------
    bounds : tuple of int
        The index ranges the kernel works on, in the order of its KernelSpec.
    flops, bytes : float
        Arithmetic operations, and bytes that must move at least, for the cost model.
    operands : mapping of str to str, optional
        Operands for which this block uses another buffer than its loop.
    """

    bounds: tuple[int, ...]
    accesses: tuple[Access, ...]
    flops: float = 0.0
    bytes: float = 0.0
    operands: Mapping[str, str] | None = None


class UniformBlocks(Sequence):
    """Blocks kept as arrays, for graphs of up to millions of tasks; they are made into `Block` when looked at.

    Their accesses are found in the plan's access table only: `Block.accesses` is empty. `bounds`: int32, shape
    (num_blocks, bounds_width); `flops`, `bytes`: of each block.
    """

    def __init__(self, bounds: np.ndarray, flops: float = 0.0, bytes: float = 0.0):
        self.bounds = np.ascontiguousarray(bounds, dtype=np.int32)
        self.flops = flops
        self.bytes = bytes

    def __len__(self) -> int:
        return len(self.bounds)

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return tuple(self[i] for i in range(*number.indices(len(self))))
        return Block(tuple(self.bounds[number].tolist()), (), self.flops, self.bytes)


@dataclass(frozen=True, eq=False, repr=False)
class BlockLoop:
    """A loop over independent blocks of one kernel: what fork-join runs between two barriers."""

    name: str
    kernel: str
    operands: Mapping[str, str]
    attributes: Mapping[str, float | int]
    blocks: Sequence[Block]
    layer: str = ""
    phase: str = "other"
    iteration_offset: int = 0
    first_task: int = 0
    chain: str = ""  # of sums to which it belongs, see chained_sums.py

    def __repr__(self) -> str:
        return f"<loop {self.name!r}: {self.num_blocks} blocks of kernel {self.kernel!r}>"

    @property
    def num_blocks(self) -> int:
        return len(self.blocks)

    @property
    def buffers(self) -> set[str]:
        """Every buffer that is an operand of some block."""
        own = () if isinstance(self.blocks, UniformBlocks) else self.blocks
        return {*self.operands.values(), *(name for block in own if block.operands for name in block.operands.values())}

    @property
    def bounds(self) -> np.ndarray:
        """Bounds of all blocks, int32, shape (num_blocks, bounds_width)."""
        if isinstance(self.blocks, UniformBlocks):
            return self.blocks.bounds
        return np.array([block.bounds for block in self.blocks], dtype=np.int32).reshape(self.num_blocks, -1)

    @property
    def flops(self) -> float:
        if isinstance(self.blocks, UniformBlocks):
            return self.blocks.flops * self.num_blocks
        return sum(block.flops for block in self.blocks)

    @property
    def bytes(self) -> float:
        if isinstance(self.blocks, UniformBlocks):
            return self.blocks.bytes * self.num_blocks
        return sum(block.bytes for block in self.blocks)


@dataclass(frozen=True, eq=False, repr=False)
class AccessTable:
    """All accesses of a plan on cell ids, as flat int32 arrays: task -> accesses -> cell list -> cells.

    Cells are cells of storage. Buffers that share memory have cells in common: pieces so small that each lies within
    one cell of every buffer that covers it. So shared memory needs no rule of its own.
    """

    num_tasks: int
    num_cells: int
    task_offsets: np.ndarray  # accesses of task t are task_offsets[t] ... task_offsets[t + 1] - 1
    access_kind: np.ndarray  # uint8: READ, WRITE, UPDATE, CONCURRENT, COMMUTATIVE; reductions were lowered to these
    access_list: np.ndarray  # number of the access's cell list; equal lists are stored once
    list_offsets: np.ndarray
    list_cells: np.ndarray  # of list l, ascending: list_cells[list_offsets[l]:list_offsets[l + 1]]
    access_buffer: np.ndarray  # index of the access's buffer in `Plan.buffers`

    def __repr__(self) -> str:
        return f"<{len(self.access_kind)} accesses of {self.num_tasks} tasks to {self.num_cells} cells>"


@dataclass(frozen=True, eq=False, repr=False)
class TaskGraph(Shown):
    """A plan's tasks and joins with their dependences, as flat arrays.

    Nodes 0 ... num_tasks - 1 are the plan's tasks; the joins follow.

    Attributes
    ----------
    num_tasks, num_joins : int
    successor_offsets : int32, shape (num_nodes + 1,)
    successor_split : int32, shape (num_nodes,)
        Successors of node v in the same iteration are successors[successor_offsets[v]:successor_split[v]], those in
        the next iteration successors[successor_split[v]:successor_offsets[v + 1]].
    successors : int32
    num_intra, num_cross : int32, shape (num_nodes,)
        Predecessors in the same and in the former iteration.
    closed : bool
        Whether edges to the next iteration were found.
    """

    num_tasks: int
    num_joins: int
    successor_offsets: np.ndarray
    successor_split: np.ndarray
    successors: np.ndarray
    num_intra: np.ndarray
    num_cross: np.ndarray
    closed: bool

    def __repr__(self) -> str:
        closed = "closed " if self.closed else ""
        return f"<{closed}graph of {self.num_tasks} tasks: {self.num_edges} edges, {self.num_joins} joins>"

    def _rows(self) -> list[dict[str, Any]]:
        crossing = int((self.successor_offsets[1:] - self.successor_split).sum())
        return [
            {"edges": "within an iteration", "number": self.num_edges - crossing},
            {"edges": "to the next iteration", "number": crossing},
        ]

    @property
    def num_nodes(self) -> int:
        return self.num_tasks + self.num_joins

    @property
    def num_edges(self) -> int:
        return len(self.successors)

    def edges(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Arrays (source, target, token): token 1 for edges to the next iteration."""
        counts = np.diff(self.successor_offsets)
        source = np.repeat(np.arange(self.num_nodes, dtype=np.int32), counts)
        token = (np.arange(self.num_edges) >= np.repeat(self.successor_split, counts)).astype(np.int32)
        return source, self.successors, token


@dataclass(frozen=True, eq=False, repr=False)
class Plan(Shown):
    """One step, lowered for one network, batch and granularity. Made by `PlanBuilder.build`.

    Attributes
    ----------
    iteration_stride : int
        Steps that one pass through the plan takes: 1, or the factor it was unrolled by.
    arena_of : mapping of str to int
        Buffers that share memory, and their arena; empty with `memory="full"`.
    attributes : mapping
        What the plan was lowered from (network, batch, granularity, ...), for records; and "aliases": name that users
        know (a PyTorch name, an activation) -> function of the array mapping that gives a view; and "kernels": name ->
        KernelSpec of kernels that belong to this plan alone.
    deterministic : bool
        Every schedule gives bit-identical results: no access is concurrent or commutative.
    """

    name: str
    buffers: Mapping[str, Buffer]
    loops: tuple[BlockLoop, ...]
    accesses: AccessTable
    iteration_stride: int = 1
    arena_of: Mapping[str, int] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        size = sum(self.memory_bytes().values()) / 2**20
        return f"<plan {self.name!r}: {len(self.loops)} loops, {self.num_tasks} blocks, {size:.3g} MiB>"

    def _rows(self) -> list[dict[str, Any]]:
        rows = []
        for phase in dict.fromkeys(loop.phase for loop in self.loops):
            loops = [loop for loop in self.loops if loop.phase == phase]
            row = {"phase": phase, "loops": len(loops), "blocks": sum(loop.num_blocks for loop in loops)}
            flops, traffic = sum(loop.flops for loop in loops), sum(loop.bytes for loop in loops)
            rows.append({**row, "GFLOP": 1e-9 * flops, "MB": 1e-6 * traffic})
        return rows

    @cached_property
    def deterministic(self) -> bool:
        return not (self.accesses.access_kind >= CONCURRENT).any()

    @cached_property
    def num_tasks(self) -> int:
        return sum(loop.num_blocks for loop in self.loops)

    @cached_property
    def task_loop(self) -> np.ndarray:
        """Index of each task's loop, int32, shape (num_tasks,)."""
        return np.repeat(np.arange(len(self.loops), dtype=np.int32), [loop.num_blocks for loop in self.loops])

    @property
    def flops(self) -> float:
        """Floating-point operations of one pass; convolutions count their direct form whatever the algorithm."""
        return sum(loop.flops for loop in self.loops)

    @property
    def bytes(self) -> float:
        return sum(loop.bytes for loop in self.loops)

    def least_traffic(self, loop: BlockLoop) -> tuple[float, float]:
        """Bytes that must be read and bytes that must be written for a loop whatever its blocks: each region once.

        Blocks that read the same weights count them each in `BlockLoop.bytes`; here they count once. Regions that
        overlap without being the same count in full, up to the size of the buffer. Both together are never more than
        `BlockLoop.bytes`, which knows of regions that are declared whole and touched in part, such as the rows of an
        embedding; then reads count as what the writes leave of that.
        """
        if isinstance(loop.blocks, UniformBlocks):
            return loop.bytes, 0.0
        regions = dict.fromkeys(  # in order, so that sums have the same bits in every process
            (access.buffer, access.box, way)
            for block in loop.blocks
            for access in block.accesses
            for way in ("read", "write")
            if access.kind not in (READ, WRITE) or ACCESS_KINDS[access.kind] == way
        )
        moved: dict[tuple[str, str], float] = {}
        for name, box, way in regions:
            buffer = self.buffers[name]
            part = float(buffer.size_bytes)
            for (start, stop), extent in zip(box, buffer.shape, strict=False):
                part *= (stop - start) / extent
            moved[name, way] = min(moved.get((name, way), 0.0) + part, float(buffer.size_bytes))
        read, written = (sum(size for (_, kind), size in moved.items() if kind == way) for way in ("read", "write"))
        written = min(written, loop.bytes)
        return min(read, loop.bytes - written), written

    def least_bytes(self, loop: BlockLoop) -> float:
        """Return the sum of `least_traffic`."""
        return sum(self.least_traffic(loop))

    def task_name(self, task: int) -> str:
        """Readable name of a task: its loop and block."""
        if not 0 <= task < self.num_tasks:
            raise UsageError(f"task must be in [0, {self.num_tasks}), the tasks of {self.name!r}, got {task}")
        loop = self.loops[int(self.task_loop[task])]
        return f"{loop.name}[{task - loop.first_task}]"

    def memory_bytes(self) -> dict[str, int]:
        """Bytes by role; buffers that share memory count once, under "arena"."""
        sizes: dict[str, int] = {}
        arenas: dict[int, int] = {}
        for buffer in self.buffers.values():
            if buffer.name in self.arena_of:
                arena = self.arena_of[buffer.name]
                arenas[arena] = max(arenas.get(arena, 0), buffer.size_bytes)
            else:
                sizes[buffer.role] = sizes.get(buffer.role, 0) + buffer.size_bytes
        if arenas:
            sizes["arena"] = sum(arenas.values())
        return sizes


for _kind in (Plan, BlockLoop):
    refuse_copies(_kind, "call lower(), or make the plan, where it is needed")
