"""Base of the GPU models, of both kinds: preparing, running and waiting."""

from __future__ import annotations

from abc import abstractmethod

from ..binding.executor import BaseExecutor
from ..errors import UsageError
from .bind import GpuBoundPlan
from .launch_log import LaunchLog


class GpuExecutor(BaseExecutor):
    """Base of all GPU models; each has its own `_record` and `_run_on`.

    Parameters
    ----------
    num_threads : int
        Of the host, which only launches: 1, but for models that also compute there.
    cpus : list of int, optional
        For threads that compute; a thread that only launches is left where it is.
    event_capacity : int
        Launches that can be logged; 0: no log.
    """

    targets = ("gpu",)
    computes_on_host = False  # with any number of threads

    def __init__(self, num_threads: int = 1, *, cpus=None, event_capacity: int = 0):
        super().__init__(num_threads, cpus=cpus, event_capacity=event_capacity)
        if num_threads != 1 and not self.computes_on_host:
            raise UsageError(f"a GPU model runs on one thread of the host, got {num_threads}; use --threads 1")

    def run_while(self, stop, **options):
        """Refuse: decisions are made on the device, and the host would have to fetch them after each step."""
        raise UsageError(f"model {self.model!r} of a GPU does not look for a task's decision to stop; use run()")

    def _prepare(self, bound: GpuBoundPlan) -> None:
        self._workers = LaunchLog(bound.device, self.event_capacity)
        bound.prepare()
        self._record(bound)

    def _run(self, bound: GpuBoundPlan, first_replay: int, num_replays: int) -> None:
        with self._workers.logging(bound):
            self._bring(bound)
            try:
                self._run_on(bound, first_replay, num_replays)
            finally:
                bound.device.synchronize()
        bound.raise_failure()

    def logged_parts(self) -> list[tuple[int, int, int]]:
        """What the prepared plan's launches, or tasks on the host, are in each pass: loop, first block, number of
        blocks. Empty: passes are launched as captured graphs."""
        return [(number, 0, loop.num_blocks) for number, loop in enumerate(self.bound.plan.loops)]

    def _bring(self, bound: GpuBoundPlan) -> None:
        """Copy what a run needs to where it needs it."""
        bound.acquire_all()

    @abstractmethod
    def _record(self, bound: GpuBoundPlan) -> None:
        """Record what the model records, once the kernels are compiled."""

    @abstractmethod
    def _run_on(self, bound: GpuBoundPlan, first_replay: int, num_replays: int) -> None:
        """Give passes to the device; the caller waits for it."""
