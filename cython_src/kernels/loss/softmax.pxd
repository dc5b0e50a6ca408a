"""Labels that have no loss."""

from libc.stdint cimport int32_t


cdef inline Py_ssize_t count_answers(const int32_t *labels, Py_ssize_t length) noexcept nogil:
    """Number of labels that are not softmax.IGNORED, at least 1: a mean over none is 0."""
    cdef Py_ssize_t count = 0, i
    for i in range(length):
        count += labels[i] != -100
    return max(count, <Py_ssize_t> 1)
