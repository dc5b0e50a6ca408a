"""Base of the GPU models, of both kinds: the log of launches, preparing, running and waiting."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from ..binding.bind import EVENT_DTYPE
from ..binding.executor import BaseExecutor
from ..errors import UsageError
from .bind import GpuBoundPlan
from .device import Device


class LaunchLog:
    """What executors offer as `workers`: the times of launches on the device's clock.

    Parameters
    ----------
    device : Device
    capacity : int
        Launches kept; 0 switches the log off.
    """

    num_workers = 1

    def __init__(self, device: Device, capacity: int):
        self.device, self.capacity = device, capacity
        self._pairs: list[tuple] = []
        self._base = None
        self.num_launches = 0

    def start(self, stream):
        """Note that a launch begins; returns what `stop` wants, None when the log is off."""
        if not self.capacity:
            return None
        if self._base is None:
            self._base = self.device.event(timing=True)
            self.device.record(self._base, stream)
        event = self.device.event(timing=True)
        self.device.record(event, stream)
        return event

    def stop(self, start, stream, iteration: int, task: int) -> None:
        if start is None:
            return
        self.num_launches += 1
        if self.num_launches > self.capacity:
            return
        event = self.device.event(timing=True)
        self.device.record(event, stream)
        self._pairs.append((start, event, iteration, task))

    def events(self) -> np.ndarray:
        """All launches, ordered by start; `task` is the first block's.

        Raises
        ------
        RuntimeError
            The log was too small; nothing incomplete is returned.
        """
        if self.num_launches > self.capacity:
            raise RuntimeError(f"the log holds {self.capacity} launches but {self.num_launches} happened; log fewer")
        self.device.synchronize()
        events = np.zeros(len(self._pairs), EVENT_DTYPE)
        for i, (start, stop, iteration, task) in enumerate(self._pairs):
            events[i] = (
                round(self.device.elapsed_s(self._base, start) * 1e9),
                round(self.device.elapsed_s(self._base, stop) * 1e9),
                iteration,
                task,
                0,
            )
        return events[np.argsort(events["start_ns"], kind="stable")]

    def clear_events(self) -> None:
        self._pairs.clear()
        self.num_launches = 0


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
    logs = True
    computes_on_host = False  # with any number of threads

    def __init__(self, num_threads: int = 1, *, cpus=None, event_capacity: int = 0):
        super().__init__(num_threads, cpus=cpus, event_capacity=event_capacity)
        if num_threads != 1 and not self.computes_on_host:
            raise UsageError(f"a GPU model runs on one thread of the host, got {num_threads}; use --threads 1")
        if event_capacity and not self.logs:
            raise UsageError(
                f"launches of model {self.model!r} cannot be timed one by one; profile 'stream' or 'tasks'"
            )

    def run_while(self, stop, **options):
        """Refuse: decisions are made on the device, and the host would have to fetch them after each step."""
        raise UsageError(f"model {self.model!r} of a GPU does not look for a task's decision to stop; use run()")

    def _prepare(self, bound: GpuBoundPlan) -> None:
        self._workers = LaunchLog(bound.device, self.event_capacity)
        bound.prepare()
        self._record(bound)

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

    def launch(
        self, stream, loop: int, replay: int, first_block: int = 0, num_blocks: int | None = None, addresses=None
    ) -> None:
        """Launch blocks of a loop, with a log entry if that is on."""
        plan = self.bound.plan
        start = self._workers.start(stream)
        self.bound.launch(loop, stream, replay, first_block=first_block, num_blocks=num_blocks, addresses=addresses)
        iteration = replay * plan.iteration_stride + plan.loops[loop].iteration_offset
        self._workers.stop(start, stream, iteration, plan.loops[loop].first_task + first_block)

    @abstractmethod
    def _record(self, bound: GpuBoundPlan) -> None:
        """Record what the model records, once the kernels are compiled."""

    @abstractmethod
    def _run_on(self, bound: GpuBoundPlan, first_replay: int, num_replays: int) -> None:
        """Give passes to the device; the caller waits for it."""
