"""Graphs of the user's own tasks, in the terms of OmpSs-2 and OpenMP: recorded task by task, made into a plan.

What is recorded becomes an ordinary `Plan`, so dependences, checks and every executor are the ones of all plans.
Program order decides: a task comes after those recorded before it wherever their regions conflict.
"""

from __future__ import annotations

import ctypes
import numbers
import re
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MethodType
from typing import Any

import numpy as np

from ..binding.bind import MAX_OPERANDS, BoundPlan, bind
from ..binding.storage import Storage
from ..errors import UsageError
from ..kernels import kernel_table
from ..kernels.interface.kernel_spec import KernelSpec
from ..plan.builder import PlanBuilder, ranges
from ..plan.cells import build_access_table
from ..plan.model import READ, REDUCTION, UPDATE, WRITE, Access, AccessTable, Block, BlockLoop, Plan
from ..reading import Count, Name, Number
from ..shown import Shown

MAX_DIMENSIONS = 4  # of a region
TASKWAIT = "taskwait"  # kernel, loop and buffer behind taskwait()
STOP = "stop_when"  # array behind stop_when()
ALONE = WRITE  # kind of every access that conflicts with all others, where tasks are joined to loops
STOP_LENGTH = 1024  # iterations whose decisions are kept: more than a lookahead


class _Iteration:
    def __repr__(self) -> str:
        return "ITERATION"


ITERATION = _Iteration()
"""In a Python task's `args`: replaced by the number of the iteration when the task runs."""


KERNEL_ARGS = np.dtype(
    {
        "names": ("operand", "integers", "reals", "bounds", "bounds_width", "num_blocks", "micro"),
        "formats": (("u8", MAX_OPERANDS), "u8", "u8", "u8", "i4", "i4", "u8"),
    },
    align=True,
)
"""The record `KernelArgs` of block_kernel.h, for numba; pointers are numbers."""


@dataclass(frozen=True, eq=False)
class Region:
    """A box of a wrapped array, made by slicing one: `x[0:16, 2]`.

    Attributes
    ----------
    box : tuple of (start, stop)
        Up to four ranges over the leading dimensions.
    index : tuple
        What gives the NumPy view.
    """

    array: TaskArray
    box: tuple[tuple[int, int], ...]
    index: tuple

    def __repr__(self) -> str:
        cut = ", ".join(f"{start}:{stop}" for start, stop in self.box)
        return f"{self.array.name}[{cut or '...'}]"

    @property
    def num_bytes(self) -> int:
        return self.array.view[self.index].nbytes


class TaskArray:
    """A user's NumPy array in a graph: not copied, kernels read and write it in place. Slicing it gives regions.

    Attributes
    ----------
    view : ndarray
        The user's array itself.
    """

    def __init__(self, name: str, view: np.ndarray, graph: TaskRecorder):
        self.name = name
        self.view = view
        self.graph = graph
        self._layout = _layout(view)

    def __repr__(self) -> str:
        return f"<array {self.name!r} of graph {self.graph.name!r}: {self.view.dtype}, shape {self.view.shape}>"

    @property
    def shape(self) -> tuple[int, ...]:
        return self._layout[1]

    def check_unchanged(self) -> None:
        """Raise `UsageError` if the array got other memory, another shape or another type since it was wrapped."""
        now = _layout(self.view)
        if now != self._layout:
            names = ("memory address", "shape", "strides", "dtype", "writeable flag")
            what = next(name for name, a, b in zip(names, now, self._layout, strict=True) if a != b)
            raise UsageError(
                f"an array may not change while a graph uses it, but the {what} of {self.name!r} did; write to it in "
                f"place, or record a new graph"
            )

    def __getitem__(self, key: Any) -> Region:
        """The region `key`: ranges of step 1, numbers and `...`, as in NumPy, but never outside the array.

        Raises
        ------
        UsageError
        """
        keys = key if isinstance(key, tuple) else (key,)
        for k in keys:
            if not (k is Ellipsis or isinstance(k, slice | numbers.Integral)) or isinstance(k, bool):
                raise UsageError(f"a region of {self.name!r} is made of ranges and numbers, got {k!r}; slice it")
        where = [i for i, k in enumerate(keys) if k is Ellipsis]
        if len(where) > 1 or len(keys) - len(where) > len(self.shape):
            raise UsageError(
                f"a region of {self.name!r} takes at most {len(self.shape)} ranges and one `...`, got {len(keys)}"
            )
        if where:
            fill = (slice(None),) * (len(self.shape) - len(keys) + 1)
            keys = (*keys[: where[0]], *fill, *keys[where[0] + 1 :])
        box = [self._range(d, k) for d, k in enumerate(keys)]
        while box and box[-1] == (0, self.shape[len(box) - 1]):
            box.pop()  # the same region has one form, however it is written
        if len(box) > MAX_DIMENSIONS:
            raise UsageError(
                f"a region may cut {MAX_DIMENSIONS} dimensions, got {len(box)} of {self.name!r}; take all of the others"
            )
        index = tuple(
            slice(*self._range(d, k)) if isinstance(k, slice) else self._range(d, k)[0] for d, k in enumerate(keys)
        )
        return Region(self, tuple(box), (*index, Ellipsis))

    def _range(self, dimension: int, key: slice | int) -> tuple[int, int]:
        extent = self.shape[dimension]
        if isinstance(key, slice):
            if key.step not in (None, 1):
                raise UsageError(
                    f"a region of {self.name!r} must have step 1, got {key.step}; make a task's region a full range"
                )
            start = 0 if key.start is None else int(key.start)
            stop = extent if key.stop is None else int(key.stop)
            start, stop = (n + extent if n < 0 else n for n in (start, stop))
        else:
            start = int(key) + (extent if key < 0 else 0)
            stop = start + 1
        if not 0 <= start < stop <= extent:
            text = f"{key.start}:{key.stop}" if isinstance(key, slice) else str(key)
            raise UsageError(
                f"a region of {self.name!r} must lie within [0, {extent}) in dimension {dimension} and hold an "
                f"element, got {text}; leave the region out where there is none"
            )
        return start, stop


def _layout(array: np.ndarray) -> tuple:
    return array.ctypes.data, array.shape, array.strides, array.dtype, array.flags.writeable


@dataclass(frozen=True, eq=False)
class _Kernel:
    """A kernel as the user gave it: a Python callable, or an address with the object that keeps it alive."""

    name: str
    function: Callable | None
    address: int | None
    keep: Any


@dataclass(frozen=True, eq=False)
class _Task:
    kernel: _Kernel
    regions: tuple[tuple[int, Region], ...]
    args: tuple
    flops: float
    name: str

    @property
    def num_bytes(self) -> int:
        return sum(region.num_bytes * (1 if kind in (READ, WRITE) else 2) for kind, region in self.regions)


_get_name = ctypes.pythonapi.PyCapsule_GetName
_get_name.restype, _get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype, _get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def _make_kernel(given: Any) -> _Kernel:
    """Return the kernel that the user gave in one of its forms; raise `UsageError` for anything else."""
    name = getattr(given, "__name__", None)
    if isinstance(given, numbers.Integral) and not isinstance(given, bool):
        address = int(given)
    elif type(given).__name__ == "PyCapsule":
        signature = _get_name(given)
        # Cython names the capsules in a module's __pyx_capi__ after the C signature.
        text = (signature or b"").decode()
        if "(" in text and not re.fullmatch(r"int \([^,()]*\*[^,()]*,[^,()]*,[^,()]*\*[^,()]*\)", text):
            raise UsageError(
                f"a kernel must be int (const void *, Py_ssize_t, const TaskContext *), got a capsule of {text!r}; "
                f"change the function's signature"
            )
        address = _get_pointer(given, signature)
    elif isinstance(given, ctypes._CFuncPtr):  # type: ignore[attr-defined]
        address = ctypes.cast(given, ctypes.c_void_p).value or 0
    elif isinstance(getattr(given, "address", None), numbers.Integral):  # numba's cfunc
        address = int(given.address)
    elif callable(given):
        return _Kernel(name or type(given).__name__, given, None, given)
    else:
        raise UsageError(
            f"a kernel must be a Python callable, a PyCapsule, a ctypes function, a numba cfunc or an address, "
            f"got {given!r}"
        )
    if address <= 0:
        raise UsageError(f"the address of a kernel must be positive, got {address}; load the function first")
    return _Kernel(name or "kernel", None, address, given)


class TaskRecorder(Shown):
    """Records tasks on the user's arrays and makes them a plan.

    Parameters
    ----------
    name : str
        Of the plan.
    reduction_groups : int
        Private copies of an array that tasks reduce into, at most.
    """

    def __init__(self, name: Name = "user_graph", *, reduction_groups: Number = 8):
        self.name = name
        self.reduction_groups = reduction_groups
        self.arrays: dict[str, TaskArray] = {}
        self._items: list[_Task | None] = []  # None: a taskwait
        self._kernels: dict[Any, _Kernel] = {}
        self._plan: Plan | None = None
        self._bound: BoundPlan | None = None

    def __repr__(self) -> str:
        tasks = sum(item is not None for item in self._items)
        return f"<graph {self.name!r}: {tasks} tasks on {len(self.arrays)} arrays>"

    def _rows(self) -> list[dict[str, Any]]:
        rows: dict[str, dict[str, Any]] = {}
        for task in filter(None, self._items):
            row = rows.setdefault(task.name, {"tasks": task.name, "number": 0, "arrays": {}})
            row["number"] += 1
            row["arrays"] |= {region.array.name: None for _, region in task.regions}
        return [{**row, "arrays": ", ".join(row["arrays"])} for row in rows.values()]

    # --- recording ------------------------------------------------------------------------------------------------

    def array(self, name: Name, array: np.ndarray) -> TaskArray:
        """Wrap a NumPy array. It is not copied; its memory, shape and type must stay as they are.

        Parameters
        ----------
        name : str
            For messages and event logs.
        array : ndarray
            C-contiguous, of booleans or numbers in the machine's byte order; no element may belong to another array
            of the graph, for dependences are found by array.

        Raises
        ------
        UsageError
        """
        if not isinstance(name, str) or not name or name == TASKWAIT:
            raise UsageError(f"the name of an array must be a string, not empty and not {TASKWAIT!r}, got {name!r}")
        if name in self.arrays:
            raise UsageError(f"an array called {name!r} is in the graph already; use it, or choose another name")
        if not isinstance(array, np.ndarray):
            raise UsageError(f"array {name!r} must be a NumPy array, got {type(array).__name__}; use numpy.asarray")
        if array.dtype.kind not in "biufc" or not array.dtype.isnative:
            raise UsageError(f"array {name!r} must hold numbers in native byte order, got {array.dtype}; convert it")
        if not array.flags.c_contiguous:
            raise UsageError(f"array {name!r} must be C-contiguous, got strides {array.strides}; use ascontiguousarray")
        if array.size == 0 or max(array.shape, default=1) >= 2**31:
            raise UsageError(f"array {name!r} must have 1 to 2^31 - 1 elements in each dimension, got {array.shape}")
        for other in self.arrays.values():
            if np.may_share_memory(array, other.view):  # exact, as both are contiguous
                raise UsageError(
                    f"arrays of a graph may not share memory, but {name!r} and {other.name!r} do; wrap the whole array "
                    f"once and slice it"
                )
        self._changed()
        wrapped = self.arrays[name] = TaskArray(name, array, self)
        return wrapped

    def task(
        self,
        kernel: Any,
        *,
        reads: Region | TaskArray | Sequence[Region | TaskArray] = (),
        writes: Region | TaskArray | Sequence[Region | TaskArray] = (),
        updates: Region | TaskArray | Sequence[Region | TaskArray] = (),
        concurrent: Region | TaskArray | Sequence[Region | TaskArray] = (),
        commutative: Region | TaskArray | Sequence[Region | TaskArray] = (),
        reduction: Region | TaskArray | Sequence[Region | TaskArray] = (),
        args: Sequence = (),
        name: Name | None = None,
        flops: float = 0.0,
    ) -> None:
        """Record a task; nothing runs yet.

        Parameters
        ----------
        kernel : callable, PyCapsule, ctypes function, numba cfunc, or int
            A Python callable is called as `kernel(*regions, *args)` with NumPy views of the regions in the order
            reads, writes, updates, concurrent, commutative, reduction; those it only reads are read-only; its result
            is ignored. It runs with the GIL: slow, unless its time is spent in functions that release it. All others
            are compiled: `int kernel(const void *args, ptrdiff_t block, const TaskContext *context)`; see Notes.
        reads, writes, updates : regions
            OpenMP's and OmpSs-2's `in`, `out`, `inout`. A write overwrites all of its region.
        concurrent, commutative : regions
            Updated in any order: at the same time, with atomic operations of the kernel's own; or one task at a time.
        reduction : regions
            Added to. The task works on a private copy, filled with zeros, that a group of tasks shares; copies are
            added in a fixed order before another access, so the result does not depend on the schedule. A task may not
            touch such an array otherwise.
        args : sequence
            Python callables take anything (`ITERATION` stands for the iteration's number), compiled kernels numbers.
        name : str, optional
            For messages and event logs; default: the kernel's.
        flops : float
            Rough cost, for sharing out the work; without it the size of the regions is what counts.

        Raises
        ------
        UsageError

        Notes
        -----
        A compiled kernel gets a `KernelArgs` (block_kernel.h; for numba, `KERNEL_ARGS`). `operand[r]` points to the
        start of the array of region r; `bounds + block * bounds_width` holds start and stop of each dimension of
        region 0, then of region 1, and so on; whole numbers of `args` are in `integers`, others in `reals`, in their
        order. Kernels of a loop share one record, so tasks with other `args` begin another loop.
        """
        given = enumerate((reads, writes, updates, concurrent, commutative, reduction))  # in the order of the kinds
        regions = [(kind, region) for kind, some in given for region in self._own_regions(kind, some)]
        # A method is a new object each time it is looked up; others are kept, so that their id stays theirs.
        key = kernel if isinstance(kernel, MethodType | numbers.Integral) else ("id", id(kernel))
        result = self._kernels.get(key)
        if result is None:
            result = self._kernels[key] = _make_kernel(kernel)
        args = tuple(args)
        if result.function is None:
            for value in args:
                if not isinstance(value, numbers.Real):
                    raise UsageError(f"args of a compiled kernel must be numbers, got {value!r}; pass data as regions")
            if len(regions) >= MAX_OPERANDS:
                raise UsageError(
                    f"a task of a compiled kernel may have {MAX_OPERANDS - 1} regions, got {len(regions)}; split it"
                )
        self._changed()
        self._items.append(_Task(result, tuple(regions), args, float(flops), name or result.name))

    def _own_regions(self, kind: int, some: Region | TaskArray | Sequence[Region | TaskArray]) -> Iterator[Region]:
        for region in (some,) if isinstance(some, Region | TaskArray) else some:
            region = region[...] if isinstance(region, TaskArray) else region
            if not isinstance(region, Region) or self.arrays.get(region.array.name) is not region.array:
                raise UsageError(
                    f"a task touches regions of arrays of its own graph, got {region!r}; wrap the array with "
                    f"array() and slice what that returns"
                )
            if kind != READ and not region.array.view.flags.writeable:
                raise UsageError(f"array {region.array.name!r} is read-only, but a task writes it; copy it first")
            yield region

    def taskloop(self, iterations: range | Count, grainsize: Number) -> Iterator[slice]:
        """Cut a loop: `for i in graph.taskloop(range(n), grainsize=64): graph.task(f, updates=[x[i]])`.

        As with `nogroup` in OpenMP, and in OmpSs-2, there is no wait at its end.
        """
        iterations = range(iterations) if isinstance(iterations, numbers.Integral) else iterations
        if not isinstance(iterations, range) or iterations.step != 1:
            raise UsageError(f"a taskloop runs over a number or a range of step 1, got {iterations!r}")
        for start, stop in ranges(len(iterations), grainsize):
            yield slice(iterations.start + start, iterations.start + stop)

    def taskwait(self) -> None:
        """Tasks recorded from here on wait for all recorded before, those of earlier iterations included.

        It is a task of its own that conflicts with all others, and costs as much. Most graphs need none: regions
        order what must be ordered.
        """
        self._changed()
        self._items.append(None)

    def stop_when(
        self,
        condition: Callable,
        *,
        reads: Region | TaskArray | Sequence[Region | TaskArray] = (),
        args: Sequence = (),
        name: Name = "stop_when",
    ) -> None:
        """Record a task that decides whether `run_while` stops: `condition(*regions, *args)` is true.

        Parameters
        ----------
        condition : callable
            A Python callable, called in every iteration when what it reads is there. A compiled kernel can decide
            too, through an array of its own that `run_while` is given.
        reads, args, name
            As for `task`.
        """
        decisions = self.arrays.get(STOP) or self.array(STOP, np.zeros(STOP_LENGTH, np.int32))
        reads = (reads,) if isinstance(reads, Region | TaskArray) else tuple(reads)
        n = len(reads)

        def decide(*values: Any) -> None:  # what is read, the decisions, args, iteration
            values[n][values[-1] % STOP_LENGTH] |= bool(condition(*values[:n], *values[n + 1 : -1]))

        self.task(decide, reads=reads, updates=decisions, args=(*args, ITERATION), name=name)

    def _changed(self) -> None:
        self._plan = self._bound = None

    # --- the plan -------------------------------------------------------------------------------------------------

    def plan(self) -> Plan:
        """Return the plan of the recorded tasks.

        Independent tasks of one kernel on the same arrays are one loop, also where others that do not conflict with
        them were recorded in between (`join_tasks`).

        Raises
        ------
        UsageError
            No task was recorded, or a task declares a region in any order and otherwise.
        """
        if self._plan is None:
            self._plan = self._build()
        return self._plan

    def bind(self) -> BoundPlan:
        """The plan on the user's arrays, for any executor's `prepare`. Arrays that changed are refused."""
        plan = self.plan()
        for array in self.arrays.values():
            array.check_unchanged()
        if self._bound is None:
            storage = Storage()
            storage.arrays.update({name: array.view for name, array in self.arrays.items()})
            self._bound = bind(plan, storage)
        return self._bound

    def _build(self) -> Plan:
        if not any(self._items):
            raise UsageError("a graph must have a task before it can run, got none; record one with task()")
        builder = PlanBuilder(self.name, kernels={})
        builder.reduction_groups(self.reduction_groups)
        for array in self.arrays.values():
            builder.buffer(array.name, array.shape, array.view.dtype.name, "dataset")
        waits = None in self._items
        if waits:
            builder.buffer(TASKWAIT, (1,), "uint8", "dataset")
        blocks = [self._block(number, task, waits) for number, task in enumerate(self._items)]
        specs: dict[tuple, KernelSpec] = {}
        num_loops: dict[str, int] = {}
        for tasks in self._groups(builder, blocks):
            task = self._items[tasks[0]]
            stem = TASKWAIT if task is None else task.name
            number = num_loops[stem] = num_loops.get(stem, -1) + 1
            spec, attributes = _wait_kernel() if task is None else self._spec(specs, task, waits)
            builder.attributes["kernels"][spec.name] = spec
            buffers = [region.array.name for _, region in task.regions] if task else []
            operands = dict(zip(spec.operands, [*buffers, *([TASKWAIT] if waits else [])], strict=True))
            builder.loop(f"{stem}.{number}", spec.name, operands, [blocks[t] for t in tasks], attributes=attributes)
        return builder.build()

    def _block(self, number: int, task: _Task | None, waits: bool) -> Block:
        if task is None:
            return Block((0,), (Access(UPDATE, TASKWAIT),))
        accesses = [Access(kind, region.array.name, region.box) for kind, region in task.regions]
        if waits:
            accesses.append(Access(READ, TASKWAIT))
        bounds: list[int] = []
        if task.kernel.function is None:
            for _, region in task.regions:
                for d, extent in enumerate(region.array.shape):
                    bounds.extend(region.box[d] if d < len(region.box) else (0, extent))
        return Block(tuple(bounds or [number]), tuple(accesses), task.flops, task.num_bytes)

    def _groups(self, builder: PlanBuilder, blocks: list[Block]) -> list[list[int]]:
        """Numbers of the tasks of each loop. The bits of a reduction depend on how loops share its private copies, so
        whatever touches such an array stays in the loops of the recorded order."""
        table, _, _ = build_access_table(builder.buffers, [BlockLoop("tasks", "", {}, {}, blocks)])
        reduced = {access.buffer for block in blocks for access in block.accesses if access.kind == REDUCTION}
        keep = [any(access.buffer in reduced for access in block.accesses) for block in blocks]
        return join_tasks(table, [_loop_key(task) for task in self._items], keep)

    def _spec(self, specs: dict[tuple, KernelSpec], task: _Task, waits: bool) -> tuple[KernelSpec, dict]:
        """The kernel's entry for tasks of this form, and the loop's attributes."""
        operands = (*(f"region{r}" for r in range(len(task.regions))), *([TASKWAIT] if waits else []))
        whole = [isinstance(value, numbers.Integral) for value in task.args]
        dimensions = tuple(len(region.array.shape) for _, region in task.regions)
        compiled = task.kernel.function is None
        key = (task.kernel, dimensions, tuple(whole) if compiled else ())
        integers = tuple(f"arg{i}" for i, w in enumerate(whole) if compiled and w)
        reals = tuple(f"arg{i}" for i, w in enumerate(whole) if compiled and not w)
        if key not in specs:
            bounds = [
                f"region{r}_{end}{d}" for r, n in enumerate(dimensions) for d in range(n) for end in ("start", "stop")
            ]
            specs[key] = KernelSpec(
                name=f"{task.kernel.name}/{len(specs)}",
                operands=operands,
                integers=integers,
                reals=reals,
                bounds=tuple(bounds) if compiled and bounds else ("task",),
                reference=None if compiled else _PythonTasks(tuple(self._items)),
                address=task.kernel.address,
                instruction_sets=False,
            )
        return specs[key], {f"arg{i}": value for i, value in enumerate(task.args) if compiled}


class _PythonTasks:
    """Calls the Python kernel of a task with views of its regions."""

    def __init__(self, tasks: tuple[_Task | None, ...]):
        self.tasks = tasks

    def __call__(self, operands: Mapping, attributes: Mapping, bounds: Mapping, iteration: int) -> None:
        task = self.tasks[bounds["task"]]
        values = []
        for r, (kind, region) in enumerate(task.regions):
            view = operands[f"region{r}"][region.index]
            if kind == READ:
                view.flags.writeable = False
            values.append(view)
        task.kernel.function(*values, *(iteration if value is ITERATION else value for value in task.args))


def _loop_key(task: _Task | None) -> tuple | None:
    if task is None:
        return None
    arrays = tuple(region.array.name for _, region in task.regions)
    args = () if task.kernel.function else tuple((isinstance(value, numbers.Integral), value) for value in task.args)
    return task.kernel, arrays, task.name, args


def _wait_kernel() -> tuple[KernelSpec, dict[str, int]]:
    """The empty compiled kernel behind taskwait()."""
    spec = KernelSpec(
        name=TASKWAIT,
        operands=(TASKWAIT,),
        integers=("kernel",),
        bounds=("work",),
        address=kernel_table.get("replica").address,
        instruction_sets=False,
    )
    return spec, {"kernel": 0}


def join_tasks(table: AccessTable, keys: Sequence[Hashable], keep: Sequence[bool]) -> list[list[int]]:
    """Return the numbers of the tasks of each loop, loops in an order in which they can run: independent blocks, in as
    few loops as the regions allow.

    Fork-join has a barrier behind each loop, so the order of recording would decide what it costs: a tiled product that
    is recorded i-j-k has all updates of one tile in a row. A task moves up to an earlier loop of its own kind where
    nothing that it conflicts with lies on the way. Tasks that conflict keep their order, and so do tasks that update
    the same cells in any order: the serial run of the loops leaves the bits of the serial run of the tasks.

    There are never more loops than runs of consecutive independent tasks of one key; where there are as many, these
    runs are what is returned, so that nothing moves without a gain.

    `table`: what the tasks touch, in the order of recording. Tasks of one loop have equal `keys`; tasks whose keys are
    equal touch the same arrays. Tasks of `keep` stay in the loop that consecutive tasks form, and in order with all
    others that stay.

    Linear in the number of cells that tasks touch, but for a binary search a task. At most one loop is opened for each
    run: what tasks of a run conflict with was recorded before the run, so that all may join the loop which is opened.
    """
    cells_of = [cells.tolist() for cells in np.split(table.list_cells, table.list_offsets[1:-1])]
    offsets, lists = table.task_offsets.tolist(), table.access_list.tolist()
    kinds = [ALONE if kind == UPDATE else kind for kind in table.access_kind.tolist()]
    # Cell -> kind -> last loop and last task; an access that conflicts with all others comes after them.
    last: list[dict[int, tuple[int, int]]] = [{} for _ in range(table.num_cells)]
    loops: list[list[int]] = []
    runs: list[list[int]] = []
    loops_of: dict[Hashable, list[int]] = {}
    for number, key in enumerate(keys):
        touched = [(kinds[a], cell) for a in range(offsets[number], offsets[number + 1]) for cell in cells_of[lists[a]]]
        earliest, before = 0, -1  # loop that it may join, and last task that it conflicts with
        for kind, cell in touched:
            for other, (loop, task) in last[cell].items():
                if other != kind or kind == ALONE:
                    earliest, before = max(earliest, loop + 1), max(before, task)
                elif kind != READ:
                    earliest = max(earliest, loop)
        goes_on = number > 0 and keys[number - 1] == key and before < runs[-1][0]
        if goes_on:
            runs[-1].append(number)
        else:
            runs.append([number])
        if keep[number]:
            place = len(loops) - goes_on
        else:
            mine = loops_of.setdefault(key, [])
            result = bisect_left(mine, earliest)
            place = mine[result] if result < len(mine) else len(loops)
        if place == len(loops):
            loops.append([])
            loops_of.setdefault(key, []).append(place)
        loops[place].append(number)
        for kind, cell in touched:
            seen = last[cell]
            loop = max(place, seen[kind][0]) if kind in seen else place
            if kind == ALONE:
                seen.clear()
            seen[kind] = loop, number
    return loops if len(loops) < len(runs) else runs
