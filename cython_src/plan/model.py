"""The plan: one training step as an ordered list of block loops with declared accesses.

A plan is symbolic. It names kernels, buffers and the regions that each block reads and writes; it holds no pointer
and says nothing about who runs a block and when. Executing its loops in order is always right; every executor is a
legal reordering. Cut points split each buffer into cells, and all dependences, those of real OpenMP tasks included, are
found on the same cell ids (`Plan.accesses`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np

from ..errors import UsageError

READ, WRITE, UPDATE, CONCURRENT, COMMUTATIVE, REDUCTION = 0, 1, 2, 3, 4, 5
ACCESS_KINDS = ("read", "write", "update", "concurrent", "commutative", "reduction")
REDUCTION_OPERATIONS = ("sum", "product", "min", "max")
PHASES = ("load", "forward", "backward", "update", "other")

# Buffers with these roles outlive a step: they are owned by `Storage`, shared by several plans and never overlaid.
PERSISTENT_ROLES = frozenset({"parameter", "optimizer_state", "statistic", "dataset", "table", "log"})
TRANSIENT_ROLES = frozenset({"input", "activation", "gradient", "temporary", "packed"})


@dataclass(frozen=True)
class Buffer:
    """A named array.

    Parameters
    ----------
    name : str
    shape : tuple of int
        Physical shape, halo and vector lanes included.
    dtype : str
        Any NumPy dtype name; float buffers become float64 when the plan is bound to the reference.
    role : str
        One of `PERSISTENT_ROLES` or `TRANSIENT_ROLES`.
    carried : bool
        A transient buffer whose content is read by the next iteration (never overlaid on another).
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
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Access:
    """What a block does to a region: a box of up to four index ranges over the buffer's leading dimensions."""

    kind: int
    buffer: str
    box: tuple[tuple[int, int], ...] = ()
    operation: str = ""  # of a reduction


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


def reduction(buffer: str, *box: tuple[int, int], operation: str = "sum") -> Access:
    """The block folds something into the region: sums, products, minima or maxima.

    OpenMP's and OmpSs-2's `reduction`. It works on a private copy, filled with the neutral element, that a group of
    blocks shares; `PlanBuilder.build` adds the loops that fill and combine the copies, in a fixed order, so the plan
    stays deterministic.
    """
    if operation not in REDUCTION_OPERATIONS:
        raise UsageError(f"a reduction must be one of {', '.join(REDUCTION_OPERATIONS)}; got {operation!r}")
    return Access(REDUCTION, buffer, tuple(box), operation)


@dataclass(frozen=True)
class Block:
    """A unit of work.

    Parameters
    ----------
    bounds : tuple of int
        The index ranges the kernel works on, in the order of its KernelSpec.
    accesses : tuple of Access
    flops, bytes : float
        Arithmetic operations, and bytes that must move at least, for the cost model.
    operands : mapping of str to str, optional
        Operands for which this block uses another buffer than its loop.
    affinity : int, optional
        Number of the worker that should run the block, modulo the number of workers; replayed graphs follow this hint.
    """

    bounds: tuple[int, ...]
    accesses: tuple[Access, ...]
    flops: float = 0.0
    bytes: float = 0.0
    operands: Mapping[str, str] | None = None
    affinity: int | None = None


class UniformBlocks(Sequence):
    """Blocks kept as arrays, for graphs of up to millions of tasks; they are made into `Block` when looked at.

    Their accesses are found in the plan's access table only: `Block.accesses` is empty.

    Parameters
    ----------
    bounds : int32, shape (num_blocks, bounds_width)
    flops, bytes : float
        Of each block.
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


@dataclass(frozen=True, repr=False)
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


@dataclass(frozen=True, repr=False)
class AccessTable:
    """All accesses of a plan on cell ids, as flat int32 arrays: task -> accesses -> cell list -> cells.

    Attributes
    ----------
    task_offsets : int32, shape (num_tasks + 1,)
        Accesses of task t are task_offsets[t] ... task_offsets[t + 1] - 1.
    access_kind : uint8, shape (num_accesses,)
        READ, WRITE, UPDATE, CONCURRENT or COMMUTATIVE; reductions have been lowered to these.
    access_list : int32, shape (num_accesses,)
        Number of the access's cell list; equal lists are stored once.
    list_offsets, list_cells : int32
        Cells of list l are list_cells[list_offsets[l]:list_offsets[l + 1]], ascending.
    access_buffer : int32, shape (num_accesses,)
        Index of the access's buffer in `Plan.buffers`.

    Notes
    -----
    Cells are cells of storage. Buffers overlaid on the same memory have cells in common: pieces so small that each
    lies within one cell of every buffer that covers it. So overlaid memory needs no rule of its own.
    """

    num_tasks: int
    num_cells: int
    task_offsets: np.ndarray
    access_kind: np.ndarray
    access_list: np.ndarray
    list_offsets: np.ndarray
    list_cells: np.ndarray
    access_buffer: np.ndarray

    def __repr__(self) -> str:
        return f"<{len(self.access_kind)} accesses of {self.num_tasks} tasks to {self.num_cells} cells>"


@dataclass(frozen=True, repr=False)
class Plan:
    """One step, lowered for one network, batch and granularity. Made by `PlanBuilder.build`.

    Attributes
    ----------
    name : str
    buffers : mapping of str to Buffer
    loops : tuple of BlockLoop, in plan order
    scratch_bytes : int
        Scratch memory each worker must offer a block.
    iteration_stride : int
        Steps that one pass through the plan takes: 1, or the factor it was unrolled by.
    arena_of : mapping of str to int
        Overlaid buffers and their arena; empty with `memory="full"`.
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
    scratch_bytes: int = 0
    iteration_stride: int = 1
    arena_of: Mapping[str, int] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        size = sum(self.memory_bytes().values()) / 2**20
        return f"<plan {self.name!r}: {len(self.loops)} loops, {self.num_tasks} blocks, {size:.3g} MiB>"

    @cached_property
    def deterministic(self) -> bool:
        return not (self.accesses.access_kind >= CONCURRENT).any()

    @classmethod
    def from_accesses(
        cls, name: str, buffers: Iterable[Buffer], loops: Sequence[BlockLoop], accesses: AccessTable, **options: Any
    ) -> Plan:
        """A plan whose cells and accesses the caller has computed, for graphs too large for `PlanBuilder`.

        The sizes are checked, the independence of blocks is not: whoever builds the table answers for it.

        Parameters
        ----------
        options
            Further attributes of `Plan`.

        Raises
        ------
        UsageError
            The table does not fit the loops.
        """
        first_task = 0
        for loop in loops:
            if loop.first_task != first_task:
                raise UsageError(f"first_task of loop {loop.name!r} must be {first_task}, got {loop.first_task}")
            first_task += loop.num_blocks
        table = accesses
        if not table.num_tasks == len(table.task_offsets) - 1 == first_task:
            raise UsageError(f"the access table must have {first_task} tasks as the loops do, got {table.num_tasks}")
        lengths = {
            int(table.task_offsets[-1]),
            len(table.access_list),
            len(table.access_kind),
            len(table.access_buffer),
        }
        if len(lengths) > 1 or table.list_offsets[-1] != len(table.list_cells):
            raise UsageError("the offsets of an access table must end at the length of what they index; rebuild it")
        if len(table.access_kind) and table.access_kind.max() > COMMUTATIVE:
            raise UsageError("an access table holds no reductions, which PlanBuilder lowers; got one, make it updates")
        if len(table.list_cells) and not 0 <= table.list_cells.min() <= table.list_cells.max() < table.num_cells:
            raise UsageError(f"cells of an access table must be in [0, {table.num_cells}); rebuild it")
        return cls(
            name=name,
            buffers=MappingProxyType({buffer.name: buffer for buffer in buffers}),
            loops=tuple(loops),
            accesses=table,
            **options,
        )

    @cached_property
    def num_tasks(self) -> int:
        return sum(loop.num_blocks for loop in self.loops)

    @cached_property
    def task_loop(self) -> np.ndarray:
        """Index of each task's loop, int32, shape (num_tasks,)."""
        return np.repeat(np.arange(len(self.loops), dtype=np.int32), [loop.num_blocks for loop in self.loops])

    @cached_property
    def affinity(self) -> np.ndarray | None:
        """Worker that each task asks for, -1 for any; int32, shape (num_tasks,); None if no task asks."""
        found = np.full(self.num_tasks, -1, np.int32)
        for loop in self.loops:
            if not isinstance(loop.blocks, UniformBlocks):
                for number, block in enumerate(loop.blocks):
                    if block.affinity is not None:
                        found[loop.first_task + number] = block.affinity
        return found if (found >= 0).any() else None

    @property
    def flops(self) -> float:
        """Floating-point operations of one pass; convolutions count their direct form whatever the algorithm."""
        return sum(loop.flops for loop in self.loops)

    @property
    def bytes(self) -> float:
        return sum(loop.bytes for loop in self.loops)

    def task_name(self, task: int) -> str:
        """Readable name of a task: its loop and block."""
        loop = self.loops[int(self.task_loop[task])]
        return f"{loop.name}[{task - loop.first_task}]"

    def memory_bytes(self) -> dict[str, int]:
        """Bytes by role; overlaid buffers count once, under "arena"."""
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


class PlanBuilder:
    """Collects buffers and loops in order, then checks and freezes them."""

    def __init__(self, name: str, **attributes: Any):
        self.name = name
        self.attributes = dict(attributes)
        self._buffers: dict[str, Buffer] = {}
        self._loops: list[BlockLoop] = []
        self._scratch_bytes = 0
        self._num_tasks = 0
        self._iteration_stride = 1
        self._reduction_groups = 8

    def buffer(
        self, name: str, shape: Sequence[int], dtype: str = "float32", role: str = "activation", carried: bool = False
    ) -> str:
        """Declare a buffer and return its name. Declaring the same buffer again is allowed, another shape is not."""
        if role not in PERSISTENT_ROLES | TRANSIENT_ROLES:
            known = ", ".join(sorted(PERSISTENT_ROLES | TRANSIENT_ROLES))
            raise UsageError(f"role of buffer {name!r} must be one of {known}; got {role!r}")
        if any(n < 1 for n in shape):
            raise UsageError(f"shape of buffer {name!r} must be positive in every dimension, got {tuple(shape)}")
        new = Buffer(name, tuple(int(n) for n in shape), np.dtype(dtype).name, role, carried)
        if self._buffers.setdefault(name, new) != new:
            raise UsageError(f"buffer {name!r} was declared as {self._buffers[name]}, now as {new}; rename one")
        return name

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a declared buffer."""
        return self._buffers[name].shape

    def loop(
        self,
        name: str,
        kernel: str,
        operands: Mapping[str, str],
        blocks: Iterable[Block],
        *,
        attributes: Mapping[str, float | int] | None = None,
        layer: str = "",
        phase: str = "other",
        iteration_offset: int = 0,
    ) -> BlockLoop:
        """Append a loop. `operands` maps the kernel's operand names to buffers."""
        blocks = tuple(blocks)
        if not blocks:
            raise UsageError(f"loop {name!r} must have at least one block, got none; leave the loop out")
        if phase not in PHASES:
            raise UsageError(f"phase of loop {name!r} must be one of {', '.join(PHASES)}; got {phase!r}")
        for operand, buffer in operands.items():
            if buffer not in self._buffers:
                raise UsageError(f"operand {operand!r} of loop {name!r} must be a declared buffer, got {buffer!r}")
        named = set(operands.values())
        for block in blocks:
            for access in block.accesses:
                if access.buffer not in named:
                    raise UsageError(
                        f"loop {name!r} declares an access to {access.buffer!r}, which is no operand of its kernel; "
                        f"operands are {', '.join(sorted(named))}"
                    )
        loop = BlockLoop(
            name=name,
            kernel=kernel,
            operands=MappingProxyType(dict(operands)),
            attributes=MappingProxyType(dict(attributes or {})),
            blocks=blocks,
            layer=layer,
            phase=phase,
            iteration_offset=iteration_offset,
            first_task=self._num_tasks,
        )
        self._loops.append(loop)
        self._num_tasks += len(blocks)
        return loop

    def scratch(self, num_bytes: int) -> None:
        """Ask for at least `num_bytes` of scratch memory for each worker."""
        self._scratch_bytes = max(self._scratch_bytes, int(num_bytes))

    def unrolled(self, factor: int) -> None:
        """Declare that one pass through the plan takes `factor` steps (loops carry their `iteration_offset`)."""
        self._iteration_stride = int(factor)

    def reduction_groups(self, groups: int) -> None:
        """Deal blocks that reduce into a buffer to at most `groups` private copies; default: 8."""
        self._reduction_groups = groups

    def build(self, memory: str = "full") -> Plan:
        """Check the plan, lower its reductions (reductions.py) and freeze it.

        Parameters
        ----------
        memory : {"full", "shared"}
            `shared` overlays transient buffers whose lifetimes, in plan order, do not meet. It saves memory and adds
            dependences, which the graph marks as caused by sharing.

        Raises
        ------
        UsageError
            A box outside its buffer, two blocks of one loop that conflict, or a transient buffer that is read
            before it was written.
        """
        if memory not in ("full", "shared"):
            raise UsageError(f"memory must be 'full' or 'shared', got {memory!r}")
        buffers, loops = self._buffers, tuple(self._loops)
        table, cuts, first_cell = _build_access_table(buffers, loops)
        _check_blocks_are_independent(buffers, loops, table)
        if (table.access_kind == REDUCTION).any():
            from .reductions import lower_reductions

            buffers, lowered = lower_reductions(buffers, loops, self._reduction_groups)
            loops = tuple(lowered)
            table, cuts, first_cell = _build_access_table(buffers, loops)
        _check_transient_reads(buffers, loops, table)
        arena_of = _overlay_buffers(buffers, loops) if memory == "shared" else {}
        if arena_of:
            table = _overlay_cells(buffers, table, cuts, first_cell, arena_of)
        return Plan(
            name=self.name,
            buffers=MappingProxyType(dict(buffers)),
            loops=loops,
            accesses=table,
            scratch_bytes=self._scratch_bytes,
            iteration_stride=self._iteration_stride,
            arena_of=MappingProxyType(arena_of),
            attributes=MappingProxyType({**self.attributes, "memory": memory}),
        )


def ranges(total: int, size: int) -> list[tuple[int, int]]:
    """Cut [0, total) into ranges of `size`, the last one shorter where it does not divide."""
    if size < 1:
        raise UsageError(f"a block must hold at least one element, got {size}")
    return [(start, min(start + size, total)) for start in range(0, total, size)]


def _build_access_table(
    buffers: Mapping[str, Buffer], loops: Sequence[BlockLoop]
) -> tuple[AccessTable, dict[str, list[np.ndarray]], dict[str, int]]:
    """Split buffers at every cut point and express each access as a list of cells.

    Also returns each buffer's cut points, a sorted array for each of its leading dimensions, and its first cell.
    """
    cuts: dict[str, list[set[int]]] = {}
    for loop in loops:
        for block in loop.blocks:
            for access in block.accesses:
                shape = buffers[access.buffer].shape
                if len(access.box) > min(4, len(shape)):
                    raise UsageError(
                        f"a region of {access.buffer!r} may have at most {min(4, len(shape))} ranges, "
                        f"got {len(access.box)} in loop {loop.name!r}"
                    )
                dims = cuts.setdefault(access.buffer, [{0, n} for n in shape[:4]])
                for cut, (start, stop), n in zip(dims, access.box, shape, strict=False):
                    if not 0 <= start < stop <= n:
                        raise UsageError(
                            f"a region of {access.buffer!r} must lie within shape {shape} and hold an element, "
                            f"got {access.box} in loop {loop.name!r}"
                        )
                    cut.update((start, stop))

    index_of = {name: i for i, name in enumerate(buffers)}
    first_cell: dict[str, int] = {}
    position: dict[str, list[dict[int, int]]] = {}
    grid: dict[str, tuple[int, ...]] = {}
    num_cells = 0
    for name, dims in cuts.items():
        first_cell[name] = num_cells
        position[name] = [{cut: i for i, cut in enumerate(sorted(dim))} for dim in dims]
        grid[name] = tuple(len(dim) - 1 for dim in dims)
        num_cells += math.prod(grid[name])

    list_of_region: dict[tuple[str, tuple[tuple[int, int], ...]], int] = {}
    lists: list[np.ndarray] = []
    task_offsets = [0]
    access_kind: list[int] = []
    access_list: list[int] = []
    access_buffer: list[int] = []
    for loop in loops:
        for block in loop.blocks:
            for access in block.accesses:
                key = (access.buffer, access.box)
                number = list_of_region.get(key)
                if number is None:
                    spans = []
                    for d, extent in enumerate(grid[access.buffer]):
                        if d < len(access.box):
                            where = position[access.buffer][d]
                            spans.append(np.arange(where[access.box[d][0]], where[access.box[d][1]]))
                        else:
                            spans.append(np.arange(extent))
                    cells = np.zeros(1, dtype=np.int64)
                    for extent, span in zip(grid[access.buffer], spans, strict=True):
                        cells = (cells[:, None] * extent + span[None, :]).ravel()
                    number = len(lists)
                    lists.append((cells + first_cell[access.buffer]).astype(np.int32))
                    list_of_region[key] = number
                access_kind.append(access.kind)
                access_list.append(number)
                access_buffer.append(index_of[access.buffer])
            task_offsets.append(len(access_list))

    table = AccessTable(
        num_tasks=len(task_offsets) - 1,
        num_cells=num_cells,
        task_offsets=np.array(task_offsets, dtype=np.int32),
        access_kind=np.array(access_kind, dtype=np.uint8),
        access_list=np.array(access_list, dtype=np.int32),
        list_offsets=np.concatenate([[0], np.cumsum([len(c) for c in lists])]).astype(np.int32),
        list_cells=np.concatenate(lists) if lists else np.zeros(0, np.int32),
        access_buffer=np.array(access_buffer, dtype=np.int32),
    )
    return table, {name: [np.array(sorted(dim)) for dim in dims] for name, dims in cuts.items()}, first_cell


def _overlay_buffers(buffers: Mapping[str, Buffer], loops: Sequence[BlockLoop]) -> dict[str, int]:
    """Put transient buffers of one dtype whose lifetimes do not meet on common arenas, the largest first."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for number, loop in enumerate(loops):
        for name in {access.buffer for block in loop.blocks for access in block.accesses}:
            first.setdefault(name, number)
            last[name] = number
    candidates = [b for b in buffers.values() if not b.persistent and not b.carried and b.name in first]
    arenas: list[list[str]] = []
    for buffer in sorted(candidates, key=lambda b: (-b.size_bytes, first[b.name], b.name)):
        for tenants in arenas:
            # One dtype an arena: all its buffers grow alike when the plan is bound to float64.
            if buffer.dtype == buffers[tenants[0]].dtype and all(
                last[buffer.name] < first[t] or last[t] < first[buffer.name] for t in tenants
            ):
                tenants.append(buffer.name)
                break
        else:
            arenas.append([buffer.name])
    shared = [tenants for tenants in arenas if len(tenants) > 1]
    return {name: number for number, tenants in enumerate(shared) for name in tenants}


def _overlay_cells(
    buffers: Mapping[str, Buffer],
    table: AccessTable,
    cuts: Mapping[str, list[np.ndarray]],
    first_cell: Mapping[str, int],
    arena_of: Mapping[str, int],
) -> AccessTable:
    """Express the accesses on cells of storage: buffers overlaid on one arena get cells in common.

    A cell of an arena is a set of elements that belong to the same cell of every tenant.
    """
    pieces: list[np.ndarray] = [np.zeros(0, np.int32)] * table.num_cells  # cell of a buffer -> cells of storage
    num_cells = 0
    tenants: dict[int, list[str]] = {}
    for name in cuts:
        if name in arena_of:
            tenants.setdefault(arena_of[name], []).append(name)
            continue
        count = math.prod(len(c) - 1 for c in cuts[name])
        for i in range(count):
            pieces[first_cell[name] + i] = np.array([num_cells + i], dtype=np.int32)
        num_cells += count
    for names in tenants.values():
        runs = [_cell_runs(buffers[name].shape, cuts[name]) for name in names]
        starts = np.unique(np.concatenate([start for start, _ in runs]))[:-1]
        labels = np.stack([label[np.searchsorted(start, starts, side="right") - 1] for start, label in runs])
        kinds = np.unique(labels, axis=1)
        for name, cells in zip(names, kinds, strict=True):
            order = np.argsort(cells, kind="stable")
            bounds = np.searchsorted(cells[order], np.arange(cells.max() + 2))
            for cell in range(cells.max() + 1):
                inside = order[bounds[cell] : bounds[cell + 1]]
                pieces[first_cell[name] + cell] = (num_cells + inside).astype(np.int32)
        num_cells += kinds.shape[1]
    lists = [
        np.sort(np.concatenate([pieces[c] for c in table.list_cells[start:stop].tolist()]))
        for start, stop in itertools.pairwise(table.list_offsets.tolist())
    ]
    return replace(
        table,
        num_cells=num_cells,
        list_offsets=np.concatenate([[0], np.cumsum([len(c) for c in lists])]).astype(np.int32),
        list_cells=np.concatenate(lists) if lists else np.zeros(0, np.int32),
    )


def _cell_runs(shape: tuple[int, ...], cuts: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """First element and cell of each run of elements in one cell; the last run, cell -1, starts past the end."""
    inner = max((d for d, c in enumerate(cuts) if len(c) > 2), default=-1)  # the innermost dimension that is cut
    start, label = np.zeros(1, np.int64), np.zeros(1, np.int64)
    for d in range(inner + 1):
        stride = math.prod(shape[d + 1 :])
        if d < inner:
            index = np.arange(shape[d])
            where = np.searchsorted(cuts[d], index, side="right") - 1
        else:
            index, where = cuts[d][:-1], np.arange(len(cuts[d]) - 1)
        start = (start[:, None] + index * stride).ravel()
        label = (label[:, None] * (len(cuts[d]) - 1) + where).ravel()
    return np.append(start, math.prod(shape)), np.append(label, -1)


def _check_blocks_are_independent(
    buffers: Mapping[str, Buffer], loops: Sequence[BlockLoop], table: AccessTable
) -> None:
    """Refuse a loop in which one block writes a cell that another block touches, unless both may do so in any order.

    Also refuse a block that touches a cell both in any order and otherwise.
    """
    length = np.diff(table.list_offsets)
    for loop in loops:
        tasks = table.task_offsets[loop.first_task : loop.first_task + loop.num_blocks + 1]
        span = slice(tasks[0], tasks[-1])
        which = table.access_list[span]
        if not len(which) or (loop.num_blocks == 1 and table.access_kind[span].max() < CONCURRENT):
            continue
        block = np.repeat(np.arange(loop.num_blocks), np.diff(tasks))
        access = np.repeat(np.arange(len(which)), length[which])
        cells = np.concatenate([table.list_cells[table.list_offsets[w] : table.list_offsets[w + 1]] for w in which])
        order = np.argsort(cells, kind="stable")
        cells, access = cells[order], access[order]
        group = np.flatnonzero(np.diff(cells, prepend=-1))
        kinds = table.access_kind[span][access]
        weakest, strongest = np.minimum.reduceat(kinds, group), np.maximum.reduceat(kinds, group)
        low = np.minimum.reduceat(block[access], group)
        high = np.maximum.reduceat(block[access], group)
        any_order = (weakest == strongest) & (strongest >= CONCURRENT)
        bad = np.flatnonzero(((low != high) & (strongest != READ) | (strongest >= CONCURRENT)) & ~any_order)
        if not len(bad):
            continue
        where = bad[0]
        name = list(buffers)[table.access_buffer[span][access[group[where]]]]
        if low[where] != high[where]:
            raise UsageError(
                f"blocks of one loop must be independent, but blocks {low[where]} and {high[where]} of loop "
                f"{loop.name!r} meet in buffer {name!r}, which one of them writes; make it a chain of loops or write "
                f"partial buffers"
            )
        raise UsageError(
            f"a block may not touch a region both as concurrent, commutative or reduction and otherwise, but block "
            f"{low[where]} of loop {loop.name!r} does so in buffer {name!r}; declare an update"
        )


def _check_transient_reads(buffers: Mapping[str, Buffer], loops: Sequence[BlockLoop], table: AccessTable) -> None:
    """Refuse a plan that reads a transient, not carried cell before any task of the same pass has written it."""
    kept = [buffer.persistent or buffer.carried for buffer in buffers.values()]
    names = list(buffers)
    written = np.zeros(table.num_cells, dtype=bool)
    cells = [table.list_cells[start:stop] for start, stop in itertools.pairwise(table.list_offsets.tolist())]
    kinds, lists, owners = table.access_kind.tolist(), table.access_list.tolist(), table.access_buffer.tolist()
    offsets = table.task_offsets.tolist()
    for loop in loops:
        for number in range(loop.num_blocks):
            span = range(offsets[loop.first_task + number], offsets[loop.first_task + number + 1])
            for a in span:
                if kinds[a] != WRITE and not kept[owners[a]] and not written[cells[lists[a]]].all():
                    raise UsageError(
                        f"{loop.name}[{number}] reads buffer {names[owners[a]]!r} before any block wrote that part of "
                        f"it; write it first, or declare the buffer as carried or persistent"
                    )
            for a in span:
                if kinds[a] == WRITE:
                    written[cells[lists[a]]] = True


def commutative_locks(table: AccessTable) -> tuple[int, np.ndarray, np.ndarray]:
    """Locks that keep commutative accesses apart.

    Returns
    -------
    num_locks : int
    offsets : int32, shape (num_tasks + 1,)
    locks : int32
        Task t needs locks[offsets[t]:offsets[t + 1]], ascending. Regions that share a cell share a lock.
    """
    chosen = np.flatnonzero(table.access_kind == COMMUTATIVE)
    parent: dict[int, int] = {}

    def root(cell: int) -> int:
        while parent.setdefault(cell, cell) != cell:
            parent[cell] = cell = parent[parent[cell]]
        return cell

    lists = np.unique(table.access_list[chosen]).tolist()
    for which in lists:
        cells = table.list_cells[table.list_offsets[which] : table.list_offsets[which + 1]].tolist()
        for cell in cells:
            parent[root(cell)] = root(cells[0])
    number: dict[int, int] = {}
    lock_of = {w: number.setdefault(root(int(table.list_cells[table.list_offsets[w]])), len(number)) for w in lists}
    task = np.repeat(np.arange(table.num_tasks), np.diff(table.task_offsets))[chosen]
    pairs = np.unique(
        np.array([task, [lock_of[w] for w in table.access_list[chosen].tolist()]], dtype=np.int64).reshape(2, -1),
        axis=1,
    )
    offsets = np.searchsorted(pairs[0], np.arange(table.num_tasks + 1)).astype(np.int32)
    return len(number), offsets, pairs[1].astype(np.int32)


def block_grid(*dimensions: Sequence[tuple[int, int]]) -> Iterable[tuple[tuple[int, int], ...]]:
    """All combinations of ranges, the last dimension running fastest."""
    return itertools.product(*dimensions)
