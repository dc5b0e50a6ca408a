"""Base of the GPU models, of both kinds: the log of launches, preparing, running and waiting."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from ..binding.bind import EVENT_DTYPE
from ..binding.executor_contract import check_run
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


class GpuExecutor(ABC):
    """Base of all GPU models; each has its own `_prepare` and `_run`.

    Parameters
    ----------
    num_threads : int
        Of the host, which only launches: 1.
    cpus : list of int, optional
        Not used: the launching thread is left where it is.
    event_capacity : int
        Launches that can be logged; 0: no log.
    """

    model: str
    num_threads = 1
    logs = True

    def __init__(self, num_threads: int = 1, *, cpus=None, event_capacity: int = 0):
        if num_threads != 1:
            raise UsageError(f"a GPU model runs on one thread of the host, got {num_threads}; use --threads 1")
        if event_capacity and not self.logs:
            raise UsageError(
                f"launches of model {self.model!r} cannot be timed one by one; profile 'stream' or 'tasks'"
            )
        self.event_capacity = event_capacity
        self.bound: GpuBoundPlan | None = None
        self.workers: LaunchLog | None = None

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    def prepare(self, bound: GpuBoundPlan) -> None:
        """Compile the kernels, and record what the model records."""
        if bound.target != "gpu":
            raise UsageError(f"a GPU model needs a plan bound with target 'gpu', got {bound.target!r}; bind it again")
        self.bound = bound
        self.workers = LaunchLog(bound.device, self.event_capacity)
        bound.prepare()
        self._prepare(bound)

    def run(self, num_iterations: int, first_iteration: int = 0) -> None:
        """Run iterations and wait for the device.

        Raises
        ------
        BlockFailure
        UsageError
            Not prepared, or impossible numbers.
        """
        bound = self.bound
        if bound is None:
            raise UsageError("prepare() must come before run(); call it with a bound plan")
        num_replays, first_replay = check_run(num_iterations, first_iteration, bound.iteration_stride)
        self._bring(bound)
        try:
            self._run(bound, first_replay, num_replays)
        finally:
            bound.device.synchronize()
        bound.raise_failure()

    def close(self) -> None:
        """Forget the plan; its memory stays with it."""
        self.bound = None

    def _bring(self, bound: GpuBoundPlan) -> None:
        """Copy what a run needs to where it needs it."""
        bound.acquire_all()

    def launch(
        self, stream, loop: int, replay: int, first_block: int = 0, num_blocks: int | None = None, addresses=None
    ) -> None:
        """Launch blocks of a loop, with a log entry if that is on."""
        plan = self.bound.plan
        start = self.workers.start(stream)
        self.bound.launch(loop, stream, replay, first_block=first_block, num_blocks=num_blocks, addresses=addresses)
        iteration = replay * plan.iteration_stride + plan.loops[loop].iteration_offset
        self.workers.stop(start, stream, iteration, plan.loops[loop].first_task + first_block)

    @abstractmethod
    def _prepare(self, bound: GpuBoundPlan) -> None: ...

    @abstractmethod
    def _run(self, bound: GpuBoundPlan, first_replay: int, num_replays: int) -> None: ...
