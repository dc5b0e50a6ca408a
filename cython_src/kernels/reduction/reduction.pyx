"""Filling and combining the private copies of reductions; reductions.py makes the loops that use them."""

from libc.stdint cimport int32_t, int64_t, uint64_t, uintptr_t

from ..interface.block_kernel cimport KernelArgs, TaskContext

import numpy as np

from ..interface.kernel_spec import KernelSpec, register
from ...plan.reductions import MAX_GROUPS


cdef extern from "cython_src/kernels/reduction/reductions.h" nogil:
    void fill_float32(float *, const int32_t *, int64_t, int64_t, int64_t, int64_t)
    void fill_float64(double *, const int32_t *, int64_t, int64_t, int64_t, int64_t)
    void fill_int32(int32_t *, const int32_t *, int64_t, int64_t, int64_t, int64_t)
    void fill_int64(int64_t *, const int32_t *, int64_t, int64_t, int64_t, int64_t)
    void fill_uint64(uint64_t *, const int32_t *, int64_t, int64_t, int64_t, int64_t)
    void combine_float32(float *, const float *, const int32_t *, int64_t, int64_t, int64_t, int64_t)
    void combine_float64(double *, const double *, const int32_t *, int64_t, int64_t, int64_t, int64_t)
    void combine_int32(int32_t *, const int32_t *, const int32_t *, int64_t, int64_t, int64_t, int64_t)
    void combine_int64(int64_t *, const int64_t *, const int32_t *, int64_t, int64_t, int64_t, int64_t)
    void combine_uint64(uint64_t *, const uint64_t *, const int32_t *, int64_t, int64_t, int64_t, int64_t)


cdef int fill(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """The neutral element of the operation; bounds: start and stop in each of four dimensions."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef const int64_t *n = a.integers
    if n[0] == 0:
        fill_float32(<float *> a.operand[0], b, n[2], n[3], n[4], n[1])
    elif n[0] == 1:
        fill_float64(<double *> a.operand[0], b, n[2], n[3], n[4], n[1])
    elif n[0] == 2:
        fill_int32(<int32_t *> a.operand[0], b, n[2], n[3], n[4], n[1])
    elif n[0] == 3:
        fill_int64(<int64_t *> a.operand[0], b, n[2], n[3], n[4], n[1])
    else:
        fill_uint64(<uint64_t *> a.operand[0], b, n[2], n[3], n[4], n[1])
    return 0


cdef int combine(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """out = ((out + copy0) + copy1) + ..., or another operation."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef const int64_t *n = a.integers
    cdef void *out = a.operand[0]
    cdef int64_t copy
    for copy in range(1, n[5] + 1):
        if n[0] == 0:
            combine_float32(<float *> out, <const float *> a.operand[copy], b, n[2], n[3], n[4], n[1])
        elif n[0] == 1:
            combine_float64(<double *> out, <const double *> a.operand[copy], b, n[2], n[3], n[4], n[1])
        elif n[0] == 2:
            combine_int32(<int32_t *> out, <const int32_t *> a.operand[copy], b, n[2], n[3], n[4], n[1])
        elif n[0] == 3:
            combine_int64(<int64_t *> out, <const int64_t *> a.operand[copy], b, n[2], n[3], n[4], n[1])
        else:
            combine_uint64(<uint64_t *> out, <const uint64_t *> a.operand[copy], b, n[2], n[3], n[4], n[1])
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
    "reduction_fill", ("out",), ("dtype", "operation", "n1", "n2", "n3"), (), _BOUNDS, _fill_reference,
    <uintptr_t> &fill, instruction_sets=False))
register(KernelSpec(
    "reduction_combine", ("out", *(f"copy{i}?" for i in range(MAX_GROUPS))),
    ("dtype", "operation", "n1", "n2", "n3", "copies"), (), _BOUNDS, _combine_reference, <uintptr_t> &combine,
    instruction_sets=False))
