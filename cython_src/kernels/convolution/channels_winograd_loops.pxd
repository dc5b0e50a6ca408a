"""Cython's view of kernels/convolution/channels_winograd_loops.h."""


cdef extern from "cython_src/kernels/convolution/channels_winograd_loops.h" nogil:
    ctypedef struct ChannelsWinogradLoops:
        void (**input)(const float *, Py_ssize_t, Py_ssize_t, int, const float *, float *, Py_ssize_t) noexcept nogil
        void (**gradient)(const float *, Py_ssize_t, Py_ssize_t, int, const float *, float *, Py_ssize_t) noexcept nogil
        void (**filter)(const float *, Py_ssize_t, int, float *, Py_ssize_t) noexcept nogil
        void (**output)(const float *, Py_ssize_t, int, const float *, int, int, float *, Py_ssize_t, Py_ssize_t, int,
                        int) noexcept nogil
        void (**weights)(const float *, Py_ssize_t, int, float *, Py_ssize_t) noexcept nogil
