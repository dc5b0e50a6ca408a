"""Attention: o[i] = sum over j of softmax(q[i] . k[j] / sqrt(d)) v[j] for each head of each sample, and its gradients.

Rows of `qkv` are tokens, with queries, keys and values of all heads side by side: (rows, 3 features). With `causal`
token i sees tokens j <= i only. Nothing of size sequence x sequence is stored: forward keeps the logarithm of each
softmax's sum, backward computes the softmax again, once, in blocks of keys. A block has the gradients of its keys and
values, and a part of the gradient of every query that sees one of them: that of a sample's first keys in the place of
the gradient, those of later slices of keys in `parts`, one below the other. `attention_add_parts` adds them, in order.

Bounds: samples, heads, tokens of a sample (queries forward, else keys), and backward the number of the slice of keys;
`attention_add_parts`: queries, and how many parts they have. How tokens are cut changes the last bits of gradients of
queries, and no others; cuts of samples and heads change none.
"""

from libc.stdint cimport int32_t, uintptr_t
from libc.string cimport memset

from ..interface.block_kernel cimport KernelArgs, TaskContext

import numpy as np

from ..interface.kernel_spec import KernelSpec, register


cdef extern from "cython_src/kernels/attention/attention_loops.h" nogil:
    Py_ssize_t ATTENTION_FLOATS(Py_ssize_t size)

    ctypedef struct AttentionTask:
        const float *q
        const float *k
        const float *v
        const float *gradient
        float *o
        float *logsumexp
        float *dq
        float *dk
        float *dv
        Py_ssize_t row, qkv_row, dq_row
        int size, sequence, causal, start, stop
        float *scratch

    ctypedef struct AttentionLoops:
        void (*forward)(const AttentionTask *) noexcept nogil
        void (*backward)(const AttentionTask *) noexcept nogil
        void (*add_part)(const float *, Py_ssize_t, int, int, float *, Py_ssize_t) noexcept nogil


cdef extern from "cython_src/kernels/simd/micro_kernels.h" nogil:
    ctypedef struct Micro "MicroKernels":  # what is used here of the table of inner loops
        const AttentionLoops *attention


ctypedef void (*Pass)(const AttentionTask *) noexcept nogil


cdef int run_heads(Pass run, const KernelArgs *a, Py_ssize_t block, const TaskContext *context, const float *gradient,
                   float *output, float *logsumexp, float *dqkv, float *part) noexcept nogil:
    """Run a pass for each sample and head of a block; operands that it does not take are NULL. part: where gradients of
    queries go in place of dqkv, or NULL."""
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef Py_ssize_t sequence = a.integers[0], heads = a.integers[1], features = a.integers[2]
    cdef Py_ssize_t rows = a.integers[4]
    cdef Py_ssize_t size = features // heads, n, h, at, token
    cdef const float *qkv = <const float *> a.operand[0]
    cdef AttentionTask task
    memset(&task, 0, sizeof(AttentionTask))
    task.row = features
    task.qkv_row = 3 * features
    task.dq_row = features if part != NULL else 3 * features
    task.size = <int> size
    task.sequence = <int> sequence
    task.causal = <int> a.integers[3]
    task.start = b[4]
    task.stop = b[5]
    task.scratch = <float *> context.scratch
    for n in range(b[0], b[1]):
        for h in range(b[2], b[3]):
            at = n * sequence * features + h * size
            token = h * rows + n * sequence
            task.q = qkv + 3 * n * sequence * features + h * size
            task.k = task.q + features
            task.v = task.k + features
            task.logsumexp = logsumexp + token
            task.o = output + at
            if gradient != NULL:
                task.gradient = gradient + at
                task.dq = dqkv + 3 * n * sequence * features + h * size
                task.dk = task.dq + features
                task.dv = task.dk + features
                if part != NULL:
                    task.dq = part + at
            run(&task)
    return 0


cdef int attention_forward(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef const KernelArgs *a = <const KernelArgs *> args
    return run_heads((<const Micro *> a.micro).attention.forward, a, block, context, NULL, <float *> a.operand[1],
                     <float *> a.operand[2], NULL, NULL)


cdef int attention_backward(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef int32_t part = a.bounds[block * a.bounds_width + 6]
    cdef float *parts = NULL
    if part > 0:
        parts = <float *> a.operand[5] + (part - 1) * a.integers[4] * a.integers[2]
    return run_heads((<const Micro *> a.micro).attention.backward, a, block, context, <const float *> a.operand[2],
                     <float *> a.operand[1], <float *> a.operand[3], <float *> a.operand[4], parts)


cdef int attention_add_parts(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef Py_ssize_t sequence = a.integers[0], features = a.integers[2], n, part, row
    cdef int size = <int> (features // a.integers[1])
    cdef const float *parts = <const float *> a.operand[0]
    cdef float *dqkv = <float *> a.operand[1]
    for n in range(b[0], b[1]):
        row = n * sequence + b[4]
        for part in range(b[6]):
            (<const Micro *> a.micro).attention.add_part(
                parts + (part * a.integers[4] + row) * features + b[2] * size, features, b[5] - b[4],
                (b[3] - b[2]) * size, dqkv + 3 * row * features + b[2] * size, 3 * features)
    return 0


def _thirds(array, attributes, n):
    """Queries, keys and values of a sample, or their gradients: views of shape (heads, sequence, size)."""
    sequence, heads = attributes["sequence"], attributes["heads"]
    thirds = array[n * sequence : (n + 1) * sequence].reshape(sequence, 3, heads, -1)
    return thirds.transpose(1, 2, 0, 3)


def _heads(array, attributes, n):
    """Rows of a sample as a view of shape (heads, sequence, size)."""
    sequence = attributes["sequence"]
    return array[n * sequence : (n + 1) * sequence].reshape(sequence, attributes["heads"], -1).transpose(1, 0, 2)


def _scores(q, k, causal, first_query, first_key):
    """Scaled scores of queries and keys, minus infinity where a query does not see a key."""
    scores = q @ k.T / np.sqrt(q.shape[1])
    if causal:
        i, j = np.arange(len(q))[:, None] + first_query, np.arange(len(k)) + first_key
        scores = np.where(j <= i, scores, -np.inf)
    return scores


def _parts(attributes, bounds):
    """Number of each sample and head of a block, with the columns of the sample's tokens."""
    for n in range(bounds["n0"], bounds["n1"]):
        for h in range(bounds["h0"], bounds["h1"]):
            yield n, h, slice(n * attributes["sequence"], (n + 1) * attributes["sequence"])


def _forward_reference(operands, attributes, bounds, iteration):
    t0, t1, causal = bounds["t0"], bounds["t1"], attributes["causal"]
    end = t1 if causal else attributes["sequence"]
    for n, h, tokens in _parts(attributes, bounds):
        q, k, v = _thirds(operands["qkv"], attributes, n)[:, h]
        scores = _scores(q[t0:t1], k[:end], causal, t0, 0)
        largest = scores.max(axis=1, keepdims=True)
        powers = np.exp(scores - largest)
        total = powers.sum(axis=1, keepdims=True)
        _heads(operands["output"], attributes, n)[h, t0:t1] = powers @ v[:end] / total
        operands["logsumexp"][h, tokens][t0:t1] = (largest + np.log(total))[:, 0]


def _backward_reference(operands, attributes, bounds, iteration):
    t0, t1, causal, part = bounds["t0"], bounds["t1"], attributes["causal"], bounds["part"]
    start = t0 if causal else 0
    for n, h, tokens in _parts(attributes, bounds):
        q, k, v = _thirds(operands["qkv"], attributes, n)[:, h]
        q, gradient = q[start:], _heads(operands["gradient"], attributes, n)[h, start:]
        delta = (gradient * _heads(operands["output"], attributes, n)[h, start:]).sum(axis=1)
        p = np.exp(_scores(q, k[t0:t1], causal, start, t0) - operands["logsumexp"][h, tokens][start:, None])
        ds = p * (gradient @ v[t0:t1].T - delta[:, None]) / np.sqrt(q.shape[1])
        dq, dk, dv = _thirds(operands["dqkv"], attributes, n)[:, h]
        if part:
            dq = _heads(operands["parts"][(part - 1) * attributes["rows"] :], attributes, n)[h]
        dq[start:] = ds @ k[t0:t1]
        dk[t0:t1] = ds.T @ q
        dv[t0:t1] = p.T @ gradient


def _add_parts_reference(operands, attributes, bounds, iteration):
    queries = slice(bounds["t0"], bounds["t1"])
    for n, h, _ in _parts(attributes, bounds):
        dq = _thirds(operands["dqkv"], attributes, n)[0, h, queries]
        for part in range(bounds["part"]):
            dq += _heads(operands["parts"][part * attributes["rows"] :], attributes, n)[h, queries]


def _scratch(attributes, bounds, operands):
    """Bytes of packed tiles, tiles of scores, and results of a chunk of tokens."""
    return sizeof(float) * ATTENTION_FLOATS(attributes["features"] // attributes["heads"])


INTEGERS, BOUNDS = ("sequence", "heads", "features", "causal", "rows"), ("n0", "n1", "h0", "h1", "t0", "t1")
register(KernelSpec(
    "attention_forward", ("qkv", "output", "logsumexp"), INTEGERS, (), BOUNDS, _forward_reference,
    <uintptr_t> &attention_forward, scratch_bytes=_scratch))
register(KernelSpec(
    "attention_backward", ("qkv", "output", "gradient", "logsumexp", "dqkv", "parts?"), INTEGERS, (),
    (*BOUNDS, "part"), _backward_reference, <uintptr_t> &attention_backward, scratch_bytes=_scratch))
register(KernelSpec(
    "attention_add_parts", ("parts", "dqkv"), INTEGERS, (), (*BOUNDS, "part"), _add_parts_reference,
    <uintptr_t> &attention_add_parts))
