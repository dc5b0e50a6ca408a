"""The plan's task graph as a Taskflow: an outside reference, built where its headers were found."""

from __future__ import annotations

from ..cython_src.binding.executor_contract import Conduct
from .executor import ForkGuard
from .flow_executor import FlowExecutor
from .models import TASKFLOW
from .taskflow_flow_run import LIBRARY

LOOKS_FOR_SIGNALS_NS = 20_000_000


class TaskflowExecutor(FlowExecutor):
    """A static task of a Taskflow for each task; see `FlowExecutor`.

    Notes
    -----
    The calling thread executes no block: it waits, and looks for signals every 20 ms.
    """

    about = TASKFLOW
    library = LIBRARY
    library_name = "Taskflow"
    guard = ForkGuard("Taskflow's")

    def conduct(self) -> Conduct:
        """Return what this executor does besides running blocks."""
        return Conduct(
            caller_executes=False,
            caller_wakes_ns=LOOKS_FOR_SIGNALS_NS,
            threads_start="prepare",
            pinned="no" if self.cpus is None else "at start",
            idle_runtime="taskflow",
        )
