"""The simulated executors at C speed; `policies.py` says what the numbers mean."""

from libc.stdint cimport int32_t, uint8_t, uint64_t
from libc.string cimport memset

from ...cython_src.binding.bind cimport kept
from event_loop_c cimport *

import numpy as np

LOOPS, EAGER, STEALING, PROGRAMS = SIMULATE_LOOPS, SIMULATE_EAGER, SIMULATE_STEALING, SIMULATE_PROGRAMS


cdef extern from "experiments/simulate/event_loop.h" nogil:
    int simulate_run(const SimulatedGraph *graph, const SimulatedData *data, const SimulatedNodes *nodes,
                     const SimulatedPolicy *policy, const SimulatedCosts *costs, const double *bandwidth,
                     const double *slowdown, int32_t num_workers, int32_t num_iterations, uint64_t seed,
                     SimulatedRun *run)


cdef const int32_t *int32(list keep, values) except NULL:
    return <const int32_t *> kept(keep, values, np.int32)


cdef const double *float64(list keep, values) except NULL:
    return <const double *> kept(keep, values, np.float64)


def run(graph, loop_end, wait_after, seconds, share, extra, creation, locks, data, nodes, policy, costs,
        sharing, int num_workers, int num_iterations, uint64_t seed, bint keep_schedule):
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
    nodes : tuple (number of nodes, node of each worker, home of each task, remote of each task and node)
        As `SimulatedNodes` has them.
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
    cdef SimulatedNodes n
    cdef SimulatedPolicy p
    cdef SimulatedCosts c
    cdef SimulatedRun r
    cdef int status
    cdef const double *bandwidth = NULL
    cdef const double *slowdown = NULL
    cdef list keep = []
    memset(&r, 0, sizeof(r))
    g.num_tasks, g.num_nodes, g.num_loops = graph.num_tasks, graph.num_nodes, len(loop_end)
    g.offsets, g.split = int32(keep, graph.successor_offsets), int32(keep, graph.successor_split)
    g.successors, g.loop_end = int32(keep, graph.successors), int32(keep, loop_end)
    g.num_intra, g.num_cross = int32(keep, graph.num_intra), int32(keep, graph.num_cross)
    g.wait_after = <const uint8_t *> kept(keep, wait_after, np.uint8)
    g.seconds, g.share = float64(keep, seconds), float64(keep, share)
    g.extra, g.creation = float64(keep, extra), float64(keep, creation)
    g.num_locks, g.lock_offsets, g.locks = locks[0], int32(keep, locks[1]), int32(keep, locks[2])
    table, cell_bytes, d.seconds_per_byte, d.cache_bytes = data
    d.num_cells = table.num_cells if d.seconds_per_byte else 0
    d.task_offsets, d.access_list = int32(keep, table.task_offsets), int32(keep, table.access_list)
    d.list_offsets, d.list_cells = int32(keep, table.list_offsets), int32(keep, table.list_cells)
    d.access_kind = <const uint8_t *> kept(keep, table.access_kind, np.uint8)
    d.cell_bytes = float64(keep, cell_bytes)
    n.num_nodes, n.worker_node, n.home = nodes[0], int32(keep, nodes[1]), int32(keep, nodes[2])
    n.remote = float64(keep, nodes[3])
    p.kind, p.schedule, p.chunk_size = policy["kind"], policy["schedule"], policy["chunk_size"]
    p.window, p.claims, p.num_roots = policy["window"], policy["claims"], len(policy["roots"])
    p.roots, p.root_workers = int32(keep, policy["roots"]), int32(keep, policy["root_workers"])
    p.program, p.program_first = int32(keep, policy["program"]), int32(keep, policy["program_first"])
    c.chunk, c.barrier, c.line = costs["chunk"], costs["barrier"], costs["line"]
    c.wake, c.spin, c.patience = costs["wake"], costs["spin"], costs["patience"]
    if sharing is not None:
        bandwidth, slowdown = float64(keep, sharing[0]), float64(keep, sharing[1])
    iteration_end = np.zeros(num_iterations)
    r.iteration_end = <double *> kept(keep, iteration_end, np.float64)
    shape = (num_iterations, graph.num_tasks)
    schedule = {"start": np.full(shape, np.nan), "finish": np.full(shape, np.nan),
                "worker": np.full(shape, -1, np.int32)} if keep_schedule else {}
    if keep_schedule and graph.num_tasks:
        r.start = <double *> kept(keep, schedule["start"], np.float64)
        r.finish = <double *> kept(keep, schedule["finish"], np.float64)
        r.worker = <int32_t *> kept(keep, schedule["worker"], np.int32)
    with nogil:
        status = simulate_run(&g, &d, &n, &p, &c, bandwidth, slowdown, num_workers, num_iterations, seed, &r)
    if status == SIMULATE_NO_MEMORY:
        raise MemoryError
    if status == SIMULATE_STUCK:
        raise RuntimeError("the simulated graph got stuck: some task never became ready")
    return {"iteration_end": iteration_end, "useful_s": r.useful_s, "inflation_s": r.inflation_s,
            "runtime_s": r.runtime_s, **schedule}
