"""Cross-entropy of the next token, or of labels, over a vocabulary, and its gradient in place of the logits.

loss[row] = log(sum e^(z - max z)) - (z[target] - max z); gradient = (softmax(z) - indicator of the target) / rows. A
row of logits is `pitch` long; from `vocabulary` on it is neither read nor part of the softmax, and its gradient is
zero. With `ignored`, rows of the label IGNORED have neither loss nor gradient, and the others' number takes the place
of that of the rows; a block then reads all labels.
Probabilities have no buffer of their own: `vocabulary_loss` turns logits into their gradient in one visit of a row, and
`vocabulary_logsumexp` leaves what `vocabulary_gradient` needs to compute them from the logits once more. Sums run in an
order that depends on the vocabulary alone. Bounds: rows.
"""

from libc.math cimport logf
from libc.stdint cimport int32_t, uintptr_t

from ..interface.block_kernel cimport KernelArgs, TaskContext
from .softmax cimport count_answers
from .vocabulary_loops cimport VocabularyLoops

from libc.string cimport memset

import numpy as np

from ..interface.kernel_spec import KernelSpec, register
from .softmax import BAD_LABEL, IGNORED


cdef extern from "cython_src/kernels/simd/micro_kernels.h" nogil:
    ctypedef struct Micro "MicroKernels":  # what is used here of the table of inner loops
        const VocabularyLoops *vocabulary


cdef inline bint is_first_largest(const float *z, Py_ssize_t target, float largest) noexcept nogil:
    """Whether the target's logit is the largest, and none before it is as large."""
    cdef Py_ssize_t i
    if z[target] != largest:
        return False
    for i in range(target):
        if z[i] == largest:
            return False
    return True


cdef inline void finish_gradient(float *z, Py_ssize_t target, Py_ssize_t vocabulary, Py_ssize_t pitch,
                                 float scale) noexcept nogil:
    cdef Py_ssize_t i
    z[target] -= scale
    for i in range(vocabulary, pitch):
        z[i] = 0


cdef inline float gradient_scale(const KernelArgs *a) noexcept nogil:
    """One over the number of rows that have a loss."""
    cdef Py_ssize_t rows = a.integers[2]
    return <float> (1.0 / (count_answers(<const int32_t *> a.operand[1], rows) if a.integers[3] else rows))


cdef int vocabulary_loss(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef const Micro *micro = <const Micro *> a.micro
    cdef const int32_t *targets = <const int32_t *> a.operand[1]
    cdef Py_ssize_t vocabulary = a.integers[0], pitch = a.integers[1], row, target
    cdef float largest, total, shifted, scale = gradient_scale(a)
    cdef float *z
    for row in range(b[0], b[1]):
        target = targets[row]
        if a.integers[3] and target == -100:
            memset(<float *> a.operand[0] + row * pitch, 0, pitch * sizeof(float))
            (<float *> a.operand[2])[row] = 0
            (<int32_t *> a.operand[3])[row] = 0
            continue
        if target < 0 or target >= vocabulary:
            return 3
        z = <float *> a.operand[0] + row * pitch
        largest = micro.vocabulary.largest(z, vocabulary)
        (<int32_t *> a.operand[3])[row] = is_first_largest(z, target, largest)
        shifted = z[target] - largest
        total = micro.vocabulary.sum_powers(z, vocabulary, largest, z)
        (<float *> a.operand[2])[row] = logf(total) - shifted
        micro.vocabulary.scale(z, vocabulary, scale / total)
        finish_gradient(z, target, vocabulary, pitch, scale)
    return 0


cdef int evaluate(const KernelArgs *a, Py_ssize_t block, float *logsumexp, float *losses,
                  int32_t *correct) noexcept nogil:
    """Losses and hits of a block's rows; with `logsumexp` the logarithms of the sums too."""
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef const Micro *micro = <const Micro *> a.micro
    cdef const int32_t *targets = <const int32_t *> a.operand[1]
    cdef Py_ssize_t vocabulary = a.integers[0], pitch = a.integers[1], row, target
    cdef float largest, total
    cdef const float *z
    for row in range(b[0], b[1]):
        target = targets[row]
        if a.integers[3] and target == -100:
            losses[row] = correct[row] = 0
            if logsumexp != NULL:
                logsumexp[row] = 0
            continue
        if target < 0 or target >= vocabulary:
            return 3
        z = <const float *> a.operand[0] + row * pitch
        largest = micro.vocabulary.largest(z, vocabulary)
        total = logf(micro.vocabulary.sum_powers(z, vocabulary, largest, NULL))
        losses[row] = total - (z[target] - largest)
        correct[row] = is_first_largest(z, target, largest)
        if logsumexp != NULL:
            logsumexp[row] = total + largest
    return 0


cdef int vocabulary_evaluate(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef const KernelArgs *a = <const KernelArgs *> args
    return evaluate(a, block, NULL, <float *> a.operand[2], <int32_t *> a.operand[3])


cdef int vocabulary_logsumexp(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef const KernelArgs *a = <const KernelArgs *> args
    return evaluate(a, block, <float *> a.operand[2], <float *> a.operand[3], <int32_t *> a.operand[4])


cdef int vocabulary_gradient(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef const int32_t *targets = <const int32_t *> a.operand[1]
    cdef const float *logsumexp = <const float *> a.operand[2]
    cdef Py_ssize_t vocabulary = a.integers[0], pitch = a.integers[1], row
    cdef float scale = gradient_scale(a)
    cdef float *z
    for row in range(b[0], b[1]):
        if a.integers[3] and targets[row] == -100:
            memset(<float *> a.operand[0] + row * pitch, 0, pitch * sizeof(float))
            continue
        if targets[row] < 0 or targets[row] >= vocabulary:
            return 3
        z = <float *> a.operand[0] + row * pitch
        (<const Micro *> a.micro).vocabulary.scaled_powers(z, vocabulary, logsumexp[row], scale)
        finish_gradient(z, targets[row], vocabulary, pitch, scale)
    return 0


def _rows(operands, attributes, bounds):
    """Logits, targets, whether they count, and logarithms of the softmax's sums, of a block's rows; None where a target
    is outside the vocabulary."""
    rows = slice(bounds["r0"], bounds["r1"])
    z, targets = operands["logits"][rows, : attributes["vocabulary"]], operands["targets"][rows]
    counted = (targets != IGNORED) | (not attributes["ignored"])
    if (counted & ((targets < 0) | (targets >= attributes["vocabulary"]))).any():
        return None
    largest = z.max(axis=1)
    return z, np.where(counted, targets, 0), counted, largest + np.log(np.exp(z - largest[:, None]).sum(axis=1))


def _write_gradient(operands, attributes, bounds, z, targets, counted, logsumexp):
    gradient = np.exp(z - logsumexp[:, None])
    gradient[np.arange(len(targets)), targets] -= 1
    rows, vocabulary = slice(bounds["r0"], bounds["r1"]), attributes["vocabulary"]
    answers = max((operands["targets"] != IGNORED).sum(), 1) if attributes["ignored"] else attributes["rows"]
    operands["logits"][rows, :vocabulary] = np.where(counted[:, None], gradient, 0) / answers
    operands["logits"][rows, vocabulary:] = 0


def _evaluate_reference(operands, attributes, bounds, iteration):
    found = _rows(operands, attributes, bounds)
    if found is None:
        return BAD_LABEL
    z, targets, counted, logsumexp = found
    rows = slice(bounds["r0"], bounds["r1"])
    operands["losses"][rows] = np.where(counted, logsumexp - z[np.arange(len(targets)), targets], 0)
    operands["correct"][rows] = (z.argmax(axis=1) == targets) & counted
    if "logsumexp" in operands:
        operands["logsumexp"][rows] = np.where(counted, logsumexp, 0)


def _loss_reference(operands, attributes, bounds, iteration):
    if _evaluate_reference(operands, attributes, bounds, iteration):
        return BAD_LABEL
    _write_gradient(operands, attributes, bounds, *_rows(operands, attributes, bounds))


def _gradient_reference(operands, attributes, bounds, iteration):
    found = _rows(operands, attributes, bounds)
    if found is None:
        return BAD_LABEL
    logsumexp = operands["logsumexp"][bounds["r0"] : bounds["r1"]]
    _write_gradient(operands, attributes, bounds, *found[:3], logsumexp)


INTEGERS, BOUNDS = ("vocabulary", "pitch", "rows", "ignored?"), ("r0", "r1")
register(KernelSpec("vocabulary_loss", ("logits", "targets", "losses", "correct"), INTEGERS, (), BOUNDS,
                    _loss_reference, <uintptr_t> &vocabulary_loss))
register(KernelSpec("vocabulary_evaluate", ("logits", "targets", "losses", "correct"), INTEGERS, (), BOUNDS,
                    _evaluate_reference, <uintptr_t> &vocabulary_evaluate))
register(KernelSpec("vocabulary_logsumexp", ("logits", "targets", "logsumexp", "losses", "correct"), INTEGERS, (),
                    BOUNDS, _evaluate_reference, <uintptr_t> &vocabulary_logsumexp))
register(KernelSpec("vocabulary_gradient", ("logits", "targets", "logsumexp"), INTEGERS, (), BOUNDS,
                    _gradient_reference, <uintptr_t> &vocabulary_gradient))
