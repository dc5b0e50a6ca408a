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

from libc.string cimport memset

from attention_c cimport *

import numpy as np

from ..interface.kernel_spec import implement
from .specs import KERNELS


ctypedef void (*Pass)(const AttentionTask *) noexcept nogil


cdef int run_heads(Pass run, const attention_backward_args *a, const TaskContext *context) noexcept nogil:
    """Run a pass for each sample and head of a block; operands that it does not take are NULL."""
    cdef Py_ssize_t size = a.features // a.heads, n, h, at
    cdef float *part = a.parts + (a.part - 1) * a.rows * a.features if a.part > 0 else NULL
    cdef AttentionTask task
    memset(&task, 0, sizeof(AttentionTask))
    task.row = a.features
    task.qkv_row = 3 * a.features
    task.dq_row = a.features if part != NULL else 3 * a.features
    task.size = size
    task.sequence = a.sequence
    task.causal = a.causal
    task.start = a.t0
    task.stop = a.t1
    task.scratch = <float *> context.scratch
    for n in range(a.n0, a.n1):
        for h in range(a.h0, a.h1):
            at = n * a.sequence * a.features + h * size
            task.q = a.qkv + 3 * n * a.sequence * a.features + h * size
            task.k = task.q + a.features
            task.v = task.k + a.features
            task.logsumexp = a.logsumexp + h * a.rows + n * a.sequence
            task.o = a.output + at
            if a.gradient != NULL:
                task.gradient = a.gradient + at
                task.dq = a.dqkv + 3 * n * a.sequence * a.features + h * size
                task.dk = task.dq + a.features
                task.dv = task.dk + a.features
                if part != NULL:
                    task.dq = part + at
            run(&task)
    return 0


cdef int attention_forward(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef attention_forward_args a = read_attention_forward(args, block)
    cdef attention_backward_args given
    memset(&given, 0, sizeof(given))
    given.qkv, given.output, given.logsumexp = a.qkv, a.output, a.logsumexp
    given.sequence, given.heads, given.features, given.causal, given.rows = (
        a.sequence, a.heads, a.features, a.causal, a.rows)
    given.n0, given.n1, given.h0, given.h1, given.t0, given.t1 = a.n0, a.n1, a.h0, a.h1, a.t0, a.t1
    return run_heads(attention_loops(a.micro).forward, &given, context)


cdef int attention_backward(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef attention_backward_args a = read_attention_backward(args, block)
    return run_heads(attention_loops(a.micro).backward, &a, context)


cdef int attention_add_parts(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef attention_add_parts_args a = read_attention_add_parts(args, block)
    cdef Py_ssize_t size = a.features // a.heads, n, part, row
    for n in range(a.n0, a.n1):
        row = n * a.sequence + a.t0
        for part in range(a.part):
            attention_loops(a.micro).add_part(
                a.parts + (part * a.rows + row) * a.features + a.h0 * size, a.features, a.t1 - a.t0,
                (a.h1 - a.h0) * size, a.dqkv + 3 * row * a.features + a.h0 * size, 3 * a.features)
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


def _scratch(attributes, bounds, operands):
    """Bytes of packed tiles, tiles of scores, and results of a chunk of tokens."""
    return sizeof(float) * ATTENTION_FLOATS(attributes["features"] // attributes["heads"])


@implement(KERNELS, "attention_forward", <uintptr_t> &attention_forward, scratch_bytes=_scratch)
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


@implement(KERNELS, "attention_backward", <uintptr_t> &attention_backward, scratch_bytes=_scratch)
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


@implement(KERNELS, "attention_add_parts", <uintptr_t> &attention_add_parts)
def _add_parts_reference(operands, attributes, bounds, iteration):
    queries = slice(bounds["t0"], bounds["t1"])
    for n, h, _ in _parts(attributes, bounds):
        dq = _thirds(operands["dqkv"], attributes, n)[0, h, queries]
        for part in range(bounds["part"]):
            dq += _heads(operands["parts"][part * attributes["rows"] :], attributes, n)[h, queries]
