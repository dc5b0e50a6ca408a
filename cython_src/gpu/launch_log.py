"""Event log of a run on a GPU: launches and copies by pairs of CUDA events, what the host did by its own clock.

All times are CLOCK_MONOTONIC. The device's clock is tied to it twice, before and after the logged runs: an event is
recorded and waited for between two readings of the host's clock, several times, and the closest pair counts. Times in
between are on the straight line through both ties, so the drift of the two clocks is measured and taken out.

An idle stream records the event before a launch at once, though the launch comes some microseconds later. So a launch
or copy begins at its event, but not before the host has called for it; by how long that call takes, the length of work
for which a stream was waiting is still uncertain. `GpuBoundPlan.spin` before a pass leaves no such gap.

Events can be recorded around launches, not inside of a captured graph: CuPy's interface has no
cudaEventRecordWithFlags, and what cudaEventRecord captures cannot be timed. So the launch of a graph is one span.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from ..binding.bind import EVENT_DTYPE
from .device import Device, borrow_streams

TIES = 8  # tries for the closest pair of readings
RESOLUTION_NS = 500  # of cudaEventElapsedTime, by its documentation
COPY_DTYPE = np.dtype([("start_ns", "<i8"), ("stop_ns", "<i8"), ("num_bytes", "<i8"), ("lane", "<i4")])
# What the calling thread does between blocks, besides Python: create a task, wait for the host, wait for the device.
CREATING, WAITING, WAITING_FOR_DEVICE = "creating", "waiting", "device"
GRAPH = -1  # task of the launch of a captured graph
CALLER = -1  # worker of blocks that the calling thread runs


@dataclass(frozen=True)
class Tie:
    """An event that happened at `host_ns`, give or take `error_ns`."""

    event: Any
    host_ns: int
    error_ns: int


@dataclass(frozen=True, eq=False)
class LaneLog:
    """What `LaunchLog.read` returns; times in ns of CLOCK_MONOTONIC.

    Attributes
    ----------
    launches : structured array `EVENT_DTYPE`
        By start; `worker`: number of the stream, in order of first use; `task`: the first block's, or `GRAPH`, and then
        `iteration` counts the launches of graphs.
    copies : structured array `COPY_DTYPE`
        By start; `lane`: number in `copy_lanes`.
    copy_lanes : list of (str, int)
        Place that is copied to, and stream.
    host_blocks : list of (start, stop, worker, iteration, task)
        Blocks that ran on the host; worker `CALLER`: the calling thread.
    host : list of (start, stop, what, replay, task)
        What the calling thread did: `CREATING`, `WAITING` or `WAITING_FOR_DEVICE`.
    clock : dict
        `error_ns`: by how much times of the device may be off, the usual call for a launch included; `drift_ppm`: by
        what fraction its clock was faster.
    num_lost : int
        Copies and spells of the host past the capacity.
    """

    launches: np.ndarray
    copies: np.ndarray
    copy_lanes: list[tuple[str, int]]
    host_blocks: list[tuple[int, int, int, int, int]]
    host: list[tuple[int, int, str, int, int]]
    clock: dict[str, float]
    num_lost: int


class LaunchLog:
    """What executors of a GPU offer as `workers`.

    Parameters
    ----------
    capacity : int
        Launches kept, and copies, and three times as many spells of the host; 0: no log.
    """

    num_workers = 1

    def __init__(self, device: Device, capacity: int):
        self.device, self.capacity, self._on = device, capacity, capacity > 0
        self._launches: list[tuple] = []
        self._copies: list[tuple] = []
        self._spare: list = []  # events of logs that were cleared, for the next one
        self._stream = borrow_streams(device, self, 1)[0] if capacity else None
        self._first: Tie | None = None
        self.clear_events()

    def switch_log(self, on: bool) -> None:
        """Switch the log off or on again, between runs: what it holds stays."""
        self._on = on and self.capacity > 0

    def clear_events(self) -> None:
        """Forget what was logged, and tie the clocks anew."""
        self._spare += [
            event for _, (start, _), stop, *_ in (*self._launches, *self._copies) for event in (start, stop)
        ]
        self._launches, self._copies = [], []
        self._host: list[tuple[int, int, str, int, int]] = []
        self._host_blocks: list[tuple[int, int, int, int, int]] = []
        self._streams: dict[Any, int] = {}
        self._calls_ns: list[int] = []  # durations of calls for launches
        self.num_launches = self._num_lost = self._num_graphs = 0
        if self.capacity:
            self._spare += [self._first.event] if self._first else []
            self._first = self._tie()

    @contextmanager
    def logging(self, bound) -> Iterator[None]:
        """Log what `bound` launches, copies and waits for; nothing while the log is off."""
        if not self._on:
            yield
            return
        device = bound.device
        bound.log, bound.device = self, LoggedDevice(device, self)
        try:
            yield
        finally:
            bound.log, bound.device = None, device

    def start(self, stream) -> tuple[int, Any, int]:
        """Note that work of a stream begins; returns what `stop` and `stop_copy` want: the host's time before and after
        its event was recorded."""
        return time.monotonic_ns(), self._record(stream), time.monotonic_ns()

    def stop(self, started, stream, replay: int, iteration: int, task: int) -> None:
        """Note that a launch has been given to its stream."""
        self.num_launches += 1
        if len(self._launches) == self.capacity:
            self._spare.append(started[1])
            return
        self._calls_ns.append(time.monotonic_ns() - started[2])
        self._launches.append((self._number(stream), started[1:], self._record(stream), iteration, task))
        self.note_host(started[0], CREATING, replay, task)

    def stop_copy(self, started, stream, place: str, num_bytes: int) -> None:
        """Note that a copy has been given to its stream."""
        if len(self._copies) == self.capacity:
            self._num_lost += 1
            self._spare.append(started[1])
            return
        self._copies.append((self._number(stream), started[1:], self._record(stream), place, num_bytes))

    def stop_graph(self, started, stream) -> None:
        """Note that a captured graph has been given to its stream."""
        self.stop(started, stream, self._num_graphs, self._num_graphs, GRAPH)
        self._num_graphs += 1

    def note_host(self, start_ns: int, what: str, replay: int = -1, task: int = -1) -> None:
        """Note what the calling thread has done since `start_ns`."""
        if len(self._host) < 3 * self.capacity:
            self._host.append((start_ns, time.monotonic_ns(), what, replay, task))
        else:
            self._num_lost += 1

    def note_blocks(self, start_ns: int, worker: int, iteration: int, task: int) -> None:
        """Note the blocks that a thread of the host has run since `start_ns`; any thread."""
        if len(self._host_blocks) <= self.capacity:  # one more shows that the log was too small
            self._host_blocks.append((start_ns, time.monotonic_ns(), worker, iteration, task))

    def read(self) -> LaneLog:
        """Wait for the device, tie the clocks again, and return everything logged.

        Raises
        ------
        RuntimeError
            The log was too small; nothing incomplete is returned.
        """
        count = self.num_launches + len(self._host_blocks)
        if count > self.capacity:
            raise RuntimeError(f"the log holds {self.capacity} launches but {count} happened; log fewer")
        first, last = self._first, self._tie()
        device_ns = 1e9 * self.device.elapsed_s(first.event, last.event)
        rate = (last.host_ns - first.host_ns) / device_ns if device_ns > 0 else 1.0

        def host_ns(event) -> int:
            return first.host_ns + round(1e9 * rate * self.device.elapsed_s(first.event, event))

        def span_ns(start: tuple[Any, int], stop) -> tuple[int, int]:
            ended = host_ns(stop)
            return min(max(host_ns(start[0]), start[1]), ended), ended

        launches = np.zeros(len(self._launches), EVENT_DTYPE)
        for i, (stream, start, stop, iteration, task) in enumerate(self._launches):
            launches[i] = (*span_ns(start, stop), iteration, task, stream)
        lanes = sorted({(place, stream) for stream, _, _, place, _ in self._copies})
        copies = np.zeros(len(self._copies), COPY_DTYPE)
        for i, (stream, start, stop, place, num_bytes) in enumerate(self._copies):
            copies[i] = (*span_ns(start, stop), num_bytes, lanes.index((place, stream)))
        rounding_ns = 1e6 * float(np.spacing(np.float32(1e-6 * device_ns)))  # times are milliseconds in float32
        clock = {
            "error_ns": max(first.error_ns, last.error_ns)
            + max(RESOLUTION_NS, rounding_ns)
            + (median(self._calls_ns) if self._calls_ns else 0),
            "drift_ppm": 1e6 * (1 / rate - 1),
        }
        self._spare.append(last.event)
        order = [np.argsort(part["start_ns"], kind="stable") for part in (launches, copies)]
        return LaneLog(
            launches[order[0]], copies[order[1]], lanes, self._host_blocks, self._host, clock, self._num_lost
        )

    def _number(self, stream) -> int:
        return self._streams.setdefault(stream, len(self._streams))

    def _record(self, stream):
        event = self._spare.pop() if self._spare else self.device.event(timing=True)
        self.device.record(event, stream)
        return event

    def _tie(self) -> Tie:
        """An event on the idle device, and when it happened."""
        self.device.synchronize()
        ties = []
        for _ in range(TIES):
            before = time.monotonic_ns()
            event = self._record(self._stream)
            self.device.synchronize(self._stream)
            after = time.monotonic_ns()
            ties.append(Tie(event, (before + after) // 2, (after - before + 1) // 2))
        best = min(ties, key=lambda tie: tie.error_ns)
        self._spare += [tie.event for tie in ties if tie is not best]
        return best


class LoggedDevice:
    """A device whose copies, graphs and waits are logged; all else is passed on."""

    def __init__(self, device: Device, log: LaunchLog):
        self._device, self._log = device, log

    def __getattr__(self, name: str):
        return getattr(self._device, name)

    def synchronize(self, stream=None) -> None:
        begin = time.monotonic_ns()
        self._device.synchronize(stream)
        self._log.note_host(begin, WAITING_FOR_DEVICE)

    def copy_to_device(self, address: int, array: np.ndarray, stream) -> None:
        with self._copying("device", array.nbytes, stream):
            self._device.copy_to_device(address, array, stream)

    def copy_to_host(self, array: np.ndarray, address: int, stream) -> None:
        with self._copying("host", array.nbytes, stream):
            self._device.copy_to_host(array, address, stream)

    def launch_graph(self, graph, stream) -> None:
        started = self._log.start(stream)
        self._device.launch_graph(graph, stream)
        self._log.stop_graph(started, stream)

    @contextmanager
    def _copying(self, place: str, num_bytes: int, stream) -> Iterator[None]:
        started = self._log.start(stream)
        begin = time.monotonic_ns()
        yield
        self._log.note_host(begin, WAITING_FOR_DEVICE)  # pageable memory is read or written before the call returns
        self._log.stop_copy(started, stream, place, num_bytes)
