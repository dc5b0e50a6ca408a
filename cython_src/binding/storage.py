"""Memory: parameters, optimizer state and statistics, shared by the plans that train, evaluate and infer."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ..affinity import kept_affinity
from ..errors import UsageError, did_you_mean, refuse_copies
from ..plan.model import READ, BlockLoop, Buffer, Plan, UniformBlocks

PAGE_BYTES = 4096


def aligned_empty(shape: tuple[int, ...], dtype: Any = "float32", alignment: int = 64) -> np.ndarray:
    """Uninitialised C-contiguous array that starts at a multiple of `alignment` bytes."""
    dtype = np.dtype(dtype)
    num_bytes = math.prod(shape) * dtype.itemsize
    raw = np.empty(num_bytes + alignment, dtype=np.uint8)
    offset = -raw.ctypes.data % alignment
    return raw[offset : offset + num_bytes].view(dtype).reshape(shape)


def view_of(plan: Plan, arrays: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """Array that users know as `name`: a buffer, or one of the plan's aliases (PyTorch names, activations). Raises
    `UsageError`: neither is called so."""
    aliases = plan.attributes.get("aliases", {})
    if not isinstance(name, str):
        raise UsageError(f"the name of an array must be a text, got {name!r}")
    if name in aliases:
        return aliases[name](arrays)
    if name in arrays:
        return arrays[name]
    known = sorted({*aliases, *arrays})
    raise UsageError(f"no array is called {name!r}; known: {', '.join(known)}{did_you_mean(name, known)}")


@dataclass
class _Guard:
    """Bytes beside a buffer that no kernel may write."""

    name: str
    first: int  # index of the first byte, counted from the buffer's start
    memory: np.ndarray
    value: int = 0


class Storage:
    """Owner of persistent buffers.

    Several plans bind to one storage and see the same parameters. Transient buffers belong to each binding.

    Parameters
    ----------
    guard_bytes : int
        Bytes kept free on both sides of every buffer, a multiple of 64, to find kernels that leave their buffers
        (`check_accesses`). Normal runs need none.
    allocate : callable, optional
        Function of a number of bytes that gives them as an uint8 array aligned to 64: memory of a special kind.
    homes : sequence of int
        CPU of each worker: this thread goes there before it zeroes what that worker would write first under a static
        schedule, so that pages lie on its NUMA node, whichever model runs. Default: all is zeroed where it is.
    """

    def __init__(
        self, guard_bytes: int = 0, allocate: Callable[[int], np.ndarray] | None = None, homes: Sequence[int] = ()
    ):
        if guard_bytes < 0 or guard_bytes % 64:
            raise UsageError(
                f"guard_bytes must be a multiple of 64, got {guard_bytes}; buffers are aligned to 64 bytes"
            )
        self.arrays: dict[str, np.ndarray] = {}
        self.in_use: dict = {}  # who runs a plan on it now, by process: one at most, the executors see to it
        self.guard_bytes = guard_bytes
        self.managed = False  # whether a device reaches the arrays without copies
        self.device_copies = None  # of persistent buffers; the business of cython_src/gpu/bind.py
        self._allocate = allocate or (lambda num_bytes: aligned_empty((num_bytes,), np.uint8))
        self._homes = homes
        self._guards: dict[str, list[_Guard]] = {}  # of each buffer; those of one arena have them in common

    def __repr__(self) -> str:
        size = sum(array.nbytes for array in self.arrays.values()) / 2**20
        return f"<storage of {len(self.arrays)} arrays, {size:.3g} MiB>"

    def fill_guards(self, value: int, buffers: Iterable[str] | None = None) -> None:
        """Set the guard bytes of some buffers, or of all, to `value`."""
        for guard in self._guards_of(buffers):
            guard.value = value
            guard.memory.fill(value)

    def broken_guard(self, buffers: Iterable[str] | None = None) -> tuple[str, int] | None:
        """Buffer and byte, counted from its start, of a guard byte that changed since `fill_guards`, or None."""
        for guard in self._guards_of(buffers):
            changed = guard.memory != guard.value
            if changed.any():
                return guard.name, guard.first + int(changed.argmax())
        return None

    def _guards_of(self, buffers: Iterable[str] | None) -> Iterator[_Guard]:
        names = self._guards if buffers is None else buffers
        return itertools.chain.from_iterable(self._guards.get(name, ()) for name in names)

    def _new(self, name: str, shape: tuple[int, ...], dtype: np.dtype, fresh: list[np.ndarray]) -> np.ndarray:
        """Allocate an array, and append its memory to what is to be zeroed."""
        size = math.prod(shape) * dtype.itemsize
        raw = self._allocate(size + 2 * self.guard_bytes)
        fresh.append(raw)
        if self.guard_bytes:
            self._guards.setdefault(name, []).extend(
                (
                    _Guard(name, -self.guard_bytes, raw[: self.guard_bytes]),
                    _Guard(name, size, raw[self.guard_bytes + size :]),
                )
            )
        return raw[self.guard_bytes : self.guard_bytes + size].view(dtype).reshape(shape)

    def arrays_for(
        self, plan: Plan, float_dtype: Literal["float64"] | None = None, given: Mapping[str, np.ndarray] | None = None
    ) -> dict[str, np.ndarray]:
        """Arrays for all buffers of a plan: persistent ones from here, transient ones new and zeroed, or `given`.

        Zeroing touches every page, so that no run pays for page faults, and fills halos once.
        """
        arrays: dict[str, np.ndarray] = {}
        fresh: list[np.ndarray] = []
        kept = {*self.arrays, *(given or ())}
        arena_bytes: dict[int, int] = {}
        for buffer in plan.buffers.values():
            dtype = _dtype(buffer, float_dtype)
            if given and buffer.name in given:
                arrays[buffer.name] = given[buffer.name]
            elif buffer.persistent:
                present = self.arrays.get(buffer.name)
                if present is None:
                    present = self.arrays[buffer.name] = self._new(buffer.name, buffer.shape, dtype, fresh)
                if present.shape != buffer.shape or present.dtype != dtype:
                    raise UsageError(
                        f"buffer {buffer.name!r} has shape {present.shape} and dtype {present.dtype} in this storage, "
                        f"plan {plan.name!r} needs {buffer.shape} and {dtype}; use a new storage"
                    )
                arrays[buffer.name] = present
            elif buffer.name in plan.arena_of:
                arena = plan.arena_of[buffer.name]
                size = math.prod(buffer.shape) * dtype.itemsize
                arena_bytes[arena] = max(arena_bytes.get(arena, 0), size)
            else:
                arrays[buffer.name] = self._new(buffer.name, buffer.shape, dtype, fresh)
        arenas = {
            arena: self._new(f"arena {arena}", (size,), np.dtype(np.uint8), fresh)
            for arena, size in arena_bytes.items()
        }
        for name, arena in plan.arena_of.items():
            if name in arrays:
                continue
            buffer = plan.buffers[name]
            dtype = _dtype(buffer, float_dtype)
            size = math.prod(buffer.shape) * dtype.itemsize
            arrays[name] = arenas[arena][:size].view(dtype).reshape(buffer.shape)
            self._guards.setdefault(name, []).extend(self._guards.get(f"arena {arena}", ())[-2:])
        if self._homes:
            _touch_first(plan, {name: array for name, array in arrays.items() if name not in kept}, self._homes)
        for raw in fresh:
            raw.fill(0)
        return arrays


def home_of(loop: BlockLoop, number: int, num_threads: int) -> int:
    """Return the thread to which a static schedule gives a block."""
    return number * num_threads // loop.num_blocks


def _touch_first(plan: Plan, arrays: Mapping[str, np.ndarray], homes: Sequence[int]) -> None:
    """Zero what the first loop that writes an array writes of it, each block on the CPU of its home."""
    touched: set[str] = set()
    with kept_affinity():
        for loop in plan.loops:
            parts: dict[int, list[tuple[str, tuple[slice, ...]]]] = {}
            for number, block in enumerate(() if isinstance(loop.blocks, UniformBlocks) else loop.blocks):
                parts.setdefault(homes[home_of(loop, number, len(homes))], []).extend(
                    (access.buffer, tuple(slice(*span) for span in access.box))
                    for access in block.accesses
                    if access.kind != READ and access.buffer in arrays and access.buffer not in touched
                )
            for cpu, boxes in parts.items():
                os.sched_setaffinity(0, {cpu})
                for name, box in boxes:
                    arrays[name][box] = 0
            touched.update(name for boxes in parts.values() for name, _ in boxes)


def _dtype(buffer: Buffer, float_dtype: str | None) -> np.dtype:
    dtype = np.dtype(buffer.dtype)
    return np.dtype(float_dtype) if float_dtype and dtype.kind == "f" else dtype


refuse_copies(Storage, "make one where it is needed")
