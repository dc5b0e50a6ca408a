"""The plan's task graph as a oneTBB flow graph: an outside reference, built where oneTBB was found."""

from __future__ import annotations

from ..cython_src.binding.executor_contract import Conduct
from .executor import ForkGuard
from .flow_executor import FlowExecutor
from .models import TBB
from .tbb_flow_run import LIBRARY


class TBBExecutor(FlowExecutor):
    """A continue_node for each task; see `FlowExecutor`.

    Notes
    -----
    The calling thread is one of `num_threads`; it looks for signals when it runs a task and between iterations.
    """

    about = TBB
    library = LIBRARY
    library_name = "oneTBB"
    guard = ForkGuard("oneTBB's")

    def conduct(self) -> Conduct:
        """Return what this executor does besides running blocks."""
        return Conduct(
            caller_executes=True,
            threads_start="prepare",
            # oneTBB's threads when they enter the arena, the caller for each run.
            pinned=self._pinned(),
            idle_runtime="onetbb",
        )
