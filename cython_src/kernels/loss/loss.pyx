"""Losses of classes and of tokens.

Softmax alone (inference) and with cross-entropy and its gradient (training), and the sums kept for each step.

Cross-entropy of the next token, or of labels, over a vocabulary, and its gradient in place of the logits.

loss[row] = log(sum e^(z - max z)) - (z[target] - max z); gradient = (softmax(z) - indicator of the target) / rows. A
row of logits is `pitch` long; from `vocabulary` on it is neither read nor part of the softmax, and its gradient is
zero. With `ignored`, rows of the label IGNORED have neither loss nor gradient, and the others' number takes the place
of that of the rows; a block then reads all labels.
Probabilities have no buffer of their own: `vocabulary_loss` turns logits into their gradient in one visit of a row, and
`vocabulary_evaluate` leaves what `vocabulary_gradient` needs to compute them from the logits once more. Sums run in an
order that depends on the vocabulary alone. Bounds: rows.
"""

from libc.math cimport expf, isfinite, logf
from libc.string cimport memset

from loss_c cimport *

import numpy as np

from ..interface.kernel_spec import implement
from .specs import KERNELS


cdef inline Py_ssize_t count_answers(const int32_t *labels, Py_ssize_t length) noexcept nogil:
    """Number of labels that are not IGNORED, at least 1: a mean over none is 0."""
    cdef Py_ssize_t count = 0, i
    for i in range(length):
        count += labels[i] != -100
    return max(count, <Py_ssize_t> 1)


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
    cdef softmax_args a = read_softmax(args, block)
    cdef int classes = a.classes, lanes = a.lanes
    cdef const float *z
    cdef float *p
    cdef float largest, total
    cdef Py_ssize_t g, image
    cdef int lane, o, best
    for g in range(a.g0, a.g1):
        for lane in range(lanes):
            image = g * lanes + lane
            if image >= a.batch:
                break
            z = a.logits + g * classes * lanes + lane
            p = a.probabilities + image * classes
            best = first_largest(z, classes, lanes)
            largest = z[best * lanes]
            total = 0
            for o in range(classes):
                p[o] = expf(z[o * lanes] - largest)
                total += p[o]
            for o in range(classes):
                p[o] /= total
            a.predictions[image] = best
    return 0


cdef int softmax_loss(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """loss[group] = sum over images of -sum(t log p); dz = (p - t) / batch, zero for lanes without an image.

    t is the label's indicator, or with label smoothing s: (1 - s) indicator + s / classes.
    """
    cdef softmax_loss_args a = read_softmax_loss(args, block)
    cdef int classes = a.classes, lanes = a.lanes
    cdef const float *z
    cdef float *dz
    cdef float largest, total, loss, shifted, scale = <float> (1.0 / a.batch)
    cdef float smoothing = <float> a.label_smoothing, share = <float> (a.label_smoothing / classes)
    cdef Py_ssize_t g
    cdef int lane, o, best, hits, label
    for g in range(a.g0, a.g1):
        loss = 0
        hits = 0
        for lane in range(lanes):
            z = a.logits + g * classes * lanes + lane
            dz = a.gradient + g * classes * lanes + lane
            if g * lanes + lane >= a.batch:
                for o in range(classes):
                    dz[o * lanes] = 0
                continue
            label = a.labels[g * lanes + lane]
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
        a.losses[g] = loss
        a.correct[g] = hits
    return 0


cdef int loss_sum(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """losses[iteration % length] = sum of the groups' losses / batch, with labels / number of those that are not
    IGNORED; correct likewise, not divided. Sums in order. With check_finite a loss that is NaN or infinite is a
    failure, after it was logged."""
    cdef loss_sum_args a = read_loss_sum(args, block)
    cdef Py_ssize_t at = context.iteration % a.length
    cdef float loss = 0
    cdef int32_t hits = 0
    cdef int g, batch = a.batch
    for g in range(a.groups):
        loss += a.losses[g]
        hits += a.correct[g]
    if a.labels != NULL:
        batch = count_answers(a.labels, batch)
    a.loss_log[at] = loss / batch
    a.correct_log[at] = hits
    if a.check_finite and not isfinite(loss):
        return 4
    return 0


def _images(bounds, attributes):
    """First image of a block and one past its last."""
    lanes = attributes["lanes"]
    return bounds["g0"] * lanes, min(bounds["g1"] * lanes, attributes["batch"])


def _probabilities(logits, attributes, count):
    """Rows (image, class) of the first `count` images of groups of logits, as softmax and its logarithm."""
    z = logits.reshape(-1, attributes["classes"], attributes["lanes"])
    rows = z.transpose(0, 2, 1).reshape(-1, z.shape[1])[:count]
    shifted = rows - rows.max(axis=1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return rows, np.exp(logs), logs


@implement(KERNELS, "softmax", <uintptr_t> &softmax)
def _softmax_reference(operands, attributes, bounds, iteration):
    first, last = _images(bounds, attributes)
    rows, p, _ = _probabilities(operands["logits"][bounds["g0"] : bounds["g1"]], attributes, last - first)
    operands["probabilities"][first:last] = p
    operands["predictions"][first:last] = rows.argmax(axis=1)


@implement(KERNELS, "softmax_loss", <uintptr_t> &softmax_loss)
def _softmax_loss_reference(operands, attributes, bounds, iteration):
    g0, g1, lanes, classes = bounds["g0"], bounds["g1"], attributes["lanes"], attributes["classes"]
    first, last = _images(bounds, attributes)
    rows, p, logs = _probabilities(operands["logits"][g0:g1], attributes, last - first)
    labels = operands["labels"].reshape(-1)[first:last]
    if ((labels < 0) | (labels >= classes)).any():
        return BAD_LABEL
    here = np.arange(len(labels)), labels
    gradient = np.zeros(((g1 - g0) * lanes, classes), dtype=p.dtype)
    gradient[: len(p)] = p
    smoothing = attributes["label_smoothing"]
    gradient[: len(p)] -= smoothing / classes
    gradient[here] -= 1 - smoothing
    out = operands["gradient"][g0:g1]
    out[...] = gradient.reshape(g1 - g0, lanes, classes).transpose(0, 2, 1).reshape(out.shape) / attributes["batch"]
    loss, hit = np.zeros((g1 - g0) * lanes, dtype=p.dtype), np.zeros((g1 - g0) * lanes, dtype=np.int32)
    loss[: len(p)] = -(1 - smoothing) * logs[here] - smoothing * logs.mean(axis=1)
    hit[: len(p)] = rows.argmax(axis=1) == labels
    operands["losses"][g0:g1] = loss.reshape(-1, lanes).sum(axis=1)
    operands["correct"][g0:g1] = hit.reshape(-1, lanes).sum(axis=1)


@implement(KERNELS, "loss_sum", <uintptr_t> &loss_sum)
def _loss_sum_reference(operands, attributes, bounds, iteration):
    at = iteration % attributes["length"]
    answers = max((operands["labels"] != IGNORED).sum(), 1) if "labels" in operands else attributes["batch"]
    operands["loss_log"][at] = operands["losses"].sum() / answers
    operands["correct_log"][at] = operands["correct"].sum()
    if attributes["check_finite"] and not np.isfinite(operands["loss_log"][at]):
        return NOT_FINITE


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


cdef inline float gradient_scale(const int32_t *targets, Py_ssize_t rows, bint ignored) noexcept nogil:
    """One over the number of rows that have a loss."""
    return <float> (1.0 / (count_answers(targets, rows) if ignored else rows))


cdef int vocabulary_loss(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef vocabulary_loss_args a = read_vocabulary_loss(args, block)
    cdef Py_ssize_t row, target
    cdef float largest, total, shifted, scale = gradient_scale(a.targets, a.rows, a.ignored)
    cdef float *z
    for row in range(a.r0, a.r1):
        target = a.targets[row]
        z = a.logits + row * a.pitch
        if a.ignored and target == -100:
            memset(z, 0, a.pitch * sizeof(float))
            a.losses[row] = 0
            a.correct[row] = 0
            continue
        if target < 0 or target >= a.vocabulary:
            return 3
        largest = vocabulary_loops(a.micro).largest(z, a.vocabulary)
        a.correct[row] = is_first_largest(z, target, largest)
        shifted = z[target] - largest
        total = vocabulary_loops(a.micro).sum_powers(z, a.vocabulary, largest, z)
        a.losses[row] = logf(total) - shifted
        vocabulary_loops(a.micro).scale(z, a.vocabulary, scale / total)
        finish_gradient(z, target, a.vocabulary, a.pitch, scale)
    return 0


cdef int vocabulary_evaluate(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """Losses and hits of a block's rows; with `logsumexp` the logarithms of the sums too."""
    cdef vocabulary_evaluate_args a = read_vocabulary_evaluate(args, block)
    cdef Py_ssize_t row, target
    cdef float largest, total
    cdef const float *z
    for row in range(a.r0, a.r1):
        target = a.targets[row]
        if a.ignored and target == -100:
            a.losses[row] = a.correct[row] = 0
            if a.logsumexp != NULL:
                a.logsumexp[row] = 0
            continue
        if target < 0 or target >= a.vocabulary:
            return 3
        z = a.logits + row * a.pitch
        largest = vocabulary_loops(a.micro).largest(z, a.vocabulary)
        total = logf(vocabulary_loops(a.micro).sum_powers(z, a.vocabulary, largest, NULL))
        a.losses[row] = total - (z[target] - largest)
        a.correct[row] = is_first_largest(z, target, largest)
        if a.logsumexp != NULL:
            a.logsumexp[row] = total + largest
    return 0


cdef int vocabulary_gradient(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef vocabulary_gradient_args a = read_vocabulary_gradient(args, block)
    cdef Py_ssize_t row, target
    cdef float scale = gradient_scale(a.targets, a.rows, a.ignored)
    cdef float *z
    for row in range(a.r0, a.r1):
        target = a.targets[row]
        z = a.logits + row * a.pitch
        if a.ignored and target == -100:
            memset(z, 0, a.pitch * sizeof(float))
            continue
        if target < 0 or target >= a.vocabulary:
            return 3
        vocabulary_loops(a.micro).scaled_powers(z, a.vocabulary, a.logsumexp[row], scale)
        finish_gradient(z, target, a.vocabulary, a.pitch, scale)
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


@implement(KERNELS, "vocabulary_evaluate", <uintptr_t> &vocabulary_evaluate)
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


@implement(KERNELS, "vocabulary_loss", <uintptr_t> &vocabulary_loss)
def _loss_reference(operands, attributes, bounds, iteration):
    if _evaluate_reference(operands, attributes, bounds, iteration):
        return BAD_LABEL
    _write_gradient(operands, attributes, bounds, *_rows(operands, attributes, bounds))


@implement(KERNELS, "vocabulary_gradient", <uintptr_t> &vocabulary_gradient)
def _gradient_reference(operands, attributes, bounds, iteration):
    found = _rows(operands, attributes, bounds)
    if found is None:
        return BAD_LABEL
    logsumexp = operands["logsumexp"][bounds["r0"] : bounds["r1"]]
    _write_gradient(operands, attributes, bounds, *found[:3], logsumexp)
