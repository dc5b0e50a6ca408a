"""The plan's task graph as a oneTBB flow graph: an outside reference, built where oneTBB was found."""

from __future__ import annotations

import os

from ..cython_src.binding.executor_contract import Conduct
from ..cython_src.errors import MachineError
from ..cython_src.plan.dependences import record_graph
from .executor import LoopExecutor
from .tbb_flow_run import TBBGraph

_tbb_process: int | None = None


class TBBExecutor(LoopExecutor):
    """A continue_node for each task and join, made once; each iteration starts the roots and waits for the graph.

    Notes
    -----
    `prepare` raises MachineError where oneTBB does not start as many threads as asked for.
    The calling thread is one of `num_threads`; it looks for signals when it runs a task and between iterations.
    """

    model = "tbb"

    def __init__(self, num_threads: int = 1, *, cpus: list[int] | None = None, event_capacity: int = 0):
        super().__init__(num_threads, cpus=cpus, event_capacity=event_capacity)
        self._graph: TBBGraph | None = None

    def _prepare(self, bound) -> None:
        _refuse_after_fork()
        super()._prepare(bound)
        self._graph = TBBGraph(bound, record_graph(bound.plan.accesses, closed=False), self._workers, self.cpus)

    def conduct(self) -> Conduct:
        """Return what this executor does besides running blocks."""
        return Conduct(
            caller_executes=True,
            threads_start="prepare",
            # oneTBB's threads when they enter the arena, the caller for each run.
            pinned=self._pinned(),
            idle_runtime="onetbb",
        )

    def _run_loops(self, bound, first_replay, num_replays, poll_signals):
        _refuse_after_fork()
        return self._graph.run(first_replay, num_replays, poll_signals)

    def _forget(self) -> None:
        if self._graph is not None and _tbb_process == os.getpid():
            self._graph.close()
        self._graph = None


def _refuse_after_fork() -> None:
    global _tbb_process
    if _tbb_process not in (None, os.getpid()):
        raise MachineError(
            "oneTBB's threads do not survive a fork, and this process was forked from one that ran them; start "
            "processes with the method 'spawn'"
        )
    _tbb_process = os.getpid()
