"""The simulated executors at C speed; `policies.py` says what the numbers mean."""

from libc.stdint cimport int32_t, uint8_t, uint64_t
from libc.string cimport memset

import numpy as np


cdef extern from "experiments/simulate/event_loop.h" nogil:
    int SIMULATE_NO_MEMORY, SIMULATE_STUCK
    ctypedef struct SimulatedGraph:
        int32_t num_tasks, num_nodes, num_loops
        const int32_t *offsets
        const int32_t *split
        const int32_t *successors
        const int32_t *num_intra
        const int32_t *num_cross
        const int32_t *loop_end
        const uint8_t *wait_after
        const double *seconds
        const double *share
        const double *extra
        const double *creation
        const int32_t *lock_offsets
        const int32_t *locks
        int32_t num_locks
    ctypedef struct SimulatedData:
        int32_t num_cells
        const int32_t *task_offsets
        const int32_t *access_list
        const int32_t *list_offsets
        const int32_t *list_cells
        const uint8_t *access_kind
        const double *cell_bytes
        double seconds_per_byte, cache_bytes
    ctypedef struct SimulatedPolicy:
        int32_t kind, schedule, chunk_size, window
        const int32_t *roots
        const int32_t *root_workers
        int32_t num_roots
        const int32_t *program
        const int32_t *program_first
        int32_t claims
    ctypedef struct SimulatedCosts:
        double chunk, barrier, line, wake, spin, patience
    ctypedef struct SimulatedRun:
        double *iteration_end
        double *start
        double *finish
        int32_t *worker
        double useful_s, inflation_s, runtime_s
    int simulate_run(const SimulatedGraph *graph, const SimulatedData *data, const SimulatedPolicy *policy,
                     const SimulatedCosts *costs, const double *bandwidth, const double *slowdown, int32_t num_workers,
                     int32_t num_iterations, uint64_t seed, SimulatedRun *run)


def run(graph, loop_end, wait_after, seconds, share, extra, creation, locks, data, policy, costs, sharing,
        int num_workers, int num_iterations, uint64_t seed, bint keep_schedule):
    """Simulate iterations of a graph.

    Parameters
    ----------
    graph : TaskGraph
    loop_end : int32, shape (num_loops,)
    wait_after : uint8, shape (num_loops,)
    seconds, share, extra, creation : float64, shape (num_tasks,)
    locks : tuple (number, offsets, locks)
        As `commutative_locks` returns them.
    data : tuple (AccessTable, cell_bytes of its accesses, seconds_per_byte, cache_bytes)
        0 seconds: data move from core to core at no cost.
    policy : dict
        "kind", "schedule", "chunk_size", "window", "claims": int; "roots", "root_workers", "program",
        "program_first": int32 arrays, empty where the kind has none.
    costs : dict
        Fields of SimulatedCosts, in seconds.
    sharing : tuple (bandwidth, slowdown) of float64, shape (num_workers + 1,), or None
        None: nothing is shared.
    keep_schedule : bool

    Returns
    -------
    dict
        "iteration_end": float64, shape (num_iterations,); "useful_s", "inflation_s", "runtime_s": sums over workers;
        with `keep_schedule` "start", "finish" (float64) and "worker" (int32), shape (num_iterations, num_tasks).

    Raises
    ------
    RuntimeError
        Some task never became ready.
    """
    cdef SimulatedGraph g
    cdef SimulatedData d
    cdef SimulatedPolicy p
    cdef SimulatedCosts c
    cdef SimulatedRun r
    cdef int status
    cdef const double *bandwidth_pointer = NULL
    cdef const double *slowdown_pointer = NULL
    cdef const double[::1] bandwidth, slowdown

    def int32(values):  # never empty, so that there is an address
        array = np.ascontiguousarray(values, dtype=np.int32)
        return array if len(array) else np.zeros(1, np.int32)

    def float64(values):
        array = np.ascontiguousarray(values, dtype=np.float64)
        return array if len(array) else np.zeros(1)

    cdef const int32_t[::1] offsets = int32(graph.successor_offsets), split = int32(graph.successor_split)
    cdef const int32_t[::1] successors = int32(graph.successors), ends = int32(loop_end)
    cdef const int32_t[::1] intra = int32(graph.num_intra), cross = int32(graph.num_cross)
    cdef const int32_t[::1] roots = int32(policy["roots"]), root_workers = int32(policy["root_workers"])
    cdef const int32_t[::1] program = int32(policy["program"]), first = int32(policy["program_first"])
    cdef const uint8_t[::1] waits = np.append(np.asarray(wait_after, dtype=np.uint8), np.uint8(0))
    cdef const double[::1] task_seconds = float64(seconds), task_share = float64(share)
    cdef const double[::1] task_extra = float64(extra), task_creation = float64(creation)
    iteration_end = np.zeros(num_iterations)
    cdef double[::1] end_view = iteration_end
    shape = (num_iterations, graph.num_tasks) if keep_schedule else (1, 1)
    start, finish, worker = np.full(shape, np.nan), np.full(shape, np.nan), np.full(shape, -1, np.int32)
    cdef double[:, ::1] start_view = start, finish_view = finish
    cdef int32_t[:, ::1] worker_view = worker

    cdef const int32_t[::1] lock_offsets = int32(locks[1]), lock_ids = int32(locks[2])
    table, of_cells, d.seconds_per_byte, d.cache_bytes = data
    cdef const int32_t[::1] task_offsets = int32(table.task_offsets), access_list = int32(table.access_list)
    cdef const int32_t[::1] list_offsets = int32(table.list_offsets), list_cells = int32(table.list_cells)
    cdef const uint8_t[::1] kinds = np.append(np.asarray(table.access_kind, np.uint8), np.uint8(0))
    cdef const double[::1] cell_bytes = float64(of_cells)

    memset(&r, 0, sizeof(r))
    d.num_cells = table.num_cells if d.seconds_per_byte else 0
    d.task_offsets, d.access_list, d.access_kind = &task_offsets[0], &access_list[0], &kinds[0]
    d.list_offsets, d.list_cells, d.cell_bytes = &list_offsets[0], &list_cells[0], &cell_bytes[0]
    g.num_tasks, g.num_nodes, g.num_loops = graph.num_tasks, graph.num_nodes, len(loop_end)
    g.offsets, g.split, g.successors = &offsets[0], &split[0], &successors[0]
    g.num_intra, g.num_cross, g.loop_end, g.wait_after = &intra[0], &cross[0], &ends[0], &waits[0]
    g.seconds, g.share, g.extra, g.creation = &task_seconds[0], &task_share[0], &task_extra[0], &task_creation[0]
    g.num_locks, g.lock_offsets, g.locks = locks[0], &lock_offsets[0], &lock_ids[0]
    p.kind, p.schedule, p.chunk_size = policy["kind"], policy["schedule"], policy["chunk_size"]
    p.window, p.claims, p.num_roots = policy["window"], policy["claims"], len(policy["roots"])
    p.roots, p.root_workers, p.program, p.program_first = &roots[0], &root_workers[0], &program[0], &first[0]
    c.chunk, c.barrier, c.line = costs["chunk"], costs["barrier"], costs["line"]
    c.wake, c.spin, c.patience = costs["wake"], costs["spin"], costs["patience"]
    if sharing is not None:
        bandwidth, slowdown = sharing
        bandwidth_pointer, slowdown_pointer = &bandwidth[0], &slowdown[0]
    r.iteration_end = &end_view[0]
    if keep_schedule and graph.num_tasks:
        r.start, r.finish, r.worker = &start_view[0, 0], &finish_view[0, 0], &worker_view[0, 0]
    with nogil:
        status = simulate_run(&g, &d, &p, &c, bandwidth_pointer, slowdown_pointer, num_workers, num_iterations, seed,
                              &r)
    if status == SIMULATE_NO_MEMORY:
        raise MemoryError
    if status == SIMULATE_STUCK:
        raise RuntimeError("the simulated graph got stuck: some task never became ready")
    found = {"iteration_end": iteration_end, "useful_s": r.useful_s, "inflation_s": r.inflation_s,
             "runtime_s": r.runtime_s}
    return {**found, "start": start, "finish": finish, "worker": worker} if keep_schedule else found
