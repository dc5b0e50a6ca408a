"""A plan with pointers: what executors run."""

from libc.stdint cimport int32_t, int64_t

from interface_c cimport LoopRecord, WorkerState


cdef void *kept(list keep, values, dtype) except NULL


cdef class BoundPlan:
    cdef LoopRecord *loops            # one record a block loop, in plan order
    cdef readonly int num_loops
    cdef readonly int num_tasks
    cdef readonly int iteration_stride
    cdef int32_t *task_loop           # loop of each task
    cdef readonly Py_ssize_t scratch_bytes
    cdef readonly object plan
    cdef readonly object arrays       # buffer name -> ndarray
    cdef readonly object storage
    cdef readonly str target
    cdef readonly str instruction_set
    cdef readonly bint needs_gil      # some kernel is a Python callable
    cdef list errors                  # exceptions raised by Python callables
    cdef public list python_calls     # None, or one (loop, start_ns, stop_ns) per call of a Python callable
    cdef list keep                    # objects that own what the records point to
    cdef list layout                  # (name, array, shape) as bound


cdef class Workers:
    cdef WorkerState *states
    cdef readonly int num_workers
    cdef readonly object scratch      # one uint8 array a worker
    cdef list event_arrays, spell_arrays
    cdef public int tasks_per_pass    # of a plan that is run unrolled; 0: none
    cdef object block
