"""The plan as StarPU tasks over data handles: an outside reference, built where StarPU was found."""

from __future__ import annotations

import os

from ..cython_src.binding.executor_contract import Conduct
from ..cython_src.errors import MachineError
from ..cython_src.plan.barriers import barrier_after
from .executor import ForkGuard, LoopExecutor
from .models import STARPU
from .starpu_task_run import StarpuSession

_STARPU = ForkGuard("StarPU's")
# StarPU starts once in a process, with these settings, for executors that have the same.
_open: set[StarPUExecutor] = set()


class StarPUExecutor(LoopExecutor):
    """A StarPU task for each block, created anew in each iteration, with a data handle for each of the plan's cells.

    Notes
    -----
    The calling thread executes no block: it creates tasks, at most one iteration ahead. StarPU is started by the first
    executor of a process that is prepared, and ended when the last one is closed. In the meantime `prepare` refuses
    executors with another number of threads, other CPUs or another scheduler. The calling thread looks for signals
    between loops.
    """

    about = STARPU
    _session: StarpuSession | None = None

    def _prepare(self, bound) -> None:
        _STARPU.enter()
        for other in _open:
            if other._settings() != self._settings():
                raise MachineError(
                    "StarPU runs once in a process, and another executor has it running with other settings (threads, "
                    "CPUs, scheduler); close that one first"
                )
        super()._prepare(bound)
        wait_after = barrier_after(bound.plan, self.options.taskwait)
        # StarPU reads these variables once. Its own messages would stand among those of the measurement.
        os.environ.setdefault("STARPU_SILENT", "1")
        # It would pin each worker to a core of its own choice; `cpus` says where each belongs, or that none is pinned.
        os.environ["STARPU_WORKERS_NOBIND"] = "1"
        self._session = StarpuSession(bound, self._workers, self.cpus, self.options.scheduler, wait_after)
        _open.add(self)

    def _settings(self):
        return self.num_threads, self.cpus, self.options.scheduler

    def conduct(self) -> Conduct:
        """Return what this executor does besides running blocks."""
        return Conduct(
            caller_executes=False,
            threads_start="prepare",
            pinned="no" if self.cpus is None else "at start",
            idle_runtime="starpu",
        )

    def _run_loops(self, bound, first_replay, num_replays, poll_signals):
        _STARPU.enter()
        return self._session.run(first_replay, num_replays, poll_signals)

    def _forget(self) -> None:
        if self._session is not None:
            if self._pid == os.getpid():
                self._session.close()
            else:
                self._session.abandon()
        _open.discard(self)
        self._session = None
