"""Gathers a step's tokens, and the tokens that follow them or their labels, from a text of tokens."""

from libc.stdint cimport int32_t, uintptr_t
from libc.string cimport memcpy

from ..interface.block_kernel cimport KernelArgs, TaskContext

from ..interface.kernel_spec import KernelSpec, register
from .load import BAD_INDEX


cdef int tokens_load(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """Samples batch_order[iteration % num_batches]: sample s begins at token s * sequence. bounds: samples."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef Py_ssize_t sequence = a.integers[0], batch = a.integers[1], n, size = sequence * sizeof(int32_t)
    cdef const int32_t *order = <const int32_t *> a.operand[1] + (context.iteration % a.integers[2]) * batch
    cdef const int32_t *text
    for n in range(b[0], b[1]):
        if order[n] < 0 or order[n] >= a.integers[3]:
            return 2
        text = <const int32_t *> a.operand[0] + order[n] * sequence
        memcpy(<int32_t *> a.operand[2] + n * sequence, text, size)
        memcpy(<int32_t *> a.operand[3] + n * sequence, text + 1, size)
    return 0


cdef int labelled_tokens_load(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """Samples batch_order[iteration % num_batches]: `sequence` tokens and `answers` labels each. bounds: samples."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef Py_ssize_t sequence = a.integers[0], answers = a.integers[1], batch = a.integers[2], n
    cdef const int32_t *order = <const int32_t *> a.operand[2] + (context.iteration % a.integers[3]) * batch
    for n in range(b[0], b[1]):
        if order[n] < 0 or order[n] >= a.integers[4]:
            return 2
        memcpy(<int32_t *> a.operand[3] + n * sequence, <const int32_t *> a.operand[0] + order[n] * sequence,
               sequence * sizeof(int32_t))
        memcpy(<int32_t *> a.operand[4] + n * answers, <const int32_t *> a.operand[1] + order[n] * answers,
               answers * sizeof(int32_t))
    return 0


def _labelled_tokens_load_reference(operands, attributes, bounds, iteration):
    order = operands["batch_order"][iteration % attributes["num_batches"]]
    for n in range(bounds["n0"], bounds["n1"]):
        if not 0 <= order[n] < attributes["num_images"]:
            return BAD_INDEX
        for name, length in (("tokens", attributes["sequence"]), ("labels", attributes["answers"])):
            source = operands[f"dataset_{name}"][order[n] * length : (order[n] + 1) * length]
            operands["targets" if name == "labels" else name][n * length : (n + 1) * length] = source


def _tokens_load_reference(operands, attributes, bounds, iteration):
    sequence = attributes["sequence"]
    order = operands["batch_order"][iteration % attributes["num_batches"]]
    for n in range(bounds["n0"], bounds["n1"]):
        if not 0 <= order[n] < attributes["num_images"]:
            return BAD_INDEX
        start, rows = order[n] * sequence, slice(n * sequence, (n + 1) * sequence)
        operands["tokens"][rows] = operands["dataset_tokens"][start : start + sequence]
        operands["targets"][rows] = operands["dataset_tokens"][start + 1 : start + 1 + sequence]


register(KernelSpec(
    "tokens_load", ("dataset_tokens", "batch_order", "tokens", "targets"),
    ("sequence", "batch", "num_batches", "num_images"), (), ("n0", "n1"), _tokens_load_reference,
    <uintptr_t> &tokens_load))
register(KernelSpec(
    "labelled_tokens_load", ("dataset_tokens", "dataset_labels", "batch_order", "tokens", "targets"),
    ("sequence", "answers", "batch", "num_batches", "num_images"), (), ("n0", "n1"), _labelled_tokens_load_reference,
    <uintptr_t> &labelled_tokens_load))
