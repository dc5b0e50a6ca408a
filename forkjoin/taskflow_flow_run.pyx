"""Taskflow for `flow_graph.FlowGraph`."""

from libc.stdint cimport uintptr_t

cdef extern from "forkjoin/taskflow_flow.hpp":
    ctypedef struct FlowLibrary:
        pass
    const FlowLibrary forktask_taskflow

LIBRARY = <uintptr_t> &forktask_taskflow
