"""Cython's view of the loops of attention."""


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
