"""Base of the GPU models, of both kinds: preparing, running and waiting."""

from __future__ import annotations

from abc import abstractmethod

from ..binding.executor import BaseExecutor
from ..errors import UsageError
from .bind import GpuBoundPlan
from .device import borrow_streams
from .launch_log import LaunchLog


class GpuExecutor(BaseExecutor):
    """Base of all GPU models; each has its own `_record` and `_run_on`.

    Notes
    -----
    `num_threads` are the host's, which only launches: 1, but for models that also compute there. `cpus` are for threads
    that compute; a thread that only launches is left where it is. `event_capacity` counts launches.
    """

    targets = ("gpu",)

    def run_while(self, stop, **options):
        """Refuse: decisions are made on the device, and the host would have to fetch them after each step."""
        raise UsageError(f"model {self.model!r} does not look for a task's decision to stop; use run()")

    def _prepare(self, bound: GpuBoundPlan) -> None:
        self._workers = LaunchLog(bound.device, self.event_capacity)
        bound.prepare()
        self._record(bound)

    def _streams_for(self, bound: GpuBoundPlan, count: int) -> list:
        """Streams for as long as the plan is prepared."""
        return borrow_streams(bound.device, self._workers, count)

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
