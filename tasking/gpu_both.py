"""Host and device together: each loop runs where it is expected to end first.

References
----------
The policy is that of StarPU's `dmda` scheduler (deque model, data aware): expected end = when the host or device is
free, plus the copies that are missing there, plus the expected length. Here the order is that of the plan, and a task
is a range of a loop's blocks. No two tasks of a loop write to the same piece of a buffer; pieces are cut along
its first dimension, and copies are made of pieces. So a part of a loop may run on the host and the rest on the device.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from ..cython_src.binding.bind import Workers
from ..cython_src.errors import UsageError
from ..cython_src.gpu.coherence import DEVICE, HOST, PLACES
from ..cython_src.gpu.executor import GpuExecutor
from .performance_models import PerformanceModels


def choose_place(
    models: PerformanceModels,
    kernel: str,
    size: int,
    free_s: dict[str, float],
    ready_s: float,
    missing_bytes: dict[str, list[int]],
) -> str:
    """Return where a task should run.

    Parameters
    ----------
    free_s : dict of place to float
        When each place has done what it was given.
    ready_s : float
        When the data are there, wherever that is.
    missing_bytes : dict of place to list of int
        Sizes of the copies that would be needed first.

    Returns
    -------
    str
        While a place has no believable history, the one with the shorter history, so that both are learnt.
    """
    expected = {place: models.expected_s(kernel, size, place) for place in PLACES}
    if None in expected.values():
        return min(PLACES, key=lambda place: models.count(kernel, size, place))
    return min(
        PLACES,
        key=lambda place: max(free_s[place], ready_s) + models.transfer_s(missing_bytes[place]) + expected[place],
    )


@dataclass(frozen=True)
class Task:
    """Blocks [first, first + count) of a loop.

    Attributes
    ----------
    size : int
        Operations and bytes, by which lengths are told apart.
    uses : list
        See `GpuBoundPlan.uses_of`.
    """

    loop: int
    first: int
    count: int
    kernel: str
    size: int
    uses: list


class GpuBothExecutor(GpuExecutor):
    """Tasks on the host's thread and on one stream of the device, side by side as far as data allow.

    Parameters
    ----------
    policy : {"dmda", "cpu", "gpu"}
        Where tasks run: where they are expected to end first, or all in one place.
    split : int
        Tasks of a loop, at most; 1: loops are not divided.
    models : str
        File of performance models: read if it is there, written when the executor is closed. Default: none.

    Attributes
    ----------
    models : PerformanceModels
        Histories, empty at first unless they were read.
    placed : dict of place to int
        Tasks run there so far.
    divided : set of int
        Loops of which some tasks ran on the host and some on the device in one replay.

    Notes
    -----
    Host and device add in different orders, so results depend, within rounding, on where loops ran.
    """

    model = "both"
    logs = False

    def __init__(self, num_threads: int = 1, *, policy: str = "dmda", split: int = 4, models: str = "", **options):
        super().__init__(num_threads, **options)
        if policy not in ("dmda", "cpu", "gpu"):
            raise UsageError(f"policy must be dmda, cpu or gpu; got {policy!r}")
        if split < 1:
            raise UsageError(f"split must be at least 1, got {split}")
        self.policy, self.split = policy, split if policy == "dmda" else 1
        self._file = Path(models) if models else None
        self.models = PerformanceModels.load(self._file) if self._file and self._file.exists() else PerformanceModels()
        self.clock = time.perf_counter
        self.placed = dict.fromkeys(PLACES, 0)
        self.divided: set[int] = set()

    def _record(self, bound):
        self._stream = bound.device.stream()
        self._host_worker = Workers(1, bound.scratch_bytes)
        self._tasks = []
        for number, loop in enumerate(bound.plan.loops):
            for first, count in bound.parts(number, self.split):
                whole = count == loop.num_blocks
                part = [loop] if whole else loop.blocks[first : first + count]
                size = int(sum(piece.flops + piece.bytes for piece in part))
                uses = bound.uses[number] if whole else bound.uses_of(number, first, count)
                self._tasks.append(Task(number, first, count, loop.kernel, size, uses))
        self._events = [[bound.device.event(timing=True) for _ in range(2)] for _ in self._tasks]

    def _end(self):
        if self._file and self.bound is not None:
            self.models.save(self._file)

    def _bring(self, bound):
        """Copy nothing in advance: every loop asks for the data it uses."""

    def _run_on(self, bound, first_replay, num_replays):
        for replay in range(first_replay, first_replay + num_replays):
            self._run_replay(bound, replay)

    def _run_replay(self, bound, replay):
        device = bound.device
        free_s = {HOST: 0.0, DEVICE: 0.0}
        written_s: dict[tuple[str, int], float] = {}  # when the last writer of each piece is expected to end
        on_device: list[tuple[int, bool]] = []
        in_flight: set[str] = set()  # what the device may not have read from the host's memory yet
        places: dict[int, set[str]] = {}
        for number, task in enumerate(self._tasks):
            needed = {place: bound.missing(task.uses, place) for place in PLACES}
            missing = {place: [size for _, size in copies] for place, copies in needed.items()}
            ready_s = max((written_s.get(piece, 0.0) for piece in bound.pieces(task.uses)), default=0.0)
            if self.policy == "dmda":
                place = choose_place(self.models, task.kernel, task.size, free_s, ready_s, missing)
            else:
                place = HOST if self.policy == "cpu" else DEVICE
            self.placed[place] += 1
            places.setdefault(task.loop, set()).add(place)
            length_s = self.models.expected_s(task.kernel, task.size, place) or 0.0
            free_s[place] = max(free_s[place], ready_s) + self.models.transfer_s(missing[place]) + length_s
            for piece in bound.pieces([use for use in task.uses if use[2]]):
                written_s[piece] = free_s[place]
            if place == DEVICE:
                start, stop = self._events[number]
                bound.acquire(task.uses, DEVICE, self._stream)
                device.record(start, self._stream)
                bound.launch(task.loop, self._stream, replay, first_block=task.first, num_blocks=task.count)
                device.record(stop, self._stream)
                on_device.append((number, bool(missing[DEVICE])))
                in_flight |= {name for name, _ in needed[DEVICE]}
                continue
            # Copies back come after all launches so far, in stream order; a host task that needs none runs beside them,
            # unless it writes what a copy to the device has still to read.
            overwrites = any(use[2] and use[0] in in_flight for use in task.uses)
            if bound.acquire(task.uses, HOST, self._stream) or overwrites:
                device.synchronize(self._stream)
                in_flight.clear()
            begin = self.clock()
            for block in range(task.first, task.first + task.count):
                if bound.host.run_task(task.loop, block, replay, self._host_worker):
                    bound.host.raise_failure(self._host_worker)
            self.models.add(task.kernel, task.size, HOST, self.clock() - begin, bool(missing[HOST]))
        device.synchronize(self._stream)
        for number, transfer in on_device:
            task = self._tasks[number]
            self.models.add(task.kernel, task.size, DEVICE, device.elapsed_s(*self._events[number]), transfer)
        self.divided |= {loop for loop, used in places.items() if len(used) > 1}
