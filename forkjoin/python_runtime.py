"""Base of runtimes that users write in Python."""

from __future__ import annotations

import os
import threading
from abc import abstractmethod
from typing import Any

from ..cython_src.binding.execution_model import Conduct
from ..cython_src.errors import UsageError
from .executor import LoopExecutor
from .serial_loops import EnteredThread


class Runtime(LoopExecutor):
    """Base of a runtime in Python: a subclass has `execute`, and `start` and `stop` where it keeps threads.

    Attributes
    ----------
    num_threads : int
        Threads that execute blocks: workers 0 ... num_threads - 1, no two at once on one number.
    bound : BoundPlan
        `bound.plan.loops` are the loops, in plan order; `forktask.plans.record_graph(bound.plan.accesses)` gives the
        dependences of their blocks.
    options : Record
        Those of the model.
    """

    def start(self) -> None:
        """Start threads, and record what runs need of `bound`."""

    @abstractmethod
    def execute(self, first_replay: int, num_replays: int) -> None:
        """Run each block of each pass through the plan once, by `run_block`, in any order that keeps its dependences;
        return when all have ended."""

    def stop(self) -> None:
        """End threads; `start` may have failed."""

    def run_block(self, loop: int, block: int, replay: int, worker: int) -> bool:
        """Run a block on the calling thread, without the GIL.

        Returns
        -------
        bool
            False: it failed; `execute` then returns early.
        """
        if getattr(self._entered, "worker", None) != (self._run_number, worker):
            self._entered.thread = EnteredThread(-1 if self.cpus is None else self.cpus[worker])
            self._entered.worker = self._run_number, worker
            if self._entered.thread.errno:
                raise UsageError(f"cpus must be CPUs this process may use, got {self.cpus}")
        return bool(self.bound.run_task(loop, block, replay, self._workers, worker) == 0)

    def conduct(self) -> Conduct:
        """Return what this executor does besides running blocks, as far as that is known of it."""
        return Conduct(caller_executes=False, threads_start="prepare", pinned=self._pinned(), python_lock=True)

    def _prepare(self, bound: Any) -> None:
        super()._prepare(bound)
        self._entered, self._run_number = threading.local(), 0
        self.start()

    def _run_loops(self, bound: Any, first_replay: int, num_replays: int, poll_signals: bool) -> tuple[int, list]:
        self._run_number += 1
        try:
            self.execute(first_replay, num_replays)
        finally:
            if getattr(self._entered, "worker", (0, 0))[0] == self._run_number:  # the caller has run blocks
                self._entered.thread.leave()
                self._entered.worker = None
        return 0, []

    def _forget(self) -> None:
        if self.bound is not None and self._pid == os.getpid():
            self.stop()
