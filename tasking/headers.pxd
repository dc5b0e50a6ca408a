"""Cython's view of the runtime's C headers."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from ..cython_src.kernels.interface.block_kernel cimport LoopRecord, WorkerState


cdef extern from "tasking/team.h" nogil:
    """
    static inline int64_t load_i64(atomic_i64 *p) { return ft_load(p, relaxed); }
    static inline int32_t load_i32(atomic_i32 *p) { return ft_load(p, acquire); }
    static inline uint32_t load_u32(atomic_u32 *p) { return ft_load(p, relaxed); }
    """
    ctypedef struct atomic_i32:
        pass
    ctypedef struct atomic_i64:
        pass
    ctypedef struct atomic_u32:
        pass
    int64_t load_i64(atomic_i64 *p)
    int32_t load_i32(atomic_i32 *p)
    uint32_t load_u32(atomic_u32 *p)
    ctypedef struct CpuSwap:
        int64_t num_swaps
    void cpu_swap_restore(CpuSwap *c)
    ctypedef void (*TeamJob)(void *argument, int32_t worker) noexcept
    ctypedef struct CTeam "Team":
        int32_t num_threads
        CpuSwap *cpu_swap
    int team_open(CTeam *team, int32_t num_threads, const int32_t *cpus, int64_t spin_ns)
    int team_allow_swaps(CTeam *team, const int32_t *cpus)
    void team_start(CTeam *team, TeamJob job, void *argument)
    int team_wait(CTeam *team, int64_t timeout_ns)
    void team_close(CTeam *team)
    int ft_register_membarrier()

cdef extern from "tasking/scheduler.h" nogil:
    const int RUN_STOPPED
    ctypedef struct SchedulerDeque "Deque":
        int64_t mask
    ctypedef struct SchedulerWorker:
        SchedulerDeque deque
        WorkerState *state
        atomic_i64 num_executed
        atomic_i32 current
    ctypedef struct IdleWorker:
        atomic_u32 word
    ctypedef struct Idle:
        atomic_i32 num_announced
        IdleWorker *workers
    ctypedef struct Scheduler:
        Idle idle
        SchedulerWorker *workers
        int32_t num_workers
        atomic_i32 ending
        CpuSwap *cpu_swap
    void scheduler_end(Scheduler *s, int32_t reason)
    int64_t deque_size_hint(SchedulerDeque *d)

cdef extern from "tasking/recorded_graph.h" nogil:
    ctypedef struct RecordedGraph:
        int32_t num_tasks, num_nodes, num_loops
        const LoopRecord *loops
        const int32_t *task_loop
        const int32_t *successor_offsets
        const int32_t *successor_split
        const int32_t *successors
        const int32_t *num_intra
        const int32_t *num_cross

cdef extern from "tasking/replay.h" nogil:
    ctypedef struct ReplayNode:
        atomic_i32 pending
        int32_t rearm
        int32_t iteration
        int32_t loop
    ctypedef struct Replay:
        Scheduler scheduler
        ReplayNode *nodes
        int32_t num_tasks, num_nodes, num_edges
        int32_t *roots
        int32_t *root_workers
        int32_t num_roots
    int replay_open(Replay *r, const RecordedGraph *g, int32_t num_workers, WorkerState *states, int64_t spin_ns)
    void replay_reset(Replay *r, int64_t first_replay, int32_t num_iterations)
    void replay_close(Replay *r)
    void replay_work(void *argument, int32_t worker) noexcept

cdef extern from "tasking/programs/compiler.h" nogil:
    const int COMPILE_CYCLE
    ctypedef struct TaskHints:
        const double *cost
        const double *priority
        const int32_t *affinity
    ctypedef struct ProgramEntry:
        int32_t task, loop, is_awaited, wait_begin
    ctypedef struct ClaimWord:
        pass
    ctypedef struct ProgramWorker:
        atomic_i64 progress
        atomic_i32 open_until
        atomic_i64 wait_value
        atomic_i32 wait_on
    ctypedef struct Programs:
        Scheduler scheduler
        ProgramWorker *workers
        ProgramEntry *entries
        int32_t *first
        int32_t *predecessor_offsets
        int32_t num_tasks, num_nodes
    int programs_order(const RecordedGraph *g, const TaskHints *hints, int32_t num_workers, int32_t *home,
                       int32_t *order)
    int programs_open(Programs *p, const RecordedGraph *g, const TaskHints *hints, int32_t num_workers,
                      WorkerState *states, int64_t spin_ns)
    void programs_reset(Programs *p, int64_t first_replay, int32_t num_iterations)
    void programs_close(Programs *p)
    void programs_work(void *argument, int32_t worker) noexcept

cdef extern from "tasking/eager.h" nogil:
    ctypedef struct EagerTable:
        int32_t num_tasks, num_cells
        const int32_t *task_offsets
        const uint8_t *access_kind
        const int32_t *access_list
        const int32_t *list_offsets
        const int32_t *list_cells
    ctypedef struct Eager:
        Scheduler scheduler
        int64_t next_serial, oldest, window
        int32_t out_of_memory
    int eager_open(Eager *e, int32_t num_workers, const LoopRecord *loops, int32_t num_loops, WorkerState *states,
                   int64_t spin_ns, const EagerTable *table, const uint8_t *wait_after, int64_t window)
    void eager_reset(Eager *e, int64_t first_replay, int32_t num_iterations)
    void eager_close(Eager *e)
    void eager_work(void *argument, int32_t worker) noexcept
