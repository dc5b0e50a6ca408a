"""Host and device together: each task runs where it is expected to end first.

References
----------
The policy is that of StarPU's `dmda` scheduler (deque model, data aware): expected end = when a worker of the host or
the device is free, plus the copies that are missing there, plus the expected duration. Here the order is that of the
plan, and a task is a range of a loop's blocks. No two tasks of a loop write to the same piece of a buffer; pieces are
cut along its first dimension, and copies are made of pieces. So a part of a loop may run on the host and the rest on
the device.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..cython_src.binding.bind import Workers
from ..cython_src.binding.executor_contract import Conduct
from ..cython_src.gpu.coherence import DEVICE, HOST, PLACES
from ..cython_src.gpu.executor import GpuExecutor
from ..cython_src.gpu.launch_log import CREATING, WAITING
from .host_workers import HostTask, HostWorkers
from .models import GPU_BOTH
from .performance_models import FULL, PerformanceModels

UNREAD_REPLAYS = 4  # of which the device's durations wait to be read; then the calling thread waits for the stream


def choose_place(
    models: PerformanceModels,
    kernel: str,
    size: int,
    free_s: dict[str, float],
    ready_s: float,
    missing_bytes: dict[str, list[int]],
) -> str:
    """Return where a task should run. `free_s`: when each place has done what it was given; `ready_s`: when the data
    are there, wherever that is; `missing_bytes`: sizes of the copies that would be needed first. While a place has no
    believable history, that is the one with the shorter history, so that both are learnt."""
    expected = {place: models.expected_s(kernel, size, place) for place in PLACES}
    if None in expected.values():
        return min(PLACES, key=lambda place: models.count(kernel, size, place))
    return min(
        PLACES,
        key=lambda place: max(free_s[place], ready_s) + models.transfer_s(missing_bytes[place]) + expected[place],
    )


@dataclass(frozen=True)
class Task:
    """Blocks [first, first + count) of a loop."""

    loop: int
    first: int
    count: int
    kernel: str
    size: int  # operations and bytes: histories of durations are kept by size
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

    The calling thread places tasks, and launches those of the device; `num_threads` of the host run the others.

    `frozen` has the place of each task from now on: once the histories of all tasks are full where they ran, they stay
    there, and the calling thread looks at data alone.

    Host and device add in different orders, so results depend, within rounding, on where tasks ran.

    The calling thread takes tasks in plan order and keeps `Coherence` up to date in that order. What a task on the host
    waits for are tasks on the host that use the same pieces. Before the device reads the host's memory the calling
    thread waits for those that write there; before a copy overwrites it, for all that use it. Pinned memory is read by
    a copy at any time until the stream gets there, so a task that writes such a buffer waits for the stream.
    """

    about = GPU_BOTH

    def __init__(self, num_threads: int = 1, **settings: Any):
        super().__init__(num_threads, **settings)
        self.policy = self.options.policy
        self.split = self.options.split if self.policy == "dmda" else 1
        self.models = PerformanceModels()  # histories, empty at first
        self.clock = time.perf_counter
        self.placed = dict.fromkeys(PLACES, 0)  # tasks run there so far
        self.divided: set[int] = set()  # loops of which some tasks ran on the host, some on the device, in one replay
        self._host: HostWorkers | None = None

    def _record(self, bound):
        (self._stream,) = self._streams_for(bound, 1)
        self._host_worker = Workers(self.num_threads, bound.scratch_bytes)
        if self._host is None:
            self._host = HostWorkers(self.num_threads, self.cpus)
        self._tasks = []
        for number, loop in enumerate(bound.plan.loops):
            for first, count in bound.parts(number, self.split):
                whole = count == loop.num_blocks
                part = [loop] if whole else loop.blocks[first : first + count]
                size = int(sum(piece.flops + piece.bytes for piece in part))
                uses = bound.uses[number] if whole else bound.uses_of(number, first, count)
                pieces = dict.fromkeys(bound.pieces(uses), False)
                pieces |= dict.fromkeys(bound.pieces([use for use in uses if use[2]]), True)
                self._tasks.append(Task(number, first, count, loop.kernel, size, uses, pieces))
        self.frozen = [] if self.policy == "dmda" else [HOST if self.policy == "cpu" else DEVICE] * len(self._tasks)
        self._spare_events: list = []

    def logged_parts(self):
        return [(task.loop, task.first, task.count) for task in self._tasks]

    def _forget(self):
        self._spare_events = []

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
        # Expected end of the work that each worker of the host, and the device, was given.
        self.free_s = {HOST: [0.0] * executor.num_threads, DEVICE: [0.0]}
        self.written_s: dict[tuple[str, int], float] = {}  # when the last writer of each piece is expected to end
        # Launches whose duration was not read yet: task, events before and after it, whether it came with a copy.
        self.on_device: list[tuple] = []
        self.in_flight: set[str] = set()  # what the device may not have read from the host's memory yet
        self.busy_pieces: set[tuple[str, int]] = set()  # of managed memory: what the stream may be using
        self.lengths: deque[tuple] = deque()  # of tasks on the host, added by its threads
        self.uses = HostUses()

    def replay(self, number: int) -> None:
        """Place all tasks of one replay, and wait where a history is too short to be believed."""
        executor, models, tasks = self.executor, self.executor.models, self.executor._tasks
        places: dict[int, set[str]] = {}
        chosen = []
        for position, task in enumerate(tasks):
            place = executor.frozen[position] if executor.frozen else self._place(task)
            chosen.append(place)
            executor.placed[place] += 1
            places.setdefault(task.loop, set()).add(place)
            (self._launch if place == DEVICE else self._submit)(task, number)
            if executor._host.failed:
                return
        executor.divided |= {loop for loop, used in places.items() if len(used) > 1}
        learning = not executor.frozen and any(
            models.expected_s(task.kernel, task.size, place) is None for task in tasks for place in PLACES
        )
        if learning:
            self._wait(self.uses.users({piece for task in tasks for piece in task.pieces}))
        elif not executor.frozen and all(
            models.count(task.kernel, task.size, place) >= FULL for task, place in zip(tasks, chosen, strict=True)
        ):
            executor.frozen = chosen
        if learning or len(self.on_device) > UNREAD_REPLAYS * len(tasks):
            self._synchronize()

    def _place(self, task: Task) -> str:
        executor, bound = self.executor, self.bound
        missing = {place: [size for _, size in bound.missing(task.uses, place)] for place in PLACES}
        free = {place: min(times) for place, times in self.free_s.items()}
        ready_s = max((self.written_s.get(piece, 0.0) for piece in task.pieces), default=0.0)
        place = choose_place(executor.models, task.kernel, task.size, free, ready_s, missing)
        length_s = executor.models.expected_s(task.kernel, task.size, place) or 0.0
        ends = max(free[place], ready_s) + executor.models.transfer_s(missing[place]) + length_s
        self.free_s[place][self.free_s[place].index(free[place])] = ends
        self.written_s |= {piece: ends for piece, writes in task.pieces.items() if writes}
        return place

    def _launch(self, task: Task, replay: int) -> None:
        bound, stream = self.bound, self.executor._stream
        copied = [name for name, _ in bound.missing(task.uses, DEVICE)]
        if bound.managed:
            self._wait(self.uses.before(task.pieces))
            self.busy_pieces |= task.pieces.keys()
        elif copied:
            self._wait(self.uses.users(task.pieces, writers_only=True))
        start, stop = (self._event() for _ in range(2))
        bound.acquire(task.uses, DEVICE, stream)
        bound.device.record(start, stream)
        bound.launch(task.loop, stream, replay, first_block=task.first, num_blocks=task.count)
        bound.device.record(stop, stream)
        self.on_device.append((task, start, stop, bool(copied)))
        self.in_flight |= {*copied}

    def _submit(self, task: Task, replay: int) -> None:
        bound, host = self.bound, self.executor._host
        copied = bool(bound.missing(task.uses, HOST))
        if copied:
            self._wait(self.uses.users(task.pieces))
        overwrites = any(use[2] and use[0] in self.in_flight for use in task.uses)
        # Copies back come after all launches so far, in stream order; a task that needs none runs beside them.
        if bound.acquire(task.uses, HOST, self.executor._stream) or overwrites or self.busy_pieces & task.pieces.keys():
            self._synchronize()
        clock, lengths, workers, log = self.executor.clock, self.lengths, self.executor._host_worker, bound.log
        number = bound.plan.loops[task.loop].first_task + task.first

        def run(worker: int) -> bool:
            begin, begin_ns = clock(), time.monotonic_ns()
            for block in range(task.first, task.first + task.count):
                if bound.host.run_task(task.loop, block, replay, workers, worker):
                    return True
            lengths.append((task.kernel, task.size, HOST, clock() - begin, copied))
            if log:
                log.note_blocks(begin_ns, worker, bound.iteration_of(task.loop, replay), number)
            return False

        begin_ns, submitted = time.monotonic_ns(), HostTask(run)
        before = self.uses.before(task.pieces)
        self.uses.add(submitted, task.pieces)
        host.submit(submitted, before)
        if log:
            log.note_host(begin_ns, CREATING, replay, number)

    def _wait(self, tasks: list[HostTask]) -> None:
        begin_ns = time.monotonic_ns()
        self.executor._host.wait(tasks)
        if self.bound.log:
            self.bound.log.note_host(begin_ns, WAITING)

    def _event(self):
        spare = self.executor._spare_events
        return spare.pop() if spare else self.bound.device.event(timing=True)

    def _synchronize(self) -> None:
        """Wait for the stream, and read the durations of what has ended."""
        executor, device = self.executor, self.bound.device
        device.synchronize(executor._stream)
        self.in_flight.clear()
        self.busy_pieces.clear()
        for task, start, stop, transfer in self.on_device:
            executor.models.add(task.kernel, task.size, DEVICE, device.elapsed_s(start, stop), transfer)
            executor._spare_events += start, stop
        self.on_device.clear()
        while self.lengths:
            executor.models.add(*self.lengths.popleft())

    def end(self) -> None:
        """Wait for everything; raise what failed on the host."""
        host, workers = self.executor._host, self.executor._host_worker
        try:
            host.drain()
        finally:
            host.clear()
            self._synchronize()
        self.bound.host.raise_failure(workers)
