"""The plan's task graph in libraries that run graphs: outside references."""

from __future__ import annotations

import os
from typing import ClassVar

from ..cython_src.plan.dependences import record_graph
from .executor import ForkGuard, LoopExecutor
from .flow_graph import FlowGraph


class FlowExecutor(LoopExecutor):
    """A node of the library for each task and join, made once; each iteration starts the roots and waits for the graph.

    Notes
    -----
    `prepare` raises MachineError where the library does not start as many threads as asked for.
    """

    library: ClassVar[int]  # address of its functions
    library_name: ClassVar[str]
    guard: ClassVar[ForkGuard]

    _graph: FlowGraph | None = None

    def _prepare(self, bound) -> None:
        self.guard.enter()
        super()._prepare(bound)
        graph = record_graph(bound.plan.accesses, closed=False)
        self._graph = FlowGraph(bound, graph, self._workers, self.cpus, self.library, self.library_name)

    def _run_loops(self, bound, first_replay, num_replays, poll_signals):
        self.guard.enter()
        return self._graph.run(first_replay, num_replays, poll_signals)

    def _forget(self) -> None:
        if self._graph is not None:
            if self._pid == os.getpid():
                self._graph.close()
            else:
                self._graph.abandon()
        self._graph = None
