"""Kernels without numerical meaning, for tests and for measuring what a runtime costs."""

from bench_c cimport *


import numpy as np

from ..interface.kernel_spec import KernelSpec, implement, register
from .specs import KERNELS


cdef inline uint64_t mix(uint64_t value) noexcept nogil:
    """A bijection of 64-bit numbers whose output bits depend on all input bits (finaliser of splitmix64)."""
    value = (value ^ (value >> 30)) * <uint64_t> 0xBF58476D1CE4E5B9
    value = (value ^ (value >> 27)) * <uint64_t> 0x94D049BB133111EB
    return value ^ (value >> 31)


cdef int hash_chain_block(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef hash_chain_args a = read_hash_chain(args, block)
    cdef uint64_t *out = <uint64_t *> a.out + a.i
    cdef const uint64_t *inputs = <const uint64_t *> a.in_
    cdef int64_t k, _k
    cdef uint64_t value = mix(out[0] + <uint64_t> context.iteration)
    if context.iteration == a.fail_iteration and a.i == a.fail_index:
        return 7
    for k in range(a.start, a.stop):
        value = mix(value + inputs[k])
    for _k in range(a.work):
        value = mix(value + 1)
    out[0] = value
    return 0


def _mix_reference(value):
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & (2**64 - 1)
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & (2**64 - 1)
    return value ^ (value >> 31)


@implement(KERNELS, "hash_chain", <uintptr_t> hash_chain_block, instruction_sets=False)
def hash_chain_reference(operands, attributes, bounds, iteration):
    """out[i] = hash(out[i], iteration, in[start:stop]): any missed, doubled or misplaced execution changes it.

    Parameters
    ----------
    operands : "out" uint64, shape (n,), INOUT at i; "in" uint64, shape (m,), IN
    attributes : "work": further hash steps, about 2 ns each; the block fails with status 7 in iteration
        "fail_iteration" at i = "fail_index" (-1: never)
    bounds : "i", "start", "stop"
    """
    if iteration == attributes["fail_iteration"] and bounds["i"] == attributes["fail_index"]:
        return 7
    value = _mix_reference((int(operands["out"][bounds["i"]]) + iteration) & (2**64 - 1))
    for number in operands["in"][bounds["start"] : bounds["stop"]]:
        value = _mix_reference((value + int(number)) & (2**64 - 1))
    for _ in range(attributes["work"]):
        value = _mix_reference((value + 1) & (2**64 - 1))
    operands["out"][bounds["i"]] = np.uint64(value)
    return 0


# Kinds of work of a Task Bench task, in the order of kernels/bench/task_bench.h.
TASK_BENCH_KERNELS = ("empty", "compute", "memory", "load_imbalance", "busy_wait")
CELL_NUMBERS = TASK_BENCH_CELL
WORK_FLOPS = TASK_BENCH_FLOPS
WORK_BYTES = 2 * TASK_BENCH_COPY_BYTES


def task_bench_reference(operands, attributes, bounds, iteration):
    """Check the inputs and mark the output as task_bench.h does; the work itself leaves no trace and is left out.

    Parameters
    ----------
    operands : "cells" int64, shape (steps, width, CELL_NUMBERS), INOUT at [step, point], IN at the predecessors
    attributes : see `task_bench.plan`
    bounds : "point", and "start0", "stop0", ...: ranges of predecessor points in the step before
    """
    cells, step = operands["cells"], attributes["step"]
    own = cells[step, bounds["point"]]
    if not attributes["check"]:
        return 0
    for k in range((len(bounds) - 1) // 2):
        for q in range(bounds[f"start{k}"], bounds[f"stop{k}"]):
            if cells[step - 1, q, 0] != own[0] + (step != 0) or (step and cells[step - 1, q, 1] != iteration):
                return 1
    own[0] += 1
    own[1] = iteration
    return 0


def _task_bench_scratch(attributes, bounds, operands):
    return task_bench_scratch(attributes["kernel"])


def task_bench_kernel(int num_ranges):
    """Name of the Task Bench kernel for `num_ranges` ranges of predecessors; the first call registers it."""
    ranges = tuple(name for k in range(num_ranges) for name in (f"start{k}", f"stop{k}"))
    return register(KernelSpec(
        name=f"task_bench_{num_ranges}",
        operands=("cells",),
        integers=("kernel", "work", "step", "steps", "width", "check"),
        bounds=("point", *ranges),
        reference=task_bench_reference,
        address=<uintptr_t> task_bench_block,
        instruction_sets=False,
        scratch_bytes=_task_bench_scratch,
    )).name


cdef int replica_block(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef replica_args a = read_replica(args, block)
    task_bench_work(a.kernel, a.work, 0, NULL)
    return 0


# Work without data, in the place of another kernel: one bound, the units of compute work of the block.
@implement(KERNELS, "replica", <uintptr_t> replica_block, instruction_sets=False)
def _replica_reference(operands, attributes, bounds, iteration):
    return 0


LINE_NUMBERS = 8  # int64 of a cache line
PAGE_NUMBERS = 4096 // 8 + LINE_NUMBERS  # a page, and the line by which the next one is shifted against it


cdef int walk_block(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef walk_args a = read_walk(args, block)
    cdef int64_t page = 0, _k
    cdef int64_t *memory = <int64_t *> a.memory + a.part * a.pages * a.page_numbers
    for _k in range(a.pages):
        page = (5 * page + 1 + memory[page * a.page_numbers]) & (a.pages - 1)
        memory[page * a.page_numbers + 1] += 1
    return 0


@implement(KERNELS, "walk", <uintptr_t> walk_block, instruction_sets=False)
def walk_reference(operands, attributes, bounds, iteration):
    """Add one to a number on each page of a part of memory. Which page comes next hangs on what was read on the last
    one, so that a walk takes the sum of all latencies: few microseconds where the lines are in a core's own cache.

    Parameters
    ----------
    operands : "memory" int64, shape (parts, pages, page_numbers), INOUT at [part]; the first number of a page is zero
    attributes : "pages", a power of two; "page_numbers"
    bounds : "part"
    """
    operands["memory"][bounds["part"], :, 1] += 1
    return 0


def time_work(int kernel, int64_t work, int64_t repetitions):
    """Seconds that `repetitions` tasks take, of this work and without any runtime, on the calling thread."""
    cdef int64_t start, stop, k
    scratch = np.zeros(task_bench_scratch(kernel), np.uint8)
    cdef uintptr_t address = scratch.ctypes.data
    with nogil:
        start = forktask_now_ns()
        for k in range(repetitions):
            task_bench_work(kernel, work, k, <char *> address)
        stop = forktask_now_ns()
    return (stop - start) * 1e-9
