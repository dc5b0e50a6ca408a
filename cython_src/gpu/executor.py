"""Base of the GPU models, of both kinds: preparing, running and waiting."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from ..binding.executor import BaseExecutor
from ..errors import UsageError
from .bind import GpuBoundPlan
from .device import borrow_streams


class Lease:
    """Owner of streams and memory of a prepared plan, which are given back with it."""


class GpuExecutor(BaseExecutor):
    """Base of all GPU models; each has its own `_record` and `_run_on`.

    Notes
    -----
    `num_threads` are the host's, which only launches: 1, but for models that also compute there. `cpus` are for threads
    that compute; a thread that only launches is left where it is.
    """

    targets = ("gpu",)

    def __init__(self, num_threads: int = 1, **settings: Any):
        super().__init__(num_threads, **settings)
        if self.event_capacity:
            raise UsageError(
                f"event_capacity is for models of the CPU, got {self.event_capacity} for {self.model!r}; leave it out"
            )

    def run_while(self, stop, **options):
        """Refuse: decisions are made on the device, and the host would have to fetch them after each step."""
        raise UsageError(f"model {self.model!r} does not look for a task's decision to stop; use run()")

    @property
    def launches_early(self) -> bool:
        """Whether kernels are launched before the one before them is done."""
        return getattr(self.options, "launch", "plain") == "pdl"

    def _prepare(self, bound: GpuBoundPlan) -> None:
        if self.launches_early and not bound.device.has_pdl:
            raise UsageError(
                f"launch=pdl must run on a GPU of architecture sm_90 or newer whose driver has cuLaunchKernelEx, "
                f"{bound.device.name} is {bound.device.architecture}; use launch=plain"
            )
        self._workers = Lease()
        bound.prepare()
        self._record(bound)

    def _streams_for(self, bound: GpuBoundPlan, count: int) -> list:
        """Streams for as long as the plan is prepared."""
        return borrow_streams(bound.device, self._workers, count)

    def _run(self, bound: GpuBoundPlan, first_replay: int, num_replays: int) -> None:
        self._bring(bound)
        try:
            self._run_on(bound, first_replay, num_replays)
        finally:
            bound.device.synchronize()
        bound.raise_failure()

    def _bring(self, bound: GpuBoundPlan) -> None:
        """Copy what a run needs to where it needs it."""
        bound.acquire_all()

    @abstractmethod
    def _record(self, bound: GpuBoundPlan) -> None:
        """Record what the model records, once the kernels are compiled."""

    @abstractmethod
    def _run_on(self, bound: GpuBoundPlan, first_replay: int, num_replays: int) -> None:
        """Give passes to the device; the caller waits for it."""
