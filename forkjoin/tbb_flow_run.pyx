"""oneTBB for `flow_graph.FlowGraph`."""

from libc.stdint cimport uintptr_t

cdef extern from "forkjoin/tbb_flow.hpp":
    ctypedef struct FlowLibrary:
        pass
    const FlowLibrary forktask_tbb

LIBRARY = <uintptr_t> &forktask_tbb
