"""The executor that moves data from host to device in every step: the host loads the input."""

from __future__ import annotations

from typing import Any

from ..cython_src.binding.bind import Workers
from ..cython_src.errors import UsageError
from ..cython_src.gpu.bind import freed_with
from ..cython_src.gpu.coherence import DEVICE, HOST
from ..cython_src.gpu.executor import GpuExecutor
from .models import GPU_HOSTLOAD


class GpuHostLoadExecutor(GpuExecutor):
    """The host puts each step's images together and copies them; the device does the rest on one stream.

    To prefetch, the device has two slots for the input, which take turns, and a stream of its own for copies. Managed
    memory is copied by nobody: the driver moves the pages that the host has written when the device reads them.
    """

    about = GPU_HOSTLOAD

    def __init__(self, num_threads: int = 1, **settings: Any):
        super().__init__(num_threads, **settings)
        self.prefetch = self.options.copies == "prefetch"
        self._extra = {}  # addresses of the second slot

    def _record(self, bound):
        plan, device = bound.plan, bound.device
        self._loads = [k for k, loop in enumerate(plan.loops) if loop.phase == "load"]
        self._rest = [k for k in range(bound.num_loops) if k not in self._loads]
        self._groups = [loops for loops in bound.groups if loops[0] not in self._loads]
        if not self._loads:
            raise UsageError(f"model {self.model!r} needs a plan with a load phase; {plan.name!r} has none")
        if bound.managed and self.prefetch:
            raise UsageError(
                f"model {self.model!r} has one slot for input in managed memory, which the host may not write while "
                f"the device reads; use copies=synchronous, or memory=pinned"
            )
        self._inputs = sorted({name for k in self._loads for name, _, writes in bound.uses[k] if writes})
        if any(name not in plan.buffers for name in self._inputs):
            raise UsageError(
                f"model {self.model!r} needs input buffers of their own; lower the plan with memory 'full'"
            )
        self._slots = [{name: bound.address[name] for name in self._inputs}]
        if self.prefetch:
            for name in self._inputs:
                self._extra[name] = device.allocate(plan.buffers[name].size_bytes)
                freed_with(self._workers, device, self._extra[name])
            self._slots.append(self._extra)
        self._stream, self._copy_stream = self._streams_for(bound, 2)
        self._copied = [device.event() for _ in self._slots]
        self._computed = [device.event() for _ in self._slots]
        self._host_worker = Workers(1, bound.scratch_bytes)

    def _bring(self, bound):
        bound.acquire_all(self._rest, without=self._inputs)
        # Of the input the host has what counts; the device's copies are passing.
        bound.acquire([use for k in self._loads for use in bound.uses[k]], HOST)

    def _run_on(self, bound, first_replay, num_replays):
        device = bound.device
        for replay in range(first_replay, first_replay + num_replays):
            slot = replay % len(self._slots)
            for loop in self._loads:
                run_on_host(bound, loop, replay, self._host_worker)
            device.wait(self._copy_stream, self._computed[slot])
            for name in self._inputs if not bound.managed else ():
                bound.copy(name, DEVICE, self._copy_stream, self._slots[slot][name])
            device.record(self._copied[slot], self._copy_stream)
            device.wait(self._stream, self._copied[slot])
            for loops in self._groups:
                bound.launch(loops, self._stream, replay, addresses=self._slots[slot])
            device.record(self._computed[slot], self._stream)
            if self.prefetch:
                device.synchronize(self._copy_stream)  # the host's copy is about to be written again
            else:
                device.synchronize(self._stream)

    def _forget(self):
        self._extra, self._copied, self._computed = {}, [], []


def run_on_host(bound, loop: int, replay: int, workers: Workers) -> None:
    """Run a loop's blocks on the calling thread, in order. Raises `BlockFailure`."""
    for block in range(bound.plan.loops[loop].num_blocks):
        if bound.host.run_task(loop, block, replay, workers):
            bound.host.raise_failure(workers)
