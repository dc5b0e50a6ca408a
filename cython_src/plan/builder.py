"""Building a plan: buffers and loops in order, then checked, cut into cells and frozen."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ..errors import UsageError, check_choice
from ..reading import Name, Number
from .cells import build_access_table, share_memory, storage_cells
from .chained_sums import rewrite_chains
from .checks import check_blocks_are_independent, check_transient_reads
from .model import PERSISTENT_ROLES, PHASES, REDUCTION, TRANSIENT_ROLES, Block, BlockLoop, Buffer, Plan
from .reductions import lower_reductions


@runtime_checkable
class Kernel(Protocol):
    """A description of a kernel that makes a loop's blocks; see `KernelSpec.blocks`."""

    name: str
    blocks: Callable[..., Sequence[Block]]


class NameTakenError(UsageError):
    """A buffer has the name of a layer's map; `layer`: the one whose map may be renamed."""

    def __init__(self, name: str, layer: str):
        super().__init__(
            f"the map of layer {layer!r} must have a name of its own, got that of buffer {name!r}; rename it"
        )
        self.layer = layer


class PlanBuilder:
    """Collects buffers and loops in order, then checks and freezes them."""

    def __init__(self, name: Name, **attributes: Any):
        self.name = name
        self.attributes = dict(attributes)
        self._buffers: dict[str, Buffer] = {}
        self.layer_of: dict[str, str] = {}  # buffer -> layer whose map it is; "": none
        self._loops: list[BlockLoop] = []
        self._num_tasks = 0
        self._iteration_stride = 1
        self._reduction_groups = 8

    def __repr__(self) -> str:
        return f"<builder of plan {self.name!r}: {len(self._loops)} loops on {len(self._buffers)} buffers>"

    def buffer(
        self,
        name: Name,
        shape: Sequence[int],
        dtype: str = "float32",
        role: str = "activation",
        carried: bool = False,
        layer: str = "",
    ) -> str:
        """Declare a buffer and return its name. Declaring the same buffer again is allowed, another shape is not;
        `layer`: whose map it is, which must not be another buffer (`NameTakenError`)."""
        if role not in PERSISTENT_ROLES | TRANSIENT_ROLES:
            known = ", ".join(sorted(PERSISTENT_ROLES | TRANSIENT_ROLES))
            raise UsageError(f"role of buffer {name!r} must be one of {known}; got {role!r}")
        if any(n < 1 for n in shape):
            raise UsageError(f"shape of buffer {name!r} must be positive in every dimension, got {tuple(shape)}")
        try:
            known_dtype = np.dtype(dtype).name
        except TypeError:
            raise UsageError(f"dtype of buffer {name!r} must be one of NumPy's, got {dtype!r}") from None
        if (owner := self.layer_of.setdefault(name, layer)) != layer:
            raise NameTakenError(name, layer or owner)
        new = Buffer(name, tuple(int(n) for n in shape), known_dtype, role, carried)
        if self._buffers.setdefault(name, new) != new:
            was, now = (f"{b.role} of {b.dtype} {b.shape}{' carried' * b.carried}" for b in (self._buffers[name], new))
            raise UsageError(f"buffer {name!r} must have one use, got {was} and {now}; rename one, or the layer")
        return name

    @property
    def loops(self) -> Sequence[BlockLoop]:
        """The loops that were appended so far."""
        return self._loops

    @property
    def buffers(self) -> Mapping[str, Buffer]:
        """The buffers that were declared so far, by name."""
        return self._buffers

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a declared buffer."""
        check_choice("the buffer", name, self._buffers)
        return self._buffers[name].shape

    def loop(
        self,
        name: Name,
        kernel: str | Kernel,
        operands: Mapping[str, str],
        blocks: Iterable,
        *,
        attributes: Mapping[str, float | int] | None = None,
        layer: str = "",
        phase: str = "other",
        iteration_offset: int = 0,
        chain: str = "",
    ) -> BlockLoop:
        """Append a loop.

        Parameters
        ----------
        kernel : str or KernelSpec
            A kernel's name; or its description, which says what the kernel touches and belongs to this plan.
        operands : mapping
            Operand of the kernel -> buffer.
        blocks : iterable
            `Block`s; of a description the bounds of each block alone, a tuple or a mapping.
        chain : str
            Of sums that `rewrite_chains` may write in another form; "": none.
        """
        if isinstance(kernel, str):
            kernel_name = kernel
        else:
            kernel_name = kernel.name
            if self.attributes.setdefault("kernels", {}).setdefault(kernel_name, kernel) is not kernel:
                raise UsageError(f"kernels of a plan must have different names, got {kernel_name!r} twice; rename one")
            blocks = kernel.blocks(operands, attributes or {}, self._buffers, blocks)
        blocks = tuple(blocks)
        if not blocks:
            raise UsageError(f"loop {name!r} must have at least one block, got none; leave the loop out")
        check_choice(f"phase of loop {name!r}", phase, PHASES)
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
            kernel=kernel_name,
            operands=MappingProxyType(dict(operands)),
            attributes=MappingProxyType(dict(attributes or {})),
            blocks=blocks,
            layer=layer,
            phase=phase,
            iteration_offset=iteration_offset,
            first_task=self._num_tasks,
            chain=chain,
        )
        self._loops.append(loop)
        self._num_tasks += len(blocks)
        return loop

    def unrolled(self, factor: Number) -> None:
        """Declare that one pass through the plan takes `factor` steps (loops carry their `iteration_offset`)."""
        self._iteration_stride = factor

    def rewrite_chains(self, form: str) -> None:
        """Write the chains of loops that were appended so far in another form of `chained_sums.FORMS`."""
        self._buffers, self._loops = rewrite_chains(self._buffers, self._loops, form)
        self._num_tasks = sum(loop.num_blocks for loop in self._loops)

    def reduction_groups(self, groups: Number) -> None:
        """Deal blocks that reduce into a buffer to at most `groups` private copies; default: 8."""
        self._reduction_groups = groups

    def build(self, memory: str = "full") -> Plan:
        """Check the plan, lower its reductions (reductions.py) and freeze it.

        Parameters
        ----------
        memory : {"full", "shared"}
            `shared`: transient buffers whose lifetimes, in plan order, do not meet share memory. It saves memory and
            adds dependences.

        Raises
        ------
        UsageError
            A box outside its buffer, two blocks of one loop that conflict, or a transient buffer that is read
            before it was written.
        """
        if memory not in ("full", "shared"):
            raise UsageError(f"memory must be 'full' or 'shared', got {memory!r}")
        buffers, loops = self._buffers, tuple(self._loops)
        table, cuts, first_cell = build_access_table(buffers, loops)
        check_blocks_are_independent(buffers, loops, table)
        if (table.access_kind == REDUCTION).any():
            buffers, lowered = lower_reductions(buffers, loops, self._reduction_groups)
            loops = tuple(lowered)
            table, cuts, first_cell = build_access_table(buffers, loops)
        check_transient_reads(buffers, loops, table)
        arena_of = share_memory(buffers, loops) if memory == "shared" else {}
        if arena_of:
            table = storage_cells(buffers, table, cuts, first_cell, arena_of)
        return Plan(
            name=self.name,
            buffers=MappingProxyType(dict(buffers)),
            loops=loops,
            accesses=table,
            iteration_stride=self._iteration_stride,
            arena_of=MappingProxyType(arena_of),
            attributes=MappingProxyType({**self.attributes, "memory": memory}),
        )


def ranges(total: int, size: int) -> list[tuple[int, int]]:
    """Cut [0, total) into ranges of `size`, the last one shorter where it does not divide."""
    if size < 1:
        raise UsageError(f"a block must hold at least one element, got {size}")
    if total > size << 31:
        raise UsageError(f"a dimension must be cut into less than 2^31 blocks, got {total} by {size}; enlarge the size")
    return [(start, min(start + size, total)) for start in range(0, total, size)]


def block_grid(*dimensions: Sequence[tuple[int, int]]) -> Iterable[tuple[tuple[int, int], ...]]:
    """All combinations of ranges, the last dimension running fastest."""
    return itertools.product(*dimensions)


def block_bounds(**dimensions: Sequence[tuple[int, int]]) -> Iterator[dict[str, int]]:
    """All combinations of ranges by name, the last dimension running fastest: `n` gives the bounds n0 and n1."""
    names = [f"{name}{end}" for name in dimensions for end in (0, 1)]
    for block in block_grid(*dimensions.values()):
        yield dict(zip(names, itertools.chain(*block), strict=True))
