"""Binding a plan to a GPU: device memory beside the host's, and a launch record for each block loop.

The same plan, from the same builder, with the same buffers and blocks as on the CPU; a launch runs a range of a loop's
blocks, or several loops. Host arrays are those of the CPU's binding: loops may also run there (`GpuBoundPlan.host`).
"""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ..binding.bind import BlockFailure, bind
from ..binding.data import load
from ..binding.storage import Storage, view_of
from ..errors import UsageError, check_choice
from ..kernels import kernel_table
from ..kernels.interface.grids import GUESSES, MAX_TILES
from ..plan.model import READ, WRITE, Plan, UniformBlocks
from ..shown import Shown
from ..typed_text import format_bytes
from .blas import WORKSPACE_BYTES, Product, Products, products_of
from .coherence import DEVICE, HOST, Coherence
from .device import Device, borrow_streams, default_gpu
from .epilogues import fused
from .launch_graph import launch_graph
from .launches import ARGS_DTYPE, ARITHMETIC, MAX_GRID_ROWS, MAX_INTEGERS, MAX_OPERANDS, TOGETHER, Launch, launches_of
from .options import BY_LIBRARY, EPILOGUES, PRODUCTS

NO_FAILURE = 2**64 - 1
ALIGNMENT = 256


def device_storage(device: Device, kind: str) -> Storage:
    """A storage whose arrays, also of plans bound to it, the device reaches as `kind` says.

    Parameters
    ----------
    kind : {"pageable", "pinned", "managed"}
        Ordinary memory; page-locked memory, from which copies run beside other work; or memory that host and device
        share, moved page by page by the driver when touched, without copies of ours.
    """
    if kind == "pageable":
        return Storage()
    if kind not in ("pinned", "managed"):
        raise UsageError(f"host memory must be pageable, pinned or managed; got {kind!r}")
    if kind == "managed" and not device.shares_memory:
        raise UsageError(
            f"managed memory must be in reach of host and device at the same time, which {device.name} does not offer "
            f"(concurrentManagedAccess is 0); use memory=pinned"
        )
    storage = Storage(allocate=lambda num_bytes: device.host_memory(num_bytes, kind))
    storage.managed = kind == "managed"
    return storage


def freed_with(owner: object, device: Device, address: int) -> weakref.finalize:
    """Let device memory be given back with its owner, or when the result is called; at exit the system does it."""
    free = weakref.finalize(owner, device.free, address)
    free.atexit = False
    return free


def memory_owners(plan: Plan) -> dict[str, str]:
    """Return the memory of each buffer: its arena, or its own."""
    return {name: f"arena {plan.arena_of[name]}" if name in plan.arena_of else name for name in plan.buffers}


def aligned(num_bytes: int) -> int:
    """Return the bytes of device memory that `num_bytes` take: each address is aligned."""
    return -(-max(num_bytes, 1) // ALIGNMENT) * ALIGNMENT


def device_bytes(plan: Plan, storage: Storage | None = None) -> int:
    """Return the bytes of device memory that binding a plan takes.

    These are its buffers, and the bounds of its blocks. What the storage has on the device already is left out. Managed
    memory counts: the driver moves there what the device touches.
    """
    sizes: dict[str, int] = {}
    present: Collection[str] = ()
    if storage is not None and storage.device_copies is not None:
        present = storage.arrays if storage.managed else storage.device_copies.address
    for name, owner in memory_owners(plan).items():
        if owner not in present:
            sizes[owner] = max(sizes.get(owner, 0), plan.buffers[name].size_bytes)
    return sum(map(aligned, [*sizes.values(), *(4 * loop.bounds.size for loop in plan.loops)])) + 2 * aligned(8)


class DeviceCopies:
    """Device memory of a storage's persistent buffers, which all plans bound to it share."""

    def __init__(self, device: Device):
        self.device = device
        self.coherence = Coherence()
        self.address: dict[str, int] = {}

    def add(self, name: str, num_bytes: int, cuts: Sequence[int]) -> int:
        """Address of a buffer; at first only the host's copy is right."""
        if name not in self.address:
            self.address[name] = self.device.allocate(num_bytes)
            freed_with(self, self.device, self.address[name])
        self.coherence.add(name, HOST, cuts)
        return self.address[name]


class CoherentArrays(Mapping):
    """Host arrays by name that are right when looked up: what the device has changed is fetched first.

    As the caller may write to what he gets, the device's copy counts as out of date from then on. An array that is kept
    over a run shows old content afterwards: look it up again.
    """

    def __init__(self, bound: GpuBoundPlan):
        self._bound = bound

    def __getitem__(self, name: str) -> np.ndarray:
        array = self._bound.host.arrays[name]
        self._bound.acquire([(name, True, True)], HOST)
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._bound.host.arrays)

    def __len__(self) -> int:
        return len(self._bound.host.arrays)


class GpuBoundPlan(Shown):
    """A plan bound to a GPU. Made by `bind(plan, storage, target="gpu")`.

    Parameters
    ----------
    storage : Storage, optional
        See `device_storage` for memory other than pageable.
    device : Device, optional
        Default: the machine's first GPU.
    products : {"cublas", "tf32", "3xtf32", "own"}
        Loops of matrix products that each fill the device: by cuBLAS ("cublas", "tf32"), all others by our kernels.
        With "tf32" factors are rounded to TF32 (10 bits of mantissa instead of 23); "3xtf32" takes three such products
        for one, as exact as float32.
    epilogues : {"kernel", "cublaslt"}
        What follows a product of a linear layer that cuBLAS computes: by a kernel after it, or within it by cuBLASLt.
    advice : callable, optional
        Function of the device's free bytes that says what would fit, for the message where the plan does not.

    Attributes
    ----------
    arrays : CoherentArrays
    host : BoundPlan
        The same plan on the CPU, on the same host arrays.
    graph : LaunchGraph
    groups : list of tuple of int
        The loops of each launch, in an order that a stream may keep.
    uses : list of list of (str, bool, bool)
        For each loop: memory (a buffer, or an arena that several share), whether old content is needed, whether it is
        written.
    copies : dict of str to list of int
        Number and bytes of copies so far, by the place that was copied to.
    """

    target = "gpu"
    needs_gil = False

    def __repr__(self) -> str:
        return f"<bound to gpu ({self.instruction_set}): {self.plan!r}>"

    def _rows(self) -> list[dict[str, Any]]:
        return self.plan._rows()

    def __init__(
        self,
        plan: Plan,
        storage: Storage | None = None,
        device: Device | None = None,
        products: str = "cublas",
        epilogues: str = "kernel",
        advice: Callable[[int], str] | None = None,
    ):
        check_choice("products", products, PRODUCTS)
        check_choice("epilogues", epilogues, EPILOGUES)
        self.plan, self.tf32 = plan, products == "tf32"
        self.device = default_gpu() if device is None else device
        self.storage = Storage() if storage is None else storage
        if products in ARITHMETIC and not self.device.has_tf32:
            raise UsageError(
                f"products {products!r} must run on a GPU of architecture sm_80 or newer, {self.device.name} is "
                f"{self.device.architecture}; use 'cublas' or 'own'"
            )
        if plan.attributes.get("products") == "bf16x6":
            raise UsageError(
                "a plan for a GPU must have products 'float32', got 'bf16x6', which is for processors; leave it out"
            )
        if epilogues == "cublaslt" and products not in BY_LIBRARY:
            raise UsageError(
                f"epilogues=cublaslt must have products={' or '.join(BY_LIBRARY)}, got {products!r}; leave one out"
            )
        if epilogues == "cublaslt" and not self.device.has_blas_lt:
            raise UsageError(
                "epilogues=cublaslt must have NVIDIA's library libcublasLt, which cannot be loaded; install it with "
                "pip install 'forktask[gpu]', or use epilogues=kernel"
            )
        offers = partial(self.device.offers, tf32=self.tf32) if epilogues == "cublaslt" else None
        self._plan_launches(products, offers)
        self.managed = self.storage.managed
        self._owner = memory_owners(plan)
        self._members: dict[str, list[str]] = {}
        for name, owner in self._owner.items():
            self._members.setdefault(owner, []).append(name)
        # The largest member of an arena begins where the arena does and covers it.
        self._span = {o: max(m, key=lambda name: plan.buffers[name].size_bytes) for o, m in self._members.items()}
        if self.storage.device_copies is None:
            self.storage.device_copies = DeviceCopies(self.device)
        if self.storage.device_copies.device is not self.device:
            raise UsageError("a storage may be used with one GPU, got a second one; make a new storage")
        self._check_fits(advice)
        self.host = bind(plan, self.storage)
        self.arrays = CoherentArrays(self)
        # What decides the bits of results; models that agree in it must agree bit for bit.
        forms = [self.device.architecture]
        if products != "cublas":
            forms.append(f"products={products}")
        if epilogues != "kernel":
            forms.append(f"epilogues={epilogues}")
        if plan.attributes.get("granularity") == "device":
            forms.append("granularity=device")
        forms += [f"{name}={os.environ[name]}" for name in GUESSES if name in os.environ]
        self.instruction_set = ", ".join(forms)
        self.num_loops, self.num_tasks = len(plan.loops), plan.num_tasks
        self.iteration_stride = plan.iteration_stride
        self.scratch_bytes = kernel_table.scratch_bytes(plan)
        self.copies = {HOST: [0, 0], DEVICE: [0, 0]}
        shared = self.storage.device_copies.coherence
        own_memory = Coherence()
        self._coherence = {
            owner: shared if plan.buffers[name].persistent else own_memory for owner, name in self._span.items()
        }
        self._cuts = self._find_cuts()
        for owner in self._members:
            own_memory.add(owner, cuts=self._cuts[owner])
        self.uses = [self._uses(number) for number in range(self.num_loops)]
        (self.copy_stream,) = borrow_streams(self.device, self, 1)
        self._allocate()
        own = plan.attributes.get("kernels")
        self._records = {(k,): self._record(k, loop, own) for k, loop in enumerate(plan.loops)}
        self._records |= {loops: self._joint_record(loops) for loops in self._joint}
        self._calls: dict[tuple, tuple[np.ndarray, list]] = {}  # by loops and addresses that are not the usual ones
        self._merged: dict[tuple, tuple[list, dict[Coherence, int]]] = {}  # see `acquire_all`
        self._after_kernel: set = set()  # streams whose last work is a kernel

    def _plan_launches(self, products: str, offers: Callable[[Product], bool] | None) -> None:
        """Find how each loop is launched, and which loops together. Raises `UsageError`: what no CUDA form takes."""
        plan, own = self.plan, self.plan.attributes.get("kernels")
        for loop in plan.loops:
            if not isinstance(loop.blocks, UniformBlocks) and any(block.operands for block in loop.blocks):
                raise UsageError(
                    f"blocks of loop {loop.name!r} have operands of their own, which no CUDA form takes; use the CPU"
                )
        self.launches = [
            launches_of(
                loop.kernel,
                loop.attributes,
                loop.bounds,
                loop.operands,
                self._products(kernel_table.get(loop.kernel, own), loop, offers) if products in BY_LIBRARY else None,
                products,
            )
            for loop in plan.loops
        ]
        functions = [getattr(launches[0], "symbol", None) for launches in self.launches]
        self.graph = launch_graph(plan, [name if name in TOGETHER else None for name in functions])
        self.groups = [loops for loops in self.graph.launches if loops]
        self._bounds = {(k,): np.ascontiguousarray(loop.bounds, np.int32) for k, loop in enumerate(plan.loops)}
        self._joint = {loops: self._join(loops) for loops in self.groups if len(loops) > 1}
        self._scratch_bytes = [
            plan.loops[k].num_blocks
            * max((how.scratch_bytes for how in launches if isinstance(how, Launch)), default=0)
            for k, launches in enumerate(self.launches)
        ]

    @staticmethod
    def _products(spec, loop, offers: Callable[[Product], bool] | None = None) -> Products | None:
        rows = [dict(zip(spec.bounds, row, strict=False)) for row in loop.bounds.tolist()]
        products = products_of(loop.kernel, loop.attributes, rows, loop.operands)
        if products is None or offers is None:
            return products
        return fused(products, loop.kernel, loop.attributes, rows, loop.operands, offers)

    def prepare(self, streams: Iterable = ()) -> None:
        """Compile and load what is launched, and run each form of a product once on each of these streams: the library
        then chooses and loads its kernels, which must not happen while a graph is captured."""
        self._after_kernel.clear()  # others had the streams meanwhile
        forms: dict[Product, tuple[Product, list[int]]] = {}
        for loops, record in self._records.items():
            for how in self.launches_for(loops):
                if isinstance(how, Launch):
                    self.device.prepare(how.symbol)
                else:
                    forms |= {p.form: (p, record["operand"].tolist()) for p in how.blocks if p.form not in forms}
        streams = [*streams]
        if not streams or not forms:
            return
        scratch = self.device.allocate(max(4 * form.scratch_size for form in forms))
        try:
            for stream in streams:
                for product, operands in forms.values():
                    given = self.device.prepared_product(*product.on_scratch(operands, scratch), self.tf32)
                    self.device.multiply(given, stream)
                self.device.synchronize(stream)
        finally:
            self.device.free(scratch)

    def _check_fits(self, advice: Callable[[int], str] | None) -> None:
        """Raise `MemoryError`, before the host's memory is taken, if the device has less free than the plan needs."""
        needed, free = device_bytes(self.plan, self.storage), self.device.free_bytes()
        products = any(isinstance(how, Products) for launches in self.launches for how in launches)
        workspace = WORKSPACE_BYTES if products and not self.device.num_workspaces else 0
        tables = [self._bounds[loops].nbytes for loops in self._joint]
        more = workspace + sum(aligned(size) for size in (*self._scratch_bytes, *tables) if size)
        needed += more
        if self.storage.managed and needed > free // 2:
            raise MemoryError(
                f"the plan needs {format_bytes(needed)} of managed memory, of which it may take half of the "
                f"{format_bytes(free)} that the GPU ({self.device.name}) has free: the driver may hang where it has to "
                f"move pages back; use a smaller batch, or memory=pinned"
            )
        if needed > free:
            remedy = advice(free - more) if advice else "use a smaller batch, or end what else uses the GPU"
            raise MemoryError(
                f"the plan needs {format_bytes(needed)} of the memory of the GPU ({self.device.name}), free are "
                f"{format_bytes(free)}; {remedy}"
            )

    def _allocate(self) -> None:
        plan, device = self.plan, self.device
        sizes: dict = {loops: array.nbytes for loops, array in self._bounds.items()}
        sizes |= {"failure": 8, "counter": 8}
        sizes |= {("scratch", k): size for k, size in enumerate(self._scratch_bytes) if size}
        address: dict = {}
        for owner, name in self._span.items():
            if self.managed:
                address[owner] = self.host.arrays[name].ctypes.data
            elif plan.buffers[name].persistent:
                address[owner] = self.storage.device_copies.add(owner, plan.buffers[name].size_bytes, self._cuts[owner])
            else:
                sizes[owner] = plan.buffers[name].size_bytes
        if self.managed:
            for owner, name in self._span.items():
                if plan.buffers[name].persistent:
                    self.storage.device_copies.coherence.add(owner, cuts=self._cuts[owner])
        offsets, total = {}, 0
        for key, size in sizes.items():
            offsets[key] = total
            total += aligned(size)
        self._memory = device.allocate(total)
        self._free = freed_with(self, device, self._memory)
        device.fill(self._memory, total, 0, self.copy_stream)
        address |= {key: self._memory + offset for key, offset in offsets.items()}
        self.address = {name: address[self._owner[name]] for name in plan.buffers}
        self._scratch_address = [address.get(("scratch", k), 0) for k in range(self.num_loops)]
        self._bounds_address = {loops: address[loops] for loops in self._bounds}
        self.failure_address, self.counter_address = address["failure"], address["counter"]
        for loops, array in self._bounds.items():
            device.copy_to_device(address[loops], array, self.copy_stream)
        device.copy_to_device(self.failure_address, np.array([NO_FAILURE], np.uint64), self.copy_stream)
        device.synchronize(self.copy_stream)

    def _find_cuts(self) -> dict[str, list[int]]:
        """Where the first dimension of each buffer is cut by what blocks access; an arena is of one piece."""
        cuts = {}
        for owner in self._members:
            shape = self.plan.buffers[owner].shape if owner in self.plan.buffers else ()
            cuts[owner] = {0, shape[0] if shape else 1}
        for loop in self.plan.loops:
            for block in loop.blocks if isinstance(loop.blocks, tuple) else ():
                for access in block.accesses:
                    if access.box and access.buffer in cuts:
                        cuts[access.buffer].update(access.box[0])
        return {owner: sorted(result) for owner, result in cuts.items()}

    def _touched(self, block) -> Iterator[tuple[str, int, int, float]]:
        """(buffer or arena, piece, kind of access, written part of the piece) of a block; a part past 1 is no part."""
        for access in block.accesses:
            owner = self._owner[access.buffer]
            shape = self.plan.buffers[access.buffer].shape
            cuts = self._cuts[owner]
            if owner != access.buffer:
                yield owner, 0, access.kind, 0.0
                continue
            first, last = access.box[0] if access.box else (0, shape[0] if shape else 1)
            rest = math.prod(stop - start for start, stop in access.box[1:]) * math.prod(
                shape[max(1, len(access.box)) :]
            )
            part = rest / math.prod(shape[1:])
            for piece in range(cuts.index(first), cuts.index(last)):
                yield owner, piece, access.kind, part

    def uses_of(self, loop: int, first_block: int, num_blocks: int) -> list[tuple[str, bool, bool, tuple[int, int]]]:
        """What some blocks of a loop use: memory, whether old content is needed, whether it is written, rows."""
        touched: dict[tuple[str, int], list] = {}
        for block in self.plan.loops[loop].blocks[first_block : first_block + num_blocks]:
            for owner, piece, kind, part in self._touched(block):
                use = touched.setdefault((owner, piece), [False, False, 0.0])
                use[0] |= kind != WRITE
                use[1] |= kind != READ
                use[2] += part if kind == WRITE else 0.0
        result: list = []
        for (owner, piece), (reads, writes, part) in sorted(touched.items()):
            use = owner, reads or (writes and part < 1 - 1e-9), writes
            rows = tuple(self._cuts[owner][piece : piece + 2])
            if result and result[-1][:3] == use and result[-1][3][1] == rows[0]:
                rows = (result.pop()[3][0], rows[1])
            result.append((*use, rows))
        return result

    def parts(self, loop: int, most: int) -> list[tuple[int, int]]:
        """Cut a loop into up to `most` ranges of blocks (first, number) of about equal cost.

        No two ranges write to the same piece of a buffer, so they may run in different places.
        """
        blocks = self.plan.loops[loop].blocks
        if most == 1 or not isinstance(blocks, tuple):
            return [(0, len(blocks))]
        written: dict[tuple[str, int], list[int]] = {}
        for number, block in enumerate(blocks):
            for owner, piece, kind, _ in self._touched(block):
                if kind != READ:
                    written.setdefault((owner, piece), [number, number])[1] = number
        together = set()  # blocks that must not be cut off from the one before
        for first, last in written.values():
            together.update(range(first + 1, last + 1))
        costs = np.cumsum([block.flops + block.bytes for block in blocks])
        starts = [0]
        for number in range(1, len(blocks)):
            if number not in together and costs[number - 1] >= costs[-1] * len(starts) / most and len(starts) < most:
                starts.append(number)
        return [(a, b - a) for a, b in zip(starts, [*starts[1:], len(blocks)], strict=True)]

    def _uses(self, number: int) -> list[tuple[str, bool, bool]]:
        """What a loop uses: memory, whether old content is needed, whether it is written."""
        loop, table = self.plan.loops[number], self.plan.accesses
        result: dict[str, tuple[bool, bool]] = {}
        if isinstance(loop.blocks, tuple):
            for owner, reads, writes, rows in self.uses_of(number, 0, loop.num_blocks):
                before, cuts = result.get(owner, (False, False)), self._cuts[owner]
                result[owner] = before[0] or reads or rows != (cuts[0], cuts[-1]), before[1] or writes
        else:  # what blocks from arrays write may be a part
            first, last = table.task_offsets[[loop.first_task, loop.first_task + loop.num_blocks]]
            names = list(self.plan.buffers)
            numbers, kinds = table.access_buffer[first:last].tolist(), table.access_kind[first:last].tolist()
            for buffer, kind in zip(numbers, kinds, strict=True):
                owner = self._owner[names[buffer]]
                result[owner] = True, kind != READ or result.get(owner, (True, False))[1]
        return [(owner, *use) for owner, use in result.items()]

    def _record(self, number: int, loop, own) -> np.ndarray:
        spec = kernel_table.get(loop.kernel, own)
        if len(spec.operands) > MAX_OPERANDS or len(spec.integers) > MAX_INTEGERS:
            raise AssertionError(f"kernel {spec.name!r} has too many operands or attributes for GpuArgs")
        record = np.zeros((), ARGS_DTYPE)
        for i, operand in enumerate(spec.operands):
            if operand in loop.operands:
                record["operand"][i] = self.address[loop.operands[operand]]
        attributes = spec.attributes_of(loop)
        for name in spec.integers:
            if not -(2**31) <= attributes[name] < 2**31:
                raise UsageError(f"attribute {name!r} of loop {loop.name!r} must fit 32 bits on a GPU; use the CPU")
        record["integers"][: len(spec.integers)] = [attributes[name] for name in spec.integers]
        record["reals"][: len(spec.reals)] = [loop.attributes[name] for name in spec.reals]
        record["bounds"] = self._bounds_address[number,]
        record["bounds_width"] = loop.bounds.shape[1]
        record["failure"] = self.failure_address
        record["scratch"] = self._scratch_address[number]
        record["parts"] = max((how.parts for how in self.launches[number] if isinstance(how, Launch)), default=1)
        record["first_task"] = loop.first_task
        record["iteration_stride"], record["iteration_offset"] = self.plan.iteration_stride, loop.iteration_offset
        return record

    def _join(self, loops: tuple[int, ...]) -> Launch:
        """Plan a launch of several loops and note its bounds: places of its CUDA blocks, as `one_of_loops` in
        block_kernel.cuh reads them, and room for the loops' arguments. Where there would be many more than MAX_TILES
        CUDA blocks, each takes the numbers of several."""
        how, words = self.launches[loops[0]][0], ARGS_DTYPE.itemsize // 4
        blocks = np.array([self.plan.loops[loop].num_blocks for loop in loops])
        tiles = np.array([self.launches[loop][0].tiles for loop in loops])
        tiles = -(-tiles // -(-(blocks @ tiles) // MAX_TILES))
        rank = np.repeat(np.arange(len(loops)), blocks * tiles)  # of each CUDA block's loop
        number, width = np.arange(len(rank)) - np.searchsorted(rank, rank), tiles[rank]
        places = np.stack([4 * len(rank) + words * rank, number // width, number % width, width], 1)
        self._bounds[loops] = np.append(places, np.zeros(words * len(loops))).astype(np.int32)
        shared_bytes = max(self.launches[loop][0].shared_bytes for loop in loops)
        return replace(how, symbol=f"{how.symbol}_many", tiles=len(rank), shared_bytes=shared_bytes)

    def _joint_record(self, loops: tuple[int, ...]) -> np.ndarray:
        """Give the device the arguments of loops that are launched together; return those of the launch."""
        record, own = np.zeros((), ARGS_DTYPE), np.stack([self._records[loop,] for loop in loops])
        record["bounds"], record["bounds_width"] = self._bounds_address[loops], 4
        behind = self._bounds_address[loops] + self._bounds[loops].nbytes - own.nbytes
        self.device.copy_to_device(behind, own, self.copy_stream)
        self.device.synchronize(self.copy_stream)
        return record

    def launches_for(self, loops: tuple[int, ...]) -> tuple[Launch | Products, ...]:
        """Return how a loop, or one of `groups`, is launched."""
        return (self._joint[loops],) if loops in self._joint else self.launches[loops[0]]

    def view(self, name: str) -> np.ndarray:
        """Array that users know as `name`; see `storage.view_of`."""
        return view_of(self.plan, self.arrays, name)

    def load(self, samples: Any, labels: Any = None, *, order: Any = None, learning_rate: Any = None) -> None:
        """Copy data into the plan's arrays, as `BoundPlan.load`."""
        load(self.plan, self.arrays, samples, labels, order, learning_rate)

    def launch(
        self,
        loops: tuple[int, ...],
        stream,
        replay: int,
        *,
        first_block: int = 0,
        num_blocks: int | None = None,
        captured: bool = False,
        addresses: Mapping[str, int] | None = None,
        early: bool = False,
    ) -> None:
        """Run blocks of a loop on a stream, or one of `groups`.

        Parameters
        ----------
        num_blocks : int, optional
            Default: all from `first_block` on.
        captured : bool
            The replay number is `replay` more than the device's counter says when the launch runs.
        addresses : mapping of str to int, optional
            Device copies of some buffers to use instead of the usual ones.
        early : bool
            Launch kernels before a kernel is done that is the last work of the stream; what else a stream waits for, a
            product, a copy or an event, is waited for as ever.
        """
        record, calls = self._calls_of(loops, addresses)
        record["replay"], record["counter"] = replay, self.counter_address if captured else 0
        rows = 1 if loops in self._joint else self.plan.loops[loops[0]].num_blocks
        stop = rows if num_blocks is None else first_block + num_blocks
        while first_block < stop:
            rows = min(stop - first_block, MAX_GRID_ROWS)
            record["first_block"] = first_block
            for call in calls:
                if not isinstance(call, list):
                    self.device.launch(call, rows, stream, early and stream in self._after_kernel)
                    self._after_kernel.add(stream)
                    continue
                for product in call[first_block : first_block + rows]:
                    self.device.multiply(product, stream)
                self._after_kernel.discard(stream)
            first_block += rows

    def wait(self, stream, event) -> None:
        """Let a stream wait for an event."""
        self.device.wait(stream, event)
        self._after_kernel.discard(stream)

    def _calls_of(self, loops: tuple[int, ...], addresses: Mapping[str, int] | None) -> tuple[np.ndarray, list]:
        """Return the arguments of loops, and their launches as the device takes them, made once; of products a list,
        one for each block."""
        key = loops, *(addresses.items() if addresses else ())
        if key not in self._calls:
            record, calls = self._records[loops], []
            if addresses:
                record = self._with_addresses(record, addresses)
            for how in self.launches_for(loops):
                if isinstance(how, Launch):
                    calls.append(self.device.prepared_launch(how.symbol, how.tiles, how.shared_bytes, record))
                    continue
                operands = record["operand"].tolist()
                calls.append([self.device.prepared_product(p, operands, self.tf32) for p in how.blocks])
            self._calls[key] = record, calls
        return self._calls[key]

    def _with_addresses(self, record: np.ndarray, addresses: Mapping[str, int]) -> np.ndarray:
        usual = {self.address[name]: address for name, address in addresses.items()}
        if not usual.keys() & set(record["operand"].tolist()):
            return record
        record = record.copy()
        record["operand"] = [usual.get(address, address) for address in record["operand"].tolist()]
        return record

    def advance_counter(self, stream, replays: int) -> None:
        """Add to the device's replay counter, in stream order."""
        self._launch_alone("advance_counter", replays, stream)

    def spin(self, stream, duration_ns: int) -> None:
        """Let a stream do nothing for so long: what is given to it meanwhile then runs without a gap."""
        self._launch_alone("spin", duration_ns, stream)

    def _launch_alone(self, symbol: str, number: int, stream) -> None:
        record = np.zeros((), ARGS_DTYPE)
        record["counter"], record["replay"] = self.counter_address, number
        self.device.launch(self.device.prepared_launch(symbol, 1, 0, record), 1, stream)

    def set_counter(self, replay: int) -> None:
        """Set the device's replay counter; waits."""
        self.device.copy_to_device(self.counter_address, np.array([replay], np.int64), self.copy_stream)
        self.device.synchronize(self.copy_stream)

    def acquire(self, uses: Sequence[tuple], place: str, stream=None) -> int:
        """Copy what is out of date at `place` before it is used there; returns the number of copies.

        Parameters
        ----------
        uses : sequence of (str, bool, bool) or (str, bool, bool, (int, int))
            Buffer or arena, whether its old content is needed, whether it is written, and the rows if not all.
        stream : optional
            Where the copies run; None: on one of their own, and wait for them.
        """
        count = 0
        on = self.copy_stream if stream is None else stream
        for name, reads, writes, *rows in uses:
            owner = self._owner.get(name, name)
            for copied in self._coherence[owner].acquire(owner, place, reads, writes, *rows):
                if not self.managed:
                    self.copy(self._span[owner], place, on, rows=copied if self._is_cut(owner) else None)
                    count += 1
        if count and stream is None:
            self.device.synchronize(on)
        return count

    def _is_cut(self, owner: str) -> bool:
        return len(self._coherence[owner].pieces(owner)) > 1

    def pieces(self, uses: Sequence[tuple]) -> Iterator[tuple[str, int]]:
        """Buffer or arena and number of each piece that is used."""
        for name, _, _, *rows in uses:
            owner = self._owner.get(name, name)
            for piece in self._coherence[owner].pieces(owner, *rows):
                yield owner, piece

    def missing(self, uses: Sequence[tuple], place: str) -> set[str]:
        """Return the buffers or arenas of which `acquire` would copy something."""
        owners = ((self._owner.get(name, name), rows) for name, reads, _, *rows in uses if reads and not self.managed)
        return {owner for owner, rows in owners if self._coherence[owner].missing(owner, place, *rows)}

    def copy(
        self, name: str, place: str, stream, address: int | None = None, rows: tuple[int, int] | None = None
    ) -> None:
        """Copy a buffer, or some rows of it, to `place`, whatever its state; `address`: of a device copy other than the
        usual one."""
        array = self.host.arrays[name]
        address = self.address[name] if address is None else address
        if rows is not None:
            address += rows[0] * (array.nbytes // len(array))
            array = array[slice(*rows)]
        if place == DEVICE:
            self.device.copy_to_device(address, array, stream)
        else:
            self.device.copy_to_host(array, address, stream)
        self.copies[place][0] += 1
        self.copies[place][1] += array.nbytes

    def acquire_all(self, loops: Sequence[int] | None = None, without: Sequence[str] = ()) -> None:
        """Bring everything that some loops use (default: all) to the device, but for the buffers `without`; what they
        write is out of date on the host from now on. Only buffers used elsewhere since are checked."""
        key = None if loops is None else tuple(loops), tuple(without)
        if key not in self._merged:
            merged: dict[str, tuple[bool, bool]] = {}
            for number in range(self.num_loops) if loops is None else loops:
                for name, reads, writes in self.uses[number]:
                    # The first use in plan order says whether old content is needed.
                    first = merged.get(name, (reads, False))
                    merged[name] = (first[0], first[1] or writes)
            uses = [(name, *use) for name, use in merged.items() if name not in without]
            self._merged[key] = uses, dict.fromkeys((self._coherence[name] for name, *_ in uses), 0)
        uses, seen = self._merged[key]
        if any(memory.changes > number for memory, number in seen.items()):
            memories = self._coherence
            self.acquire([use for use in uses if memories[use[0]].changed[use[0]] > seen[memories[use[0]]]], DEVICE)
            seen |= {memory: memory.changes for memory in seen}

    def raise_failure(self, workers=None) -> None:
        """Raise `BlockFailure` for the earliest block that failed on the device, and forget it."""
        code = np.zeros(1, np.uint64)
        self.device.copy_to_host(code, self.failure_address, self.copy_stream)
        self.device.synchronize(self.copy_stream)
        value = int(code[0])
        if value == NO_FAILURE:
            return
        self.device.copy_to_device(self.failure_address, np.array([NO_FAILURE], np.uint64), self.copy_stream)
        self.device.synchronize(self.copy_stream)
        task, iteration, status = value >> 8 & 0xFFFFFFFF, value >> 40, value & 255
        raise BlockFailure(self.plan.task_name(task), iteration, status)

    def close(self) -> None:
        """Give the device's memory back."""
        if self._free.alive:
            self.device.synchronize()
            self._free()
