"""Kernels without numerical meaning, for tests and for measuring what a runtime costs."""

from libc.stdint cimport int32_t, int64_t, uint64_t, uintptr_t

from .block_kernel cimport KernelArgs, TaskContext

import numpy as np

from .kernel_table import KernelSpec, register


cdef inline uint64_t mix(uint64_t value) noexcept nogil:
    """A bijection of 64-bit numbers whose output bits depend on all input bits (finaliser of splitmix64)."""
    value = (value ^ (value >> 30)) * <uint64_t> 0xBF58476D1CE4E5B9
    value = (value ^ (value >> 27)) * <uint64_t> 0x94D049BB133111EB
    return value ^ (value >> 31)


cdef int hash_chain_block(const void *record, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef const KernelArgs *args = <const KernelArgs *> record
    cdef uint64_t *out = <uint64_t *> args.operand[0]
    cdef const uint64_t *inputs = <const uint64_t *> args.operand[1]
    cdef const int32_t *bounds = args.bounds + block * args.bounds_width
    cdef int64_t work = args.integers[0]
    cdef int64_t k
    cdef uint64_t value = mix(out[bounds[0]] + <uint64_t> context.iteration)
    if context.iteration == args.integers[1] and bounds[0] == args.integers[2]:
        return 7
    for k in range(bounds[1], bounds[2]):
        value = mix(value + inputs[k])
    for k in range(work):
        value = mix(value + 1)
    out[bounds[0]] = value
    return 0


def _mix_reference(value):
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & (2**64 - 1)
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & (2**64 - 1)
    return value ^ (value >> 31)


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


register(KernelSpec(
    name="hash_chain",
    operands=("out", "in"),
    integers=("work", "fail_iteration", "fail_index"),
    bounds=("i", "start", "stop"),
    reference=hash_chain_reference,
    address=<uintptr_t> hash_chain_block,
    instruction_sets=False,
))
