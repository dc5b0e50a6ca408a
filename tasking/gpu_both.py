"""Host and device together: each loop runs where it is expected to end first.

References
----------
The policy is that of StarPU's `dmda` scheduler (deque model, data aware): expected end = when the place is free, plus the
copies that are missing there, plus the expected length. Here the unit is a block loop and the order that of the plan, since
copies are whole buffers.
"""

from __future__ import annotations

import time

from ..cython_src.coherence import DEVICE, HOST, PLACES
from ..cython_src.errors import UsageError
from ..cython_src.gpu_program import GpuExecutor
from ..cython_src.program import Workers
from .performance_models import PerformanceModels


def choose_place(models: PerformanceModels, kernel: str, size: int, free_s: dict[str, float], ready_s: float,
                 missing_bytes: dict[str, list[int]]) -> str:  # fmt: skip
    """Where a loop should run.

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
    return min(PLACES, key=lambda place: max(free_s[place], ready_s) + models.transfer_s(missing_bytes[place])
               + expected[place])  # fmt: skip


class GpuBothExecutor(GpuExecutor):
    """Loops on the host's thread and on one stream of the device, side by side as far as data allow.

    Parameters
    ----------
    policy : {"dmda", "cpu", "gpu"}
        Where loops run: where they are expected to end first, or all in one place.

    Attributes
    ----------
    models : PerformanceModels
        Histories, empty at first; they may be exchanged for loaded ones before a run.
    placed : dict of place to int
        Loops run there so far.

    Notes
    -----
    Host and device add in different orders, so results depend, within rounding, on where loops ran.
    """

    model = "both"
    logs = False

    def __init__(self, num_threads: int = 1, *, policy: str = "dmda", **options):
        super().__init__(num_threads, **options)
        if policy not in ("dmda", "cpu", "gpu"):
            raise UsageError(f"policy must be dmda, cpu or gpu; got {policy!r}")
        self.policy = policy
        self.models = PerformanceModels()
        self.clock = time.perf_counter
        self.placed = {place: 0 for place in PLACES}

    def _prepare(self, bound):
        self._stream = bound.device.stream()
        self._host_worker = Workers(1, bound.scratch_bytes)
        self._events = [[bound.device.event(timing=True) for _ in range(2)] for _ in range(bound.num_loops)]
        self._size = [int(loop.flops + loop.bytes) for loop in bound.plan.loops]

    def _bring(self, bound):
        """Nothing is brought in advance: every loop asks for what it uses."""

    def _run(self, bound, first_replay, num_replays):
        for replay in range(first_replay, first_replay + num_replays):
            self._run_replay(bound, replay)

    def _run_replay(self, bound, replay):
        device, kernels = bound.device, [loop.kernel for loop in bound.plan.loops]
        free_s = {HOST: 0.0, DEVICE: 0.0}
        written_s: dict[str, float] = {}  # when the last writer of each buffer is expected to end
        on_device: list[tuple[int, bool]] = []
        in_flight: set[str] = set()  # what the device may not have read from the host's memory yet
        for loop, uses in enumerate(bound.uses):
            needed = {place: bound.missing(uses, place) for place in PLACES}
            missing = {place: list(copies.values()) for place, copies in needed.items()}
            ready_s = max((written_s.get(name, 0.0) for name, _, _ in uses), default=0.0)
            if self.policy == "dmda":
                place = choose_place(self.models, kernels[loop], self._size[loop], free_s, ready_s, missing)
            else:
                place = HOST if self.policy == "cpu" else DEVICE
            self.placed[place] += 1
            length_s = self.models.expected_s(kernels[loop], self._size[loop], place) or 0.0
            free_s[place] = max(free_s[place], ready_s) + self.models.transfer_s(missing[place]) + length_s
            for name, _, writes in uses:
                if writes:
                    written_s[name] = free_s[place]
            if place == DEVICE:
                start, stop = self._events[loop]
                bound.acquire(uses, DEVICE, self._stream)
                device.record(start, self._stream)
                bound.launch(loop, self._stream, replay)
                device.record(stop, self._stream)
                on_device.append((loop, bool(missing[DEVICE])))
                in_flight |= needed[DEVICE].keys()
                continue
            # Copies back come after all launches so far, in stream order; a host loop that needs none runs beside them,
            # unless it writes what a copy to the device has still to read.
            overwrites = any(writes and name in in_flight for name, _, writes in uses)
            if bound.acquire(uses, HOST, self._stream) or overwrites:
                device.synchronize(self._stream)
                in_flight.clear()
            begin = self.clock()
            for block in range(bound.plan.loops[loop].num_blocks):
                if bound.host.run_task(loop, block, replay, self._host_worker):
                    bound.host.raise_failure(self._host_worker)
            self.models.add(kernels[loop], self._size[loop], HOST, self.clock() - begin, bool(missing[HOST]))
        device.synchronize(self._stream)
        for loop, transfer in on_device:
            self.models.add(kernels[loop], self._size[loop], DEVICE, device.elapsed_s(*self._events[loop]), transfer)
