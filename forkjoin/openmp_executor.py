"""The plan as OpenMP tasks with depend clauses: the outside reference for task runtimes.

The same compiled code runs on any OpenMP runtime with GCC's interface. LLVM's libomp has it: start the process with
LD_PRELOAD naming libomp.so (Debian: libomp5, libomp-dev), and ask for `runtime="libomp"`, which refuses to run on
anything else.
"""

from __future__ import annotations

from ..cython_src.binding.executor_contract import Conduct
from ..cython_src.errors import UsageError
from ..cython_src.plan.barriers import barrier_after
from .executor import LoopExecutor, check_team, enter_openmp, loaded_runtime, openmp_conduct
from .models import OPENMP_TASKS
from .openmp_task_run import OpenMPTaskTeam


class OpenMPTasksExecutor(LoopExecutor):
    """`#pragma omp task depend(...)` for each block, over the plan's cells, created anew in each iteration.

    Notes
    -----
    With `taskwait=none` iterations overlap as far as their dependences let them. `prepare` refuses a plan where this
    process has loaded another OpenMP runtime than the one asked for. The calling thread looks for signals, when it
    creates or runs a task.
    """

    about = OPENMP_TASKS
    _team: OpenMPTaskTeam | None = None

    def _prepare(self, bound) -> None:
        runtime = self.options.runtime
        if runtime != loaded_runtime():
            raise UsageError(
                f"runtime={runtime} must be the OpenMP runtime that this process has loaded, which is "
                f"{loaded_runtime()}; set LD_PRELOAD to the path of libomp.so for libomp, to nothing for libgomp"
            )
        super()._prepare(bound)
        wait_after = barrier_after(bound.plan, self.options.taskwait)
        self._team = OpenMPTaskTeam(bound, self.num_threads, self.cpus, wait_after)

    def conduct(self) -> Conduct:
        """Return what this executor does besides running blocks."""
        return openmp_conduct(self._pinned())

    def _run_loops(self, bound, first_replay, num_replays, poll_signals):
        enter_openmp()
        result = self._team.run(self._workers, first_replay, num_replays, poll_signals)
        check_team(self._team.team_size, self.num_threads)
        return result

    def _forget(self) -> None:
        self._team = None
