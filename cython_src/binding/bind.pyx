"""Binding: a symbolic plan becomes records of kernels, pointers and bounds that every executor runs alike."""

from libc.stdint cimport int32_t, int64_t, uintptr_t

from interface_c cimport *

import time
from functools import partial

import numpy as np

from ..kernels import kernel_table
from ..kernels.linear.linear import choose_instruction_set
from ..kernels.simd import instruction_sets
from ..errors import UsageError, check_choice
from ..plan.cells import commutative_locks
from ..shown import as_html
from .data import load
from .storage import PAGE_BYTES, Storage, aligned_empty, view_of

EVENT_DTYPE = np.dtype(
    [("start_ns", "<i8"), ("stop_ns", "<i8"), ("iteration", "<i8"), ("task", "<i4"), ("worker", "<i4")]
)
SPELL_DTYPE = np.dtype(
    [("start_ns", "<i8"), ("stop_ns", "<i8"), ("replay", "<i8"), ("task", "<i4"), ("kind", "<i4")]
)
SPELL_KINDS = ("waiting", "creating", "lock", "asleep", "preempted")  # by `kind`
TARGETS = ("cpu", "numpy", "float64")
MAX_OPERANDS = FORKTASK_MAX_OPERANDS  # of a kernel


class BlockFailure(RuntimeError):
    """A block's kernel failed: raised in the caller of `run`, naming the kernel's exception, task, loop and iteration.

    Attributes
    ----------
    task_name : str
    iteration : int
    status : int
        What the kernel returned; -1 for a Python callable that raised (then `__cause__` is its exception).
    """

    def __init__(self, task_name, iteration, status, cause=None):
        named = "" if cause is None else f"{type(cause).__name__}: {cause}; "
        super().__init__(
            f"{named}{task_name} failed in iteration {iteration} with status {status}; "
            f"the data of this run are undefined, start again from saved parameters"
        )
        self.task_name = task_name
        self.iteration = iteration
        self.status = status


cdef void *kept(list keep, values, dtype) except NULL:
    """Address of values as a contiguous array, which is kept: they themselves if they are one. Never empty, so that
    there is an address."""
    array = np.ascontiguousarray(values, dtype)
    array = array if array.size else np.zeros(1, dtype)
    keep.append(array)
    return <void *> <uintptr_t> array.ctypes.data


cdef class PythonKernel:
    """A Python callable behind the C signature; runs with the GIL."""

    cdef str loop
    cdef object function
    cdef object operands
    cdef object attributes
    cdef object bounds
    cdef BoundPlan owner


cdef int _run_python_kernel(const void *args, Py_ssize_t block, const TaskContext *context) noexcept with gil:
    cdef PythonKernel kernel = <PythonKernel> args
    cdef list calls = kernel.owner.python_calls
    cdef int64_t start_ns = 0 if calls is None else time.monotonic_ns()
    try:
        status = kernel.function(kernel.operands, kernel.attributes, kernel.bounds[block], context.iteration)
        return 0 if status is None else int(status)
    except BaseException as error:
        kernel.owner.errors.append(error)
        return -1
    finally:
        if calls is not None:
            calls.append((kernel.loop, start_ns, time.monotonic_ns()))


cdef struct OwnOperands:
    BlockKernel kernel
    const void **args  # one record a block


cdef int _run_own_operands(const void *record, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """A kernel whose blocks differ in their operands."""
    cdef const OwnOperands *own = <const OwnOperands *> record
    return own.kernel(own.args[block], block, context)


cdef class BoundPlan:
    """A plan bound to memory and kernels. Made by `bind`.

    Attributes
    ----------
    plan : Plan
    arrays : dict of str to ndarray
        Every buffer by name. Views: writing to them changes what kernels see.
    target : {"cpu", "numpy", "float64"}
    instruction_set : str
        Of the compiled kernels; "baseline" when none depends on it; "python" for NumPy targets.
    """

    def __repr__(self):
        return f"<bound to {self.target} ({self.instruction_set}): {self.plan!r}>"

    def _repr_html_(self):
        return as_html(repr(self), self.plan._rows())

    def view(self, name):
        """Array that users know as `name`: a buffer, or one of the plan's aliases (PyTorch names, activations)."""
        return view_of(self.plan, self.arrays, name)

    def load(self, samples, labels=None, *, order=None, learning_rate=None):
        """Copy data into the plan's arrays.

        Parameters
        ----------
        samples : array
            All images of the data set, or all tokens; after the last token comes the first, if no other is given.
        labels : array of int, optional
            Of the images; of tokens where the plan has labels.
        order : array of int, optional
            Numbers of the samples of each batch, one batch after the other, at least as many as the plan has batches;
            default: in order.
        learning_rate : float or array, optional
            Of all iterations, or of each.

        Raises
        ------
        UsageError
            Other shapes than the plan's, or numbers that are no sample's or no label.
        """
        load(self.plan, self.arrays, samples, labels, order, learning_rate)

    def run_task(self, int loop, int block, int64_t iteration, Workers workers, int worker=0):
        """Run one block on the calling thread, without the GIL. For tests and for executors written in Python."""
        cdef int status
        cdef unsigned control
        if not (0 <= loop < self.num_loops and 0 <= block < self.loops[loop].num_blocks):
            raise UsageError(f"no block {block} of loop {loop} in plan {self.plan.name!r}")
        with nogil:
            control = forktask_flush_denormals()
            status = run_block(&self.loops[loop], block, iteration, &workers.states[worker])
            forktask_restore_denormals(control)
        return status

    def check_unchanged(self):
        """Raise `UsageError` if an array was exchanged or got another shape since the plan was bound.

        Kernels and recorded graphs hold pointers: they would go on with the former memory.
        """
        for name, array, shape in self.layout:
            if self.arrays.get(name) is not array or (self.storage.arrays.get(name, array) is not array):
                raise UsageError(
                    f"arrays of a bound plan may not be exchanged, but {name!r} was; write to it in place, or bind the "
                    f"plan again and prepare an executor with that")
            if array.shape != shape:
                raise UsageError(
                    f"arrays of a bound plan may not change their shape, but {name!r} has {array.shape} now and had "
                    f"{shape}; bind the plan again and prepare an executor with that")

    def again(self, plan):
        """Bind a plan that differs in its loops only, such as the unrolled one, to the same memory."""
        sets = None if self.instruction_set in ("python", "baseline") else self.instruction_set
        return bind(plan, self.storage, self.target, sets, arrays=self.arrays)

    def shift_iterations(self, int64_t shift):
        """Add `shift` to the iteration that blocks see, for runs that do not begin at a multiple of the stride."""
        cdef Py_ssize_t k
        for k, loop in enumerate(self.plan.loops):
            self.loops[k].iteration_offset = <int32_t> (loop.iteration_offset + shift)

    def raise_failure(self, Workers workers):
        """Raise `BlockFailure` for the earliest failure any worker noted, and forget it; return if there was none."""
        cdef int w
        failures = []
        for w in range(workers.num_workers):
            if workers.states[w].failed_task >= 0:
                failures.append((
                    workers.states[w].failed_iteration, workers.states[w].failed_task, workers.states[w].status))
            workers.states[w].failed_task = -1
        errors, self.errors = self.errors, []
        for error in errors:
            if isinstance(error, KeyboardInterrupt):  # Ctrl-C while a Python callable ran on the main thread
                raise error
        if failures:
            iteration, task, status = min(failures)
            cause = errors[0] if errors else None
            raise BlockFailure(self.plan.task_name(task), iteration, status, cause) from cause

    def discard_failure(self, Workers workers):
        """Forget failures, where something else is raised: an interrupt."""
        cdef int w
        for w in range(workers.num_workers):
            workers.states[w].failed_task = -1
        self.errors = []


def _whole_pages(num_bytes):
    """Pages that belong to one worker, which touches them first."""
    num_pages = max(1, -(-num_bytes // PAGE_BYTES))
    return aligned_empty((num_pages * PAGE_BYTES,), np.uint8, alignment=PAGE_BYTES)


cdef class Workers:
    """Per-worker state: context, scratch memory, log of `event_capacity` events, 0: none. `allocate`: function of a
    number of bytes that gives scratch memory of a special kind, as an uint8 array aligned to 64; default: whole pages.
    """

    def __cinit__(self, int num_workers, Py_ssize_t scratch_bytes=0, int64_t event_capacity=0, allocate=None):
        cdef int w
        self.num_workers = num_workers
        self.block = aligned_empty((num_workers * sizeof(WorkerState),), np.uint8, alignment=128)
        self.block[:] = 0
        self.states = <WorkerState *> <uintptr_t> self.block.ctypes.data
        self.scratch = [(allocate or _whole_pages)(scratch_bytes) for _ in range(num_workers)]
        self.event_arrays = []
        self.spell_arrays = []
        for w in range(num_workers):
            self.states[w].context.worker = w
            self.states[w].context.abi_version = FORKTASK_ABI_VERSION
            self.states[w].context.scratch = <void *> <uintptr_t> self.scratch[w].ctypes.data
            self.states[w].failed_task = -1
            if event_capacity > 0:
                # Touched here, so that no page fault falls into a timed block.
                events = np.zeros(event_capacity, EVENT_DTYPE)
                events["task"] = -1
                self.states[w].log.events = <BlockEvent *> kept(self.event_arrays, events, EVENT_DTYPE)
                self.states[w].log.event_capacity = event_capacity

    def log_spells(self, int64_t capacity):
        """Log what workers do between blocks, too: spells of waiting, sleeping, creating tasks, and without a CPU;
        `capacity` of them for each worker. Raises `UsageError`: there is no log of blocks."""
        cdef int w
        if not self.event_arrays:
            raise UsageError("spells are logged beside blocks, got workers without an event log; give event_capacity")
        self.spell_arrays = []
        for w in range(self.num_workers):
            spells = np.zeros(capacity, SPELL_DTYPE)
            spells["task"] = -1  # Touched here, like the events.
            self.states[w].log.spells = <Spell *> kept(self.spell_arrays, spells, SPELL_DTYPE)
            self.states[w].log.spell_capacity = capacity

    def switch_log(self, bint on):
        """Switch a log that these workers have off or on again, between runs: what it holds stays."""
        cdef int w
        for w in range(self.num_workers):
            self.states[w].log.events = NULL
            self.states[w].log.spells = NULL
            if on and self.event_arrays:
                self.states[w].log.events = <BlockEvent *> <uintptr_t> self.event_arrays[w].ctypes.data
            if on and self.spell_arrays:
                self.states[w].log.spells = <Spell *> <uintptr_t> self.spell_arrays[w].ctypes.data

    def spells(self):
        """Return the spells of each worker in the order of their ends, as structured arrays of start_ns, stop_ns,
        replay, task, kind (of `SPELL_KINDS`), and how many were not kept. Spells may lie within others and within
        blocks. `replay` and `task` are those of a created task, else -1."""
        cdef int w
        if not self.spell_arrays:
            return [np.zeros(0, SPELL_DTYPE) for _ in range(self.num_workers)], 0
        parts, lost = [], 0
        for w in range(self.num_workers):
            parts.append(self.spell_arrays[w][:min(self.states[w].log.num_spells, self.states[w].log.spell_capacity)])
            lost += max(0, self.states[w].log.num_spells - self.states[w].log.spell_capacity)
        return parts, lost

    def events(self):
        """All logged events, ordered by start: structured array of start_ns, stop_ns, iteration, task, worker. Raises
        `RuntimeError`: some log was too small; nothing incomplete is returned."""
        cdef int w
        if not self.event_arrays:
            return np.zeros(0, EVENT_DTYPE)
        parts = []
        for w in range(self.num_workers):
            if self.states[w].log.num_events > self.states[w].log.event_capacity:
                raise RuntimeError(
                    f"the event log of worker {w} holds {self.states[w].log.event_capacity} events but "
                    f"{self.states[w].log.num_events} happened; log fewer iterations or raise the capacity")
            parts.append(self.event_arrays[w][:self.states[w].log.num_events])
        events = np.concatenate(parts)
        if self.tasks_per_pass:
            events["task"] %= self.tasks_per_pass
        return events[np.argsort(events["start_ns"], kind="stable")]

    def clear_events(self):
        """Empty the logs."""
        cdef int w
        for w in range(self.num_workers):
            self.states[w].log.num_events = 0
            self.states[w].log.num_spells = 0
            self.states[w].log.logged_ns = 0
            self.states[w].log.looked_ns = 0


def _python_arguments(BoundPlan bound, spec, loop, operands):
    """Address of the record of a Python kernel; the bound plan keeps it."""
    cdef PythonKernel kernel = PythonKernel.__new__(PythonKernel)
    kernel.function = spec.reference
    kernel.operands = {name: bound.arrays[buffer] for name, buffer in operands.items()}
    kernel.attributes = spec.attributes_of(loop)
    kernel.bounds = [dict(zip(spec.bounds, block.bounds)) for block in loop.blocks]
    kernel.loop, kernel.owner = loop.name, bound
    bound.keep.append(kernel)
    return <uintptr_t> <void *> kernel


class _ArgumentMemory:
    """What kernels read besides their operands, one after the other in the order of the loops.

    A replay of a large graph reads all of it once, whatever the caches hold: in a row, processors fetch it ahead.
    """

    def __init__(self):
        self.chunks = []
        self.newest = np.empty(0, np.uint8)
        self.used = 0  # bytes of the newest chunk
        self.placed = {}  # id of an array that several loops share -> (address, the array)

    def place(self, array):
        """Copy an array; returns the address of the copy, a multiple of 8."""
        size = (array.nbytes + 7) // 8 * 8
        if self.used + size > len(self.newest):
            # Large arrays come in huge pages where the system has them.
            self.newest = aligned_empty((max(size, min(4096 << 2 * len(self.chunks), 8 << 20)),), np.uint8)
            self.chunks.append(self.newest)
            self.used = 0
        copy = self.newest[self.used : self.used + array.nbytes]
        copy[:] = array.reshape(-1).view(np.uint8)
        self.used += size
        return copy.ctypes.data

    def place_once(self, array):
        """The same; an array that was placed before is not copied again."""
        if id(array) not in self.placed:
            self.placed[id(array)] = (self.place(array), array)
        return self.placed[id(array)][0]


def _compiled_arguments(BoundPlan bound, spec, loop, uintptr_t micro_address, memory, operands):
    """Address of the record of a compiled kernel, in `memory`."""
    cdef KernelArgs *args = <KernelArgs *> <uintptr_t> memory.place(np.zeros(sizeof(KernelArgs), np.uint8))
    attributes = spec.attributes_of(loop)
    integers = np.array([attributes[name] for name in spec.integers], dtype=np.int64)
    reals = np.array([attributes[name] for name in spec.reals], dtype=np.float64)
    bounds = loop.bounds
    for i, name in enumerate(spec.operands):
        if name in operands:  # an optional operand that is absent stays NULL
            args.operand[<int> i] = <void *> <uintptr_t> bound.arrays[operands[name]].ctypes.data
    args.integers = <const int64_t *> <uintptr_t> memory.place(integers)
    args.reals = <const double *> <uintptr_t> memory.place(reals)
    args.bounds = <const int32_t *> <uintptr_t> memory.place_once(bounds)
    args.bounds_width = bounds.shape[1]
    args.num_blocks = loop.num_blocks
    args.micro = <const MicroKernels *> micro_address
    return <uintptr_t> args


def bind(plan, storage=None, target="cpu", instruction_set=None, *, arrays=None):
    """Give a plan memory and kernels of this processor, as `targets.bind` says; `arrays`: memory of buffers that
    another binding owns (`BoundPlan.again`)."""
    cdef BoundPlan bound = BoundPlan.__new__(BoundPlan)
    cdef uintptr_t micro_address = 0
    cdef Py_ssize_t k
    check_choice("target", target, TARGETS)
    if storage is None:
        storage = Storage()
    bound.instruction_set = "python"
    specs = [kernel_table.get(loop.kernel, plan.attributes.get("kernels")) for loop in plan.loops]
    if target == "cpu" and not any(spec.instruction_sets for spec in specs):
        bound.instruction_set = "baseline"
    elif target == "cpu":
        bound.instruction_set = choose_instruction_set(instruction_set)
        micro_address = instruction_sets.micro_kernels_address(bound.instruction_set)
    bound.plan = plan
    bound.storage = storage
    bound.target = target
    bound.arrays = storage.arrays_for(plan, "float64" if target == "float64" else None, arrays)
    bound.layout = [(name, array, array.shape) for name, array in bound.arrays.items()]
    bound.num_loops = len(plan.loops)
    bound.num_tasks = plan.num_tasks
    bound.iteration_stride = plan.iteration_stride
    bound.scratch_bytes = 0
    bound.errors = []
    memory = _ArgumentMemory()
    bound.keep = [memory]
    bound.needs_gil = False
    records = np.zeros(bound.num_loops * sizeof(LoopRecord), np.uint8)
    bound.loops = <LoopRecord *> kept(bound.keep, records, np.uint8)
    bound.task_loop = <int32_t *> kept(bound.keep, plan.task_loop, np.int32)
    for k, loop in enumerate(plan.loops):
        specs[k].check(loop)
        bound.scratch_bytes = max(bound.scratch_bytes, specs[k].scratch_of(loop))
        bound.loops[k].first_task = loop.first_task
        bound.loops[k].num_blocks = loop.num_blocks
        bound.loops[k].iteration_stride = plan.iteration_stride
        bound.loops[k].iteration_offset = loop.iteration_offset
        _set_kernel(bound, k, loop, specs[k], micro_address, memory)
    _set_locks(bound)
    return bound


cdef int _set_locks(BoundPlan bound) except -1:
    """Give the loops with commutative accesses their locks."""
    cdef Py_ssize_t k
    num_locks, offsets, ids = commutative_locks(bound.plan.accesses)
    cdef const int32_t *first = <const int32_t *> kept(bound.keep, offsets, np.int32)
    cdef const int32_t *lock_ids = <const int32_t *> kept(bound.keep, ids, np.int32)
    cdef int32_t *locks = <int32_t *> kept(bound.keep, np.zeros(num_locks, np.int32), np.int32)
    for k in range(bound.num_loops):
        if first[bound.loops[k].first_task] < first[bound.loops[k].first_task + bound.loops[k].num_blocks]:
            bound.loops[k].lock_offsets = first + bound.loops[k].first_task
            bound.loops[k].lock_ids = lock_ids
            bound.loops[k].locks = locks
    return 0


cdef int _set_kernel(BoundPlan bound, Py_ssize_t k, loop, spec, uintptr_t micro_address, memory) except -1:
    """Give a loop its kernel and the kernel's arguments."""
    cdef LoopRecord *record = &bound.loops[k]
    cdef OwnOperands *chosen
    if spec.reference is None and (bound.target != "cpu" or spec.address is None):
        raise UsageError(f"kernel {loop.kernel!r} has no form for target {bound.target!r}; use target 'cpu'")
    if len(spec.operands) > MAX_OPERANDS:
        raise AssertionError(f"kernel {spec.name!r} has too many operands")
    if bound.target == "cpu" and spec.address is not None:
        record.kernel = <BlockKernel> <uintptr_t> spec.address
        make_arguments = partial(_compiled_arguments, bound, spec, loop, micro_address, memory)
    else:
        record.kernel = <BlockKernel> _run_python_kernel
        bound.needs_gil = True
        make_arguments = partial(_python_arguments, bound, spec, loop)
    if not isinstance(loop.blocks, tuple) or not any(block.operands for block in loop.blocks):
        record.args = <const void *> <uintptr_t> make_arguments(loop.operands)
        return 0
    # Blocks with operands of their own: a record for each combination, chosen by the block's number.
    made = {}
    addresses = np.zeros(loop.num_blocks, dtype=np.uintp)
    for i, block in enumerate(loop.blocks):
        key = tuple(sorted((block.operands or {}).items()))
        if key not in made:
            made[key] = make_arguments({**loop.operands, **dict(key)})
        addresses[i] = made[key]
    chosen = <OwnOperands *> kept(bound.keep, aligned_empty((sizeof(OwnOperands),), np.uint8), np.uint8)
    chosen.args = <const void **> kept(bound.keep, addresses, np.uintp)
    chosen.kernel = record.kernel
    record.kernel = <BlockKernel> _run_own_operands
    record.args = <const void *> chosen
    return 0
