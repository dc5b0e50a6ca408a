"""Descriptions of kernels, and the registry in which a module that holds kernels enters them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...errors import UsageError
from ...plan.model import Access, Block, BlockLoop, Buffer
from .arguments import Arguments

Shapes = Mapping[str, tuple[int, ...]]
Regions = Callable[[Mapping, Mapping, Shapes], Iterable[Access]]
Reference = Callable[[Mapping, Mapping, Mapping, int], int | None]
Cost = Callable[[Mapping, Mapping, Shapes], tuple[float, float | None]]


@dataclass(frozen=True)
class KernelSpec:
    """One kernel.

    Parameters
    ----------
    name : str
    operands : tuple of str
        Order of the operands in `KernelArgs.operand`. A trailing "?" marks one that a loop may leave out.
    integers, reals : tuple of str
        Attributes, in the order of `KernelArgs.integers` and `KernelArgs.reals`. A trailing "?" marks an integer that a
        loop may leave out: it is 0 then.
    bounds : tuple of str
        Names of the columns of a block's bounds.
    reference : callable or None
        NumPy form: `f(operands, attributes, bounds, iteration)` with dicts by name; works in any float dtype.
    address : int or None
        Address of the compiled form, `int kernel(const void *args, Py_ssize_t block, const TaskContext *context)`.
    instruction_sets : bool
        The compiled form has inner loops for each instruction set (`KernelArgs.micro`).
    scratch_bytes : callable or None
        Bytes of scratch memory that the compiled form takes for a block of a loop, at most:
        `f(attributes, bounds, operands)` with the loop's attributes by name, the bounds of all its blocks by name, an
        int32 array each, and the names of the operands that it gives. None: it takes none.
    regions : callable or None
        What the kernel touches in a block: `f(attributes, bounds, shapes)` gives accesses to its operands, such as
        `read("input", bounds["n"])`; `bounds["n"]` is the range of "n0" and "n1", and `shapes` has the shape of the
        buffer behind each operand that a loop gives.
    cost : callable or None
        Floating-point operations and bytes of a block, by the same arguments; bytes may be None. None: no operations,
        and the bytes of all regions.
    algorithms : tuple of str
        Those of a convolution's pass, by the attribute "algorithm"; one where there is no such attribute.
    """

    name: str
    operands: tuple[str, ...]
    integers: tuple[str, ...] = ()
    reals: tuple[str, ...] = ()
    bounds: tuple[str, ...] = ()
    reference: Reference | None = None
    address: int | None = None
    instruction_sets: bool = True
    scratch_bytes: Callable[[Mapping[str, float | int], Mapping[str, np.ndarray], Set[str]], int] | None = None
    regions: Regions | None = None
    cost: Cost | None = None
    algorithms: tuple[str, ...] = ()
    optional: frozenset[str] = field(init=False)
    optional_integers: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        for names, optional in (("operands", "optional"), ("integers", "optional_integers")):
            given = getattr(self, names)
            object.__setattr__(self, optional, frozenset(name[:-1] for name in given if name.endswith("?")))
            object.__setattr__(self, names, tuple(name.rstrip("?") for name in given))
        self.take_regions()

    def take_regions(self) -> None:
        """Take the regions and the cost that `touches` declared for a kernel of this name."""
        if self.regions is None and self.name in _declared:
            for name, declared in zip(("regions", "cost"), _declared[self.name], strict=True):
                object.__setattr__(self, name, declared)

    def check(self, loop: BlockLoop) -> None:
        """Raise if a loop does not give the kernel exactly what it takes."""
        given, known = set(loop.operands), set(self.operands)
        if given - known or (known - self.optional) - given:
            raise UsageError(
                f"kernel {self.name!r} takes operands {', '.join(self.operands)}; loop {loop.name!r} gives "
                f"{', '.join(sorted(given))}"
            )
        attributes = {*self.integers, *self.reals}
        if set(loop.attributes) | self.optional_integers != attributes:
            raise UsageError(
                f"kernel {self.name!r} takes attributes {sorted(attributes)}; loop {loop.name!r} gives "
                f"{sorted(loop.attributes)}"
            )
        for block in loop.blocks if isinstance(loop.blocks, tuple) else loop.blocks[:1]:
            if len(block.bounds) != len(self.bounds):
                raise UsageError(
                    f"kernel {self.name!r} takes bounds {self.bounds}; loop {loop.name!r} gives {block.bounds}"
                )

    def attributes_of(self, loop: BlockLoop) -> dict[str, float | int]:
        """Return the attributes of a loop by name, with those that it leaves out."""
        return {**dict.fromkeys(self.optional_integers, 0), **loop.attributes}

    def algorithm_of(self, loop: BlockLoop) -> str | None:
        """Return the algorithm by which a loop computes a pass of a convolution; None for other loops."""
        return self.algorithms[int(loop.attributes.get("algorithm", 0))] if self.algorithms else None

    def blocks(
        self,
        operands: Mapping[str, str],
        attributes: Mapping[str, float | int],
        buffers: Mapping[str, Buffer],
        bounds: Iterable[Mapping[str, int] | Sequence[int]],
    ) -> list[Block]:
        """Return the blocks of a loop with what the kernel touches in each, and what that costs.

        Parameters
        ----------
        operands : mapping
            Operand -> its buffer's name.
        attributes : mapping
        buffers : mapping
            Buffers by name.
        bounds : iterable
            Of each block, by name or in the order of the kernel.

        Raises
        ------
        UsageError
            The kernel does not say what it touches.
        """
        if self.regions is None:
            raise UsageError(f"kernel {self.name!r} has no regions, so that its blocks must come with accesses")
        attributes = {**dict.fromkeys(self.optional_integers, 0), **attributes}
        shapes = {operand: buffers[name].shape for operand, name in operands.items() if name in buffers}
        result = []
        for given in bounds:
            named = Bounds(given if isinstance(given, Mapping) else zip(self.bounds, given, strict=True))
            touched = self.regions(attributes, named, shapes)
            accesses = tuple([Access(kind, operands[name], box) for kind, name, box in touched])
            flops, size = self.cost(attributes, named, shapes) if self.cost else (0.0, None)
            if size is None:
                size = float(sum(buffers[access.buffer].bytes_of(access.box) for access in accesses))
            result.append(Block(tuple(named[name] for name in self.bounds), accesses, flops, size))
        return result

    def scratch_of(self, loop: BlockLoop) -> int:
        """Return the bytes of scratch memory that a block of a loop takes, at most."""
        if self.scratch_bytes is None:
            return 0
        bounds = dict(zip(self.bounds, loop.bounds.T, strict=True))
        size = int(self.scratch_bytes(self.attributes_of(loop), bounds, set(loop.operands)))
        if size < 0:
            raise UsageError(f"scratch_bytes of kernel {self.name!r} must not be negative, got {size}")
        return size


class Bounds(dict):
    """Bounds of a block by name; `bounds["n"]` is the range (bounds["n0"], bounds["n1"])."""

    def __missing__(self, name: str) -> tuple[int, int]:
        start, stop = self.get(f"{name}0"), self.get(f"{name}1")
        if start is None or stop is None:
            raise KeyError(name)
        self[name] = start, stop
        return start, stop


def size(*ranges: tuple[int, int]) -> int:
    """Return the number of elements of a box."""
    return math.prod(stop - start for start, stop in ranges)


_specs: dict[str, KernelSpec] = {}
_declared: dict[str, tuple[Regions, Cost | None]] = {}


def touches(*kernels: str, cost: Cost | None = None) -> Callable[[Regions], Regions]:
    """Decorate the function that says what kernels touch: their `KernelSpec.regions`, with their `cost`."""

    def declare(regions: Regions) -> Regions:
        for kernel in kernels:
            _declared[kernel] = regions, cost
            if kernel in _specs:
                _specs[kernel].take_regions()
        return regions

    return declare


def register(spec: KernelSpec) -> KernelSpec:
    """Add a kernel; a name stands for one kernel for the life of the process."""
    if spec.name in _specs and _specs[spec.name] != spec:
        raise UsageError(f"a kernel called {spec.name!r} exists already; choose another name")
    _specs[spec.name] = spec
    return spec


def implement(
    kernels: Mapping[str, Arguments], name: str, address: int, **others: Any
) -> Callable[[Reference], Reference]:
    """Decorate the NumPy form of a kernel of a folder's `specs.py`: add it, with the compiled form at an address."""

    def add(reference: Reference) -> Reference:
        register(KernelSpec(name, reference=reference, address=address, **kernels[name]._asdict(), **others))
        return reference

    return add


def registered() -> Mapping[str, KernelSpec]:
    """Return the kernels that have been registered so far, by name."""
    return _specs


def lengths(bounds: Mapping[str, np.ndarray], *names: str) -> Iterable[tuple[int, ...]]:
    """Return the different sizes of a loop's blocks, for `KernelSpec.scratch_bytes`: lengths of the ranges
    [name0, name1)."""
    sizes = np.stack([bounds[f"{name}1"] - bounds[f"{name}0"] for name in names], axis=1)
    return {tuple(size) for size in sizes.tolist()}


def longest(bounds: Mapping[str, np.ndarray], name: str) -> int:
    """Return the length of the longest range [`name`0, `name`1) of a loop's blocks, for `KernelSpec.scratch_bytes`."""
    return int((bounds[f"{name}1"] - bounds[f"{name}0"]).max())
