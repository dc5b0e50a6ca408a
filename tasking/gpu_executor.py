"""Task models on a GPU: streams and events issued anew in each iteration, or captured as a CUDA graph."""

from __future__ import annotations

import gc

from ..cython_src.gpu.executor import GpuExecutor
from ..cython_src.typed_text import format_bytes
from .gpu_streams import map_to_streams
from .models import GPU_TASKGRAPH, GPU_TASKITER, GPU_TASKS


class _StreamExecutor(GpuExecutor):
    """Base of the GPU's task models: launches on several streams, see `gpu_streams`."""

    def _record(self, bound):
        self.program = map_to_streams(bound.graph, self.options.streams)
        self._streams = self._streams_for(bound, self.program.num_streams)

    def _events(self):
        return {node: self.bound.device.event() for node in self.program.recorded}

    def _issue(self, replay: int, events: dict, former: dict | None, captured: bool) -> None:
        """Give one replay to the streams. `events`, `former`: events of this replay's nodes and of the one before;
        None: do not wait for the one before; `captured`: `replay` is added to the device's counter."""
        device, bound = self.bound.device, self.bound
        # With the same events for every replay, a wait means the last time its event was recorded: the former replay,
        # as long as this replay has not come to its node.
        for step in self.program.steps:
            stream = self._streams[step.stream]
            if former is not None:
                for node in step.waits_next:
                    bound.wait(stream, former[node])
            for node in step.waits:
                bound.wait(stream, events[node])
            loops = bound.graph.launches[step.node]
            if loops:
                bound.launch(loops, stream, replay, captured=captured, early=self.launches_early)
            if step.node in self.program.recorded:
                device.record(events[step.node], stream)


class GpuTasksExecutor(_StreamExecutor):
    """Every iteration's launches and events are issued anew by the host.

    Where the host does not wait after each iteration, the next one follows as its dependences allow.
    """

    about = GPU_TASKS

    def _record(self, bound):
        super()._record(bound)
        # Two sets that take turns: a node may wait for its own kind of the replay before after that was recorded anew.
        self._event_sets = (self._events(), self._events())

    def _forget(self):
        self._event_sets = ()

    def _run_on(self, bound, first_replay, num_replays):
        for replay in range(first_replay, first_replay + num_replays):
            wait = self.options.taskwait == "none" and replay > first_replay
            sets = self._event_sets
            self._issue(replay, sets[replay % 2], sets[(replay - 1) % 2] if wait else None, captured=False)
            if self.options.taskwait == "iteration":
                bound.device.synchronize()


class GpuTaskGraphExecutor(_StreamExecutor):
    """One iteration, captured as a CUDA graph with its parallel branches, relaunched: iterations follow one another."""

    about = GPU_TASKGRAPH

    @property
    def unroll(self) -> int:
        """Replays in a captured graph; what is left of a run is launched one by one."""
        return getattr(self.options, "unroll", 1)

    def _record(self, bound):
        super()._record(bound)
        (self._origin,) = self._streams_for(bound, 1)
        # Kernels are compiled and loaded by a first launch; that must not happen within a capture.
        bound.prepare(self._streams)
        bound.device.prepare("advance_counter")
        self._graphs = {n: self._capture(n) for n in {1, self.unroll}}

    def _forget(self):
        self._graphs = {}

    def _capture(self, replays: int):
        """The graph of `replays` replays in a row, with dependences instead of barriers between them.

        Memory that is given back meanwhile would end the capture, so Python collects no garbage until it is over.
        """
        device, origin = self.bound.device, self._origin
        free, collecting = device.free_bytes(), gc.isenabled()
        gc.disable()
        try:
            device.begin_capture(origin)
            try:
                events = self._issue_captured(replays)
            except BaseException:
                device.abandon_capture(origin)
                raise
            graph = device.end_capture(origin)
            del events
            return graph
        except MemoryError as error:
            launches = replays * len(self.bound.groups)
            smaller = "unroll=1, a smaller batch" if replays > 1 else "a smaller batch"
            raise MemoryError(
                f"a captured graph of {launches} launches needs more memory of the GPU ({device.name}) than the "
                f"{format_bytes(free)} that are free; use {smaller}, or gpu_tasks, which captures none"
            ) from error
        finally:
            if collecting:
                gc.enable()

    def _issue_captured(self, replays: int) -> list:
        """Give replays to the streams of a capture; returns events, none of which may be released before its end."""
        bound, device, origin = self.bound, self.bound.device, self._origin
        fork = device.event()
        device.record(fork, origin)
        for stream in self._streams:
            bound.wait(stream, fork)
        sets = [self._events() for _ in range(replays)]
        for replay, events in enumerate(sets):
            self._issue(replay, events, sets[replay - 1] if replay else None, captured=True)
        joins = [device.event() for _ in self._streams]
        for stream, join in zip(self._streams, joins, strict=True):
            device.record(join, stream)
            bound.wait(origin, join)
        bound.advance_counter(origin, replays)
        return [fork, sets, joins]

    def _run_on(self, bound, first_replay, num_replays):
        bound.set_counter(first_replay)
        for _ in range(num_replays // self.unroll):
            bound.device.launch_graph(self._graphs[self.unroll], self._origin)
        for _ in range(num_replays % self.unroll):
            bound.device.launch_graph(self._graphs[1], self._origin)


class GpuTaskIterExecutor(GpuTaskGraphExecutor):
    """Several iterations captured as one graph, so that they overlap as the closed graph allows.

    CUDA orders two launches of a graph as a whole: there is a barrier after every `unroll` iterations, and none within.
    """

    about = GPU_TASKITER
