"""Filling and combining the private copies of reductions; reductions.py makes the loops that use them."""

from reduction_c cimport *

import numpy as np

from ..interface.kernel_spec import KernelSpec, register
from ...plan.reductions import MAX_GROUPS


cdef int fill(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """The neutral element of the operation."""
    cdef reduction_fill_args a = read_reduction_fill(args, block)
    fill_region[a.dtype](a.out, a.bounds, a.n1, a.n2, a.n3, a.operation)
    return 0


cdef int combine(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """out = ((out + copy0) + copy1) + ..., or another operation."""
    cdef reduction_fill_args a = read_reduction_fill(args, block)  # the same, and copies behind `out`
    cdef Py_ssize_t copy
    for copy in range(a.copies):
        combine_regions[a.dtype](a.out, (<const KernelArgs *> args).operand[1 + copy], a.bounds, a.n1, a.n2, a.n3,
                                 a.operation)
    return 0


_OPERATIONS = (np.add, np.multiply, np.minimum, np.maximum)


def _region(array, attributes, bounds):
    """The box of an array, as a view with four dimensions."""
    whole = array.reshape(-1, attributes["n1"], attributes["n2"], attributes["n3"])
    return whole[tuple(slice(bounds[f"start{d}"], bounds[f"stop{d}"]) for d in range(4))]


def _fill_reference(operands, attributes, bounds, iteration):
    dtype = operands["out"].dtype
    limits = (-np.inf, np.inf) if dtype.kind == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    _region(operands["out"], attributes, bounds)[...] = (0, 1, limits[1], limits[0])[attributes["operation"]]


def _combine_reference(operands, attributes, bounds, iteration):
    out = _region(operands["out"], attributes, bounds)
    for copy in range(attributes["copies"]):
        _OPERATIONS[attributes["operation"]](out, _region(operands[f"copy{copy}"], attributes, bounds), out=out)


_BOUNDS = tuple(f"{end}{d}" for d in range(4) for end in ("start", "stop"))
register(KernelSpec(
    "reduction_fill", ("out",), ("dtype", "operation", "n1", "n2", "n3", "copies?"), (), _BOUNDS, _fill_reference,
    <uintptr_t> &fill, instruction_sets=False))
register(KernelSpec(
    "reduction_combine", ("out", *(f"copy{i}?" for i in range(MAX_GROUPS))),
    ("dtype", "operation", "n1", "n2", "n3", "copies"), (), _BOUNDS, _combine_reference, <uintptr_t> &combine,
    instruction_sets=False))
