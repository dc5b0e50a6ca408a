cdef int check_signals(void *errors) noexcept with gil
