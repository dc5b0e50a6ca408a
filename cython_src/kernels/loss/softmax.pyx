"""Softmax alone (inference) and with cross-entropy and its gradient (training), and the sums kept for each
step."""

from libc.math cimport expf, isfinite, logf
from libc.stdint cimport int32_t, uintptr_t

from ..interface.block_kernel cimport KernelArgs, TaskContext

import numpy as np

from ..interface.kernel_spec import KernelSpec, register

# Status of a kernel that met a label outside the classes, or, when asked to look, a loss that is not finite.
BAD_LABEL, NOT_FINITE = 3, 4
IGNORED = -100  # label of what has no loss, as in PyTorch


cdef inline int first_largest(const float *z, int count, int stride) noexcept nogil:
    """Return the number of the largest of z[0], z[stride], ..., the first of equals."""
    cdef int best = 0, o
    for o in range(1, count):
        if z[o * stride] > z[best * stride]:
            best = o
    return best


cdef int softmax(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """p[image] = exp(z - max z) / sum; the most probable class of each image, the first of equals. bounds:
    groups."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef int classes = <int> a.integers[0], lanes = <int> a.integers[1], batch = <int> a.integers[2]
    cdef const float *z
    cdef float *p
    cdef float largest, total
    cdef Py_ssize_t g, image
    cdef int lane, o, best
    for g in range(b[0], b[1]):
        for lane in range(lanes):
            image = g * lanes + lane
            if image >= batch:
                break
            z = <const float *> a.operand[0] + g * classes * lanes + lane
            p = <float *> a.operand[1] + image * classes
            best = first_largest(z, classes, lanes)
            largest = z[best * lanes]
            total = 0
            for o in range(classes):
                p[o] = expf(z[o * lanes] - largest)
                total += p[o]
            for o in range(classes):
                p[o] /= total
            (<int32_t *> a.operand[2])[image] = best
    return 0


cdef int softmax_loss(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """loss[group] = sum over images of -sum(t log p); dz = (p - t) / batch, zero for lanes without an image.

    t is the label's indicator, or with label smoothing s: (1 - s) indicator + s / classes.
    """
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef int classes = <int> a.integers[0], lanes = <int> a.integers[1], batch = <int> a.integers[2]
    cdef const int32_t *labels = <const int32_t *> a.operand[1]
    cdef float *losses = <float *> a.operand[3]
    cdef int32_t *correct = <int32_t *> a.operand[4]
    cdef const float *z
    cdef float *dz
    cdef float largest, total, loss, shifted, scale = <float> (1.0 / batch)
    cdef float smoothing = <float> a.reals[0], share = <float> (a.reals[0] / classes)
    cdef Py_ssize_t g
    cdef int lane, o, best, hits, label
    for g in range(b[0], b[1]):
        loss = 0
        hits = 0
        for lane in range(lanes):
            z = <const float *> a.operand[0] + g * classes * lanes + lane
            dz = <float *> a.operand[2] + g * classes * lanes + lane
            if g * lanes + lane >= batch:
                for o in range(classes):
                    dz[o * lanes] = 0
                continue
            label = labels[g * lanes + lane]
            if label < 0 or label >= classes:
                return 3
            best = first_largest(z, classes, lanes)
            largest = z[best * lanes]
            total = 0
            shifted = 0
            for o in range(classes):
                dz[o * lanes] = expf(z[o * lanes] - largest)
                total += dz[o * lanes]
                shifted += z[o * lanes] - largest
            loss += logf(total) - (1 - smoothing) * (z[label * lanes] - largest)
            if smoothing != 0:
                loss -= share * shifted
            hits += best == label
            total = scale / total
            for o in range(classes):
                dz[o * lanes] = dz[o * lanes] * total - share * scale
            dz[label * lanes] -= (1 - smoothing) * scale
        losses[g] = loss
        correct[g] = hits
    return 0


cdef int loss_sum(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """losses[iteration % length] = sum of the groups' losses / batch, with labels / number of those that are not
    IGNORED; correct likewise, not divided. Sums in order. With check_finite a loss that is NaN or infinite is a
    failure, after it was logged."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef int groups = <int> a.integers[0], batch = <int> a.integers[1]
    cdef Py_ssize_t at = context.iteration % a.integers[2]
    cdef const float *losses = <const float *> a.operand[0]
    cdef const int32_t *correct = <const int32_t *> a.operand[1]
    cdef float loss = 0
    cdef int32_t hits = 0
    cdef int g
    for g in range(groups):
        loss += losses[g]
        hits += correct[g]
    if a.operand[4] != NULL:
        batch = <int> count_answers(<const int32_t *> a.operand[4], batch)
    (<float *> a.operand[2])[at] = loss / batch
    (<int32_t *> a.operand[3])[at] = hits
    if a.integers[3] and not isfinite(loss):
        return 4
    return 0


def _images(bounds, attributes):
    """First image of a block and one past its last."""
    lanes = attributes["lanes"]
    return bounds["g0"] * lanes, min(bounds["g1"] * lanes, attributes["batch"])


def _probabilities(z, count):
    """Rows (image, class) of the first `count` images of logits (groups, classes, lanes), as softmax and its
    logarithm."""
    rows = z.transpose(0, 2, 1).reshape(-1, z.shape[1])[:count]
    shifted = rows - rows.max(axis=1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return rows, np.exp(logs), logs


def _softmax_reference(operands, attributes, bounds, iteration):
    first, last = _images(bounds, attributes)
    rows, p, _ = _probabilities(operands["logits"][bounds["g0"] : bounds["g1"]], last - first)
    operands["probabilities"][first:last] = p
    operands["predictions"][first:last] = rows.argmax(axis=1)


def _softmax_loss_reference(operands, attributes, bounds, iteration):
    g0, g1, lanes, classes = bounds["g0"], bounds["g1"], attributes["lanes"], attributes["classes"]
    first, last = _images(bounds, attributes)
    rows, p, logs = _probabilities(operands["logits"][g0:g1], last - first)
    labels = operands["labels"].reshape(-1)[first:last]
    if ((labels < 0) | (labels >= classes)).any():
        return BAD_LABEL
    here = np.arange(len(labels)), labels
    gradient = np.zeros(((g1 - g0) * lanes, classes), dtype=p.dtype)
    gradient[: len(p)] = p
    smoothing = attributes["label_smoothing"]
    gradient[: len(p)] -= smoothing / classes
    gradient[here] -= 1 - smoothing
    operands["gradient"][g0:g1] = (
        gradient.reshape(g1 - g0, lanes, classes).transpose(0, 2, 1) / attributes["batch"])
    loss, hit = np.zeros((g1 - g0) * lanes, dtype=p.dtype), np.zeros((g1 - g0) * lanes, dtype=np.int32)
    loss[: len(p)] = -(1 - smoothing) * logs[here] - smoothing * logs.mean(axis=1)
    hit[: len(p)] = rows.argmax(axis=1) == labels
    operands["losses"][g0:g1] = loss.reshape(-1, lanes).sum(axis=1)
    operands["correct"][g0:g1] = hit.reshape(-1, lanes).sum(axis=1)


def _loss_sum_reference(operands, attributes, bounds, iteration):
    at = iteration % attributes["length"]
    answers = max((operands["labels"] != IGNORED).sum(), 1) if "labels" in operands else attributes["batch"]
    operands["loss_log"][at] = operands["losses"].sum() / answers
    operands["correct_log"][at] = operands["correct"].sum()
    if attributes["check_finite"] and not np.isfinite(operands["loss_log"][at]):
        return NOT_FINITE


SHAPE = ("classes", "lanes", "batch")
register(KernelSpec("softmax", ("logits", "probabilities", "predictions"), SHAPE, (), ("g0", "g1"),
                    _softmax_reference, <uintptr_t> &softmax))
register(KernelSpec("softmax_loss", ("logits", "labels", "gradient", "losses", "correct"), SHAPE,
                    ("label_smoothing",), ("g0", "g1"),
                    _softmax_loss_reference, <uintptr_t> &softmax_loss))
register(KernelSpec("loss_sum", ("losses", "correct", "loss_log", "correct_log", "labels?"),
                    ("groups", "batch", "length", "check_finite"), (), (),
                    _loss_sum_reference, <uintptr_t> &loss_sum))
