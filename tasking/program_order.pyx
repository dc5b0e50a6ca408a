"""Homes and order of a graph's tasks in the programs that `partitioned` replay compiles, without running any."""

from libc.stdint cimport int32_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from ..cython_src.kernels.interface.block_kernel cimport LoopRecord
from .headers cimport COMPILE_CYCLE, RecordedGraph, TaskHints, programs_order

import numpy as np


def program_order(plan, graph, cost, int num_workers, priority=None):
    """Return the tasks of each worker in the order of its program: list of int32 arrays, one for each worker.

    The same as `ProgramRuntime.programs`, for any number of workers: no threads are started.

    Parameters
    ----------
    plan : Plan
    graph : TaskGraph
        Of the same plan, closed.
    cost : float64, shape (num_tasks,)
        Expected duration of each task, positive, in ns.
    num_workers : int
    priority : float64, shape (num_nodes,), optional
        Of tasks; the ready task with the highest goes first.
    """
    cdef RecordedGraph g
    cdef TaskHints hints
    cdef int status
    cdef Py_ssize_t i
    cdef int32_t n = plan.num_tasks
    cdef const int32_t[::1] task_loop = np.append(plan.task_loop, np.int32(0))
    cdef const int32_t[::1] offsets = graph.successor_offsets, split = np.append(graph.successor_split, np.int32(0))
    cdef const int32_t[::1] successors = np.append(graph.successors, np.int32(0))
    cdef const int32_t[::1] intra = np.append(graph.num_intra, np.int32(0))
    cdef const int32_t[::1] cross = np.append(graph.num_cross, np.int32(0))
    cdef const double[::1] costs = np.append(np.asarray(cost, dtype=np.float64), 1.0)
    cdef const double[::1] priorities
    cdef const int32_t[::1] affinities
    home, order = np.zeros(n + 1, np.int32), np.zeros(n + 1, np.int32)
    cdef int32_t[::1] home_view = home, order_view = order
    cdef LoopRecord *loops = <LoopRecord *> calloc(len(plan.loops) + 1, sizeof(LoopRecord))
    if loops == NULL:
        raise MemoryError
    try:
        for i, loop in enumerate(plan.loops):
            loops[i].first_task, loops[i].num_blocks = loop.first_task, loop.num_blocks
        memset(&hints, 0, sizeof(hints))
        hints.cost = &costs[0]
        if priority is not None:
            priorities = np.ascontiguousarray(priority, dtype=np.float64)
            hints.priority = &priorities[0]
        if plan.affinity is not None:
            affinities = plan.affinity
            hints.affinity = &affinities[0]
        g.num_tasks, g.num_nodes, g.num_loops = n, graph.num_nodes, len(plan.loops)
        g.loops, g.task_loop = loops, &task_loop[0]
        g.successor_offsets, g.successor_split, g.successors = &offsets[0], &split[0], &successors[0]
        g.num_intra, g.num_cross = &intra[0], &cross[0]
        with nogil:
            status = programs_order(&g, &hints, num_workers, &home_view[0], &order_view[0])
    finally:
        free(loops)
    if status == COMPILE_CYCLE:
        raise AssertionError("a graph with a cycle in one iteration")
    if status:
        raise MemoryError
    order = order[:n]
    return [order[home[order] == w] for w in range(num_workers)]
