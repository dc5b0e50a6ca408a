"""Fork-join on a GPU: a launch for each block loop."""

from __future__ import annotations

from ..cython_src.gpu.executor import GpuExecutor
from .models import GPU_FORKJOIN, GPU_STREAM


class GpuStreamExecutor(GpuExecutor):
    """All launches on one stream, one wait at the end: the device keeps plan order by itself. The fair baseline."""

    about = GPU_STREAM
    waits_after_loop = False

    def _record(self, bound):
        (self._stream,) = self._streams_for(bound, 1)

    def _run_on(self, bound, first_replay, num_replays):
        for replay in range(first_replay, first_replay + num_replays):
            for loops in bound.groups:
                bound.launch(loops, self._stream, replay, early=self.launches_early)
                if self.waits_after_loop:
                    bound.device.synchronize(self._stream)


class GpuForkJoinExecutor(GpuStreamExecutor):
    """Launch a loop, wait for the device, launch the next: what a first port does, and the barrier of fork-join."""

    about = GPU_FORKJOIN
    waits_after_loop = True
