"""Host and device together: a fixed part of each loop runs on the host, the rest on the device.

A task is a range of a loop's blocks, and the order is that of the plan. No two tasks of a loop write to the same piece
of a buffer; pieces are cut along its first dimension, and copies are made of pieces. So a part of a loop may run on the
host and the rest on the device.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..cython_src.binding.bind import Workers
from ..cython_src.binding.execution_model import Conduct
from ..cython_src.errors import UsageError
from ..cython_src.gpu.coherence import DEVICE, HOST
from ..cython_src.gpu.executor import GpuExecutor
from .host_workers import HostTask, HostWorkers
from .models import GPU_BOTH


@dataclass(frozen=True)
class Task:
    """Blocks [first, first + count) of a loop."""

    loop: int
    first: int
    count: int
    on_host: bool
    uses: list  # see `GpuBoundPlan.uses_of`
    pieces: dict[tuple[str, int], bool]  # each piece of a buffer or arena that is used, and whether it is written


class HostUses:
    """Tasks on the host that have not ended, by the pieces of buffers that they use."""

    def __init__(self):
        self._tasks: dict[tuple[str, int], list[tuple[HostTask, bool]]] = {}

    def add(self, task: HostTask, pieces: Mapping[tuple[str, int], bool]) -> None:
        """Note a task; what has ended is forgotten."""
        for piece, writes in pieces.items():
            known = [use for use in self._tasks.get(piece, ()) if not use[0].ended]
            self._tasks[piece] = [*known, (task, writes)]

    def users(self, pieces: Iterable[tuple[str, int]], writers_only: bool = False) -> list[HostTask]:
        """Return the tasks that use pieces, or write to them."""
        result = {}
        for piece in pieces:
            for task, writes in self._tasks.get(piece, ()):
                if not task.ended and (writes or not writers_only):
                    result[id(task)] = task
        return list(result.values())

    def before(self, pieces: Mapping[tuple[str, int], bool]) -> list[HostTask]:
        """Return the tasks that one with these uses has to wait for."""
        result = {id(task): task for piece, writes in pieces.items() for task in self.users([piece], not writes)}
        return list(result.values())


class GpuBothExecutor(GpuExecutor):
    """Tasks on threads of the host and on one stream of the device, side by side as far as data allow.

    Iterations overlap: a task of the next one starts as soon as the data that it uses are there.

    The calling thread launches the tasks of the device; `num_threads` of the host run the others. Of the `split` tasks
    of a loop the first `host` run on the host, of fewer tasks as large a part, rounded.

    Host and device add in different orders, so results depend, within rounding, on where tasks ran.

    The calling thread takes tasks in plan order and keeps `Coherence` up to date in that order. What a task on the host
    waits for are tasks on the host that use the same pieces. Before the device reads the host's memory the calling
    thread waits for those that write there; before a copy overwrites it, for all that use it. Pinned memory is read by
    a copy at any time until the stream gets there, so a task that writes such a buffer waits for the stream.
    """

    about = GPU_BOTH

    def __init__(self, num_threads: int = 1, **settings: Any):
        super().__init__(num_threads, **settings)
        if self.options.host > self.options.split:
            raise UsageError(
                f"host must be at most split, the tasks of a loop, got {self.options.host} of {self.options.split}"
            )
        self._host: HostWorkers | None = None

    def _record(self, bound):
        (self._stream,) = self._streams_for(bound, 1)
        self._host_worker = Workers(self.num_threads, bound.scratch_bytes)
        if self._host is None:
            self._host = HostWorkers(self.num_threads, self.cpus)
        self._tasks = []
        host, split = self.options.host, self.options.split
        for number, loop in enumerate(bound.plan.loops):
            parts = bound.parts(number, split if 0 < host < split else 1)
            on_host = (2 * len(parts) * host + split) // (2 * split)
            for position, (first, count) in enumerate(parts):
                uses = bound.uses[number] if count == loop.num_blocks else bound.uses_of(number, first, count)
                pieces = dict.fromkeys(bound.pieces(uses), False)
                pieces |= dict.fromkeys(bound.pieces([use for use in uses if use[2]]), True)
                self._tasks.append(Task(number, first, count, position < on_host, uses, pieces))

    def _end(self):
        if self._host is not None:
            self._host.close()

    def _bring(self, bound):
        """Copy nothing in advance: every task fetches the data it uses."""

    def conduct(self) -> Conduct:
        """Return what this executor does besides running blocks."""
        pinned = "no" if self.cpus is None else "at start"
        return Conduct(False, threads_start="prepare", pinned=pinned, idle_runtime="python", python_lock=True)

    def _run_on(self, bound, first_replay, num_replays):
        run = _Run(self, bound)
        try:
            for replay in range(first_replay, first_replay + num_replays):
                run.replay(replay)
                if self._host.failed:
                    break
        finally:
            run.end()


class _Run:
    """State of a run of `GpuBothExecutor`."""

    def __init__(self, executor: GpuBothExecutor, bound):
        self.executor, self.bound = executor, bound
        self.in_flight: set[str] = set()  # what the device may not have read from the host's memory yet
        self.busy_pieces: set[tuple[str, int]] = set()  # of managed memory: what the stream may be using
        self.uses = HostUses()

    def replay(self, number: int) -> None:
        """Submit or launch all tasks of one replay."""
        for task in self.executor._tasks:
            (self._submit if task.on_host else self._launch)(task, number)
            if self.executor._host.failed:
                return

    def _launch(self, task: Task, replay: int) -> None:
        bound, stream = self.bound, self.executor._stream
        copied = bound.missing(task.uses, DEVICE)
        if bound.managed:
            self.executor._host.wait(self.uses.before(task.pieces))
            self.busy_pieces |= task.pieces.keys()
        elif copied:
            self.executor._host.wait(self.uses.users(task.pieces, writers_only=True))
        bound.acquire(task.uses, DEVICE, stream)
        bound.launch((task.loop,), stream, replay, first_block=task.first, num_blocks=task.count)
        self.in_flight |= copied

    def _submit(self, task: Task, replay: int) -> None:
        bound, host = self.bound, self.executor._host
        if bound.missing(task.uses, HOST):
            self.executor._host.wait(self.uses.users(task.pieces))
        overwrites = any(use[2] and use[0] in self.in_flight for use in task.uses)
        # Copies back come after all launches so far, in stream order; a task that needs none runs beside them.
        if bound.acquire(task.uses, HOST, self.executor._stream) or overwrites or self.busy_pieces & task.pieces.keys():
            self._synchronize()
        workers = self.executor._host_worker

        def run(worker: int) -> bool:
            blocks = range(task.first, task.first + task.count)
            return any(bound.host.run_task(task.loop, block, replay, workers, worker) for block in blocks)

        submitted = HostTask(run)
        before = self.uses.before(task.pieces)
        self.uses.add(submitted, task.pieces)
        host.submit(submitted, before)

    def _synchronize(self) -> None:
        self.bound.device.synchronize(self.executor._stream)
        self.in_flight.clear()
        self.busy_pieces.clear()

    def end(self) -> None:
        """Wait for everything; raise what failed on the host."""
        host, workers = self.executor._host, self.executor._host_worker
        try:
            host.drain()
        finally:
            host.clear()
            self._synchronize()
        self.bound.host.raise_failure(workers)
