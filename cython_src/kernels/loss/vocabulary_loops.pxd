"""Cython's view of the loops of a softmax over a vocabulary."""


cdef extern from "cython_src/kernels/loss/vocabulary_loops.h" nogil:
    ctypedef struct VocabularyLoops:
        float (*largest)(const float *, Py_ssize_t) noexcept nogil
        float (*sum_powers)(const float *, Py_ssize_t, float, float *) noexcept nogil
        void (*scale)(float *, Py_ssize_t, float) noexcept nogil
        void (*scaled_powers)(float *, Py_ssize_t, float, float) noexcept nogil
