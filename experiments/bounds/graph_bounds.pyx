"""Longest path and maximum cycle mean of a recorded task graph, at C speed.

Edges are those of `dependences.TaskGraph`: within an iteration they form a directed acyclic graph, edges to the next
iteration carry a token.
"""

from libc.stdint cimport int32_t

import numpy as np


def longest_path(const int32_t[::1] order, const int32_t[::1] offsets, const int32_t[::1] split,
                 const int32_t[::1] successors, const double[::1] weight):
    """Return the largest sum of node weights on a path within an iteration."""
    cdef Py_ssize_t n = order.shape[0], i, k
    cdef int32_t u
    cdef double done, longest = 0
    cdef double[::1] start = np.zeros(n)
    with nogil:
        for i in range(n):
            u = order[i]
            done = start[u] + weight[u]
            if done > longest:
                longest = done
            for k in range(offsets[u], split[u]):
                if start[successors[k]] < done:
                    start[successors[k]] = done
    return longest


def maximum_cycle_mean(const int32_t[::1] order, const int32_t[::1] offsets, const int32_t[::1] split,
                       const int32_t[::1] successors, const double[::1] weight, double tolerance):
    """Return the largest ratio of node weights to tokens over all cycles.

    Potentials x are relaxed to x[w] >= x[u] + weight[u] - mean * token. If they settle, summing along any cycle shows
    that no cycle exceeds `mean`; if not, the predecessor links close a cycle that does, and its ratio is the next
    `mean`. The result is the ratio of a cycle that was found (a lower bound) with potentials that prove it an upper
    bound. Each round raises the mean to another cycle's, so the search ends.

    Parameters
    ----------
    order, offsets, split, successors : int32 arrays
        See `dependences.topological_order` and `TaskGraph`.
    weight : float64, shape (num_nodes,), seconds, not negative
    tolerance : float
        Seconds by which a potential must rise to count: above rounding, far below any duration.

    Returns
    -------
    mean : float
        0 if there is no cycle.
    cycle : int32
        Nodes of a cycle that attains it, in order.
    potentials : float64, shape (num_nodes,)

    References
    ----------
    Parametric shortest paths with Newton's step: Radzik, "Parametric Flows, Weighted Means of Cuts, and Fractional
    Combinatorial Optimization" (1993); the problem is surveyed in Dasdan, "Experimental analysis of the fastest
    optimum cycle ratio and mean algorithms" (2004).
    """
    cdef Py_ssize_t n = order.shape[0]
    cdef int32_t u, node
    cdef double mean = 0, total, tokens
    cdef double[::1] x = np.zeros(n)
    cdef int32_t[::1] pred = np.empty(n, np.int32), mark = np.empty(n, np.int32)
    cdef signed char[::1] token = np.empty(n, np.int8)  # of the link from the predecessor
    cycle = np.empty(0, np.int32)
    while True:
        with nogil:
            node = settle(order, offsets, split, successors, weight, mean, tolerance, x, pred, token, mark)
        if node < 0:
            return mean, cycle, np.asarray(x)
        nodes = []
        total = tokens = 0
        u = node
        while True:
            nodes.append(u)
            tokens += token[u]
            u = pred[u]
            total += weight[u]
            if u == node:
                break
        nodes.reverse()
        cycle = np.array(nodes, dtype=np.int32)
        if total / tokens <= mean:
            raise ArithmeticError(f"tolerance {tolerance} is below the rounding of durations that sum to {total}")
        mean = total / tokens


cdef int32_t settle(const int32_t[::1] order, const int32_t[::1] offsets, const int32_t[::1] split,
                    const int32_t[::1] successors, const double[::1] weight, double mean, double tolerance,
                    double[::1] x, int32_t[::1] pred, signed char[::1] token, int32_t[::1] mark) noexcept nogil:
    """Relax the potentials until they settle; return -1 then, or a node of the first cycle that is found instead."""
    cdef Py_ssize_t n = order.shape[0], i, k
    cdef int32_t u, w, node = -1
    cdef double done
    cdef bint settled = False
    for i in range(n):
        pred[i] = -1
    while node < 0 and not settled:
        settled = True
        for i in range(n):
            u = order[i]
            done = x[u] + weight[u]
            for k in range(offsets[u], split[u]):
                w = successors[k]
                if x[w] < done:
                    # Within the acyclic part rounding cannot feed back on itself: no tolerance needed.
                    x[w] = done
                    pred[w] = u
                    token[w] = 0
        for u in range(n):
            done = x[u] + weight[u] - mean
            for k in range(split[u], offsets[u + 1]):
                w = successors[k]
                if x[w] + tolerance < done:
                    x[w] = done
                    pred[w] = u
                    token[w] = 1
                    settled = False
        if not settled:
            node = find_cycle(pred, mark)
    return node


cdef int32_t find_cycle(int32_t[::1] pred, int32_t[::1] mark) noexcept nogil:
    """Return a node on a cycle of the predecessor links, or -1."""
    cdef Py_ssize_t n = pred.shape[0], start
    cdef int32_t u
    for start in range(n):
        mark[start] = -1
    for start in range(n):
        u = <int32_t> start
        while u >= 0 and mark[u] < 0:
            mark[u] = <int32_t> start
            u = pred[u]
        if u >= 0 and mark[u] == <int32_t> start:
            return u
    return -1
