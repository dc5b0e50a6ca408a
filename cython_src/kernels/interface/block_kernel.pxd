"""Cython's view of the C contract between plans and executors."""

from libc.stdint cimport int32_t, int64_t


cdef extern from "cython_src/kernels/interface/block_kernel.h" nogil:
    const int FORKTASK_ABI_VERSION
    const int FORKTASK_MAX_OPERANDS

    ctypedef struct TaskContext:
        int64_t iteration
        void *scratch
        int32_t worker
        int32_t abi_version

    ctypedef int (*BlockKernel)(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil

    cdef struct MicroKernels:
        pass

    ctypedef struct KernelArgs:
        void *operand[24]
        const int64_t *integers
        const double *reals
        const int32_t *bounds
        int32_t bounds_width
        int32_t num_blocks
        const MicroKernels *micro

    ctypedef struct LoopRecord:
        BlockKernel kernel
        const void *args
        int32_t first_task
        int32_t num_blocks
        int32_t iteration_stride
        int32_t iteration_offset
        const int32_t *lock_offsets
        const int32_t *lock_ids
        int32_t *locks

    ctypedef struct BlockEvent:
        int64_t start_ns
        int64_t stop_ns
        int64_t iteration
        int32_t task
        int32_t worker

    ctypedef struct Spell:
        int64_t start_ns
        int64_t stop_ns
        int64_t replay
        int32_t task
        int32_t kind

    ctypedef struct EventLog:
        BlockEvent *events
        int64_t event_capacity
        int64_t num_events
        Spell *spells
        int64_t spell_capacity
        int64_t num_spells
        int64_t logged_ns
        int64_t looked_ns

    ctypedef struct WorkerState:
        TaskContext context
        EventLog log
        int64_t failed_iteration
        int32_t failed_task
        int32_t status

    int64_t forktask_now_ns()
    int run_block(const LoopRecord *loop, Py_ssize_t block, int64_t replay, WorkerState *worker)
    unsigned forktask_flush_denormals()
    void forktask_restore_denormals(unsigned former)
