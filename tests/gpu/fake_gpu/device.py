"""A device that runs the emulated CUDA kernels, late and in a random order that streams and events allow."""

from __future__ import annotations

import ctypes
import itertools
import random
import weakref

import numpy as np

from forktask.cython_src.gpu import launches
from forktask.cython_src.gpu.blas import WORKSPACE_BYTES

from . import emulator

GRAPH_NODE_BYTES = 1024  # of device memory, for each node of a captured graph


class Operation:
    """Something given to a stream.

    Attributes
    ----------
    before : int
        Bit set of the numbers of all operations that are done before this one starts.
    """

    def __init__(self, number, label, action, dependences):
        self.number, self.label, self.action = number, label, action
        self.dependences = [d for d in dependences if d is not None]
        self.before = 0
        for d in self.dependences:
            self.before |= d.before | 1 << d.number
        self.done = False
        self.time = 0.0


class FakeStream:
    """Remembers its last operation; `capture` is the graph that it is part of, or None."""

    def __init__(self, number):
        self.number, self.last, self.capture = number, None, None
        self.products = set()  # forms of which the library knows the kernel


class FakeEvent:
    def __init__(self, timing):
        self.timing, self.operation, self.capture, self.time = timing, None, None, None


class FakeGraph:
    """Captured nodes: (label, action, positions of the nodes before)."""

    def __init__(self, origin):
        self.nodes, self.origin, self.streams, self.invalid = [], origin, [origin], False


class CaptureError(RuntimeError):
    """What CUDA refuses while a graph is captured."""


class FakeDevice:
    """Has the methods of `Device`. Work is done when somebody waits, one operation at a time, a random one of all that
    may run.

    Parameters
    ----------
    seed : int
    execute : bool
        Whether kernels run; otherwise only the order is kept.
    memory_bytes : int, optional
        Of device memory; default: as much as the host gives.
    clock : callable, optional
        Seconds on the device. Default: each operation takes up to a microsecond, drawn from the seed.

    Attributes
    ----------
    log : list of Operation
        Everything but memory set-up, in the order in which it was given; `label` of a launch is
        ("launch", symbol, arguments, rows, whether it is early), of a copy ("to_device" or "to_host", bytes).
    counts : dict of str to int
        Calls by name.
    """

    name = "fake device"
    architecture = "emulated"
    peak_flops_per_s = peak_bytes_per_s = 1e9
    multiprocessors = 4
    shares_memory = True
    has_tf32 = has_pdl = has_blas_lt = True
    lacks_epilogues = ()

    def __init__(self, seed: int = 0, execute: bool = True, clock=None, memory_bytes: int = 1 << 50):
        self.costs_s = {"context": 0.25, "compilation": 0.5}
        self.random = random.Random(seed)
        self._kernels_wait = "griddepcontrol.wait" in launches.source("gpu/counter.cu")
        self.execute = execute
        self.log: list[Operation] = []
        self._numbers = itertools.count()
        self.counts: dict[str, int] = {}
        self.order: list[Operation] = []
        self._pending: list[Operation] = []
        self._running = False
        self._freed: list[int] = []  # addresses, until nothing is pending
        self._host_seen: list[Operation] = []  # operations the host has waited for, none before another
        self._memory: dict[int, np.ndarray] = {}
        self.memory_bytes = memory_bytes
        self._captures: list[FakeGraph] = []  # that are going on
        self._graphs: weakref.WeakSet[FakeGraph] = weakref.WeakSet()
        self.host_bytes = {"pinned": 0, "managed": 0}
        self._pinned: dict[int, int] = {}  # address and bytes
        self.spare_streams: list[FakeStream] = []
        self.events: weakref.WeakSet[FakeEvent] = weakref.WeakSet()
        self._with_workspace: set[FakeStream] = set()
        self._time, self._clock = 0.0, clock or (lambda: self._time + 1e-6 * self.random.random())

    def clock_hz(self):
        return 1.5e9

    def _count(self, name):
        self.counts[name] = self.counts.get(name, 0) + 1

    # --- memory

    def _refuse_in_capture(self, what):
        if self._captures:
            self._captures[0].invalid = True
            raise CaptureError(f"{what} while a graph is captured")

    def free_bytes(self):
        self._refuse_in_capture("memory is asked for")
        graphs = sum(GRAPH_NODE_BYTES * len(graph.nodes) for graph in self._graphs)
        taken = sum(raw.nbytes - 256 for raw in self._memory.values()) + WORKSPACE_BYTES * self.num_workspaces
        return self.memory_bytes - taken - graphs

    @property
    def num_workspaces(self):
        return len(self._with_workspace)

    def allocate(self, num_bytes):
        if num_bytes > self.free_bytes():
            raise MemoryError(f"{self.name} has no {num_bytes} bytes left")
        raw = np.full(num_bytes + 256, 0xFF, np.uint8)
        address = -(-raw.ctypes.data // 256) * 256
        self._memory[address] = raw
        return address

    def free(self, address):
        self._refuse_in_capture("memory is given back")
        self._freed.append(address)
        if not self._running:  # else Python collects garbage within an operation, which cannot be waited for here
            while self._pending:
                self._run_one()
            self._forget_freed()

    def _forget_freed(self):
        while self._freed:
            del self._memory[self._freed.pop()]

    def host_memory(self, num_bytes, kind):
        raw = np.zeros(num_bytes + 256, np.uint8)
        first = -raw.ctypes.data % 256
        part = raw[first : first + num_bytes]
        self.host_bytes[kind] += num_bytes
        if kind == "pinned":
            self._pinned[part.ctypes.data] = num_bytes
        weakref.finalize(raw, self._free_host, part.ctypes.data, num_bytes, kind)
        return part

    def _free_host(self, address, num_bytes, kind):
        self.host_bytes[kind] -= num_bytes
        self._pinned.pop(address, None)

    def _is_pinned(self, array):
        return any(address <= array.ctypes.data < address + size for address, size in list(self._pinned.items()))

    # --- streams

    def stream(self):
        self._count("stream")
        return FakeStream(self.counts["stream"])

    def event(self, timing=False):
        self._count("event")
        self.events.add(event := FakeEvent(timing))
        return event

    def _before(self, stream, early):
        """What is done before something that is given to a stream now: the last, or, if that is launched early and does
        not wait, what is done before the last."""
        if not early:
            return [] if stream.last is None else [stream.last]
        last = stream.last
        label, before = stream.capture.nodes[last][::2] if stream.capture else (last.label, last.dependences)
        if label[0] != "launch":
            raise CaptureError(f"a kernel is launched early after {label[0]!r}")
        return [stream.last] if self._kernels_wait else before

    def _give(self, stream, label, action, early=False):
        before = self._before(stream, early)
        if stream.capture is not None:
            graph = stream.capture
            graph.nodes.append((label, action, tuple(before)))
            stream.last = len(graph.nodes) - 1
            return None
        operation = Operation(next(self._numbers), label, action, [*before, *self._host_seen])
        self.log.append(operation)
        self._pending.append(operation)
        stream.last = operation
        return operation

    def record(self, event, stream):
        self._count("record")
        if stream.capture is None:
            event.capture, event.operation = None, stream.last
            if event.timing:
                event.operation = self._give(stream, ("time",), None)
        else:
            event.capture, event.operation = stream.capture, stream.last

    def wait(self, stream, event):
        self._count("wait")
        if stream.capture is None and event.capture is not None:
            if stream.last is not None and not stream.last.done:
                raise CaptureError("a stream with work of its own joins a capture")
            stream.capture, stream.last = event.capture, None
            event.capture.streams.append(stream)
        if stream.capture is not None:
            if event.capture is not stream.capture:
                raise CaptureError("a captured stream waits for an event from outside the capture")
            if event.operation is None:
                return
            graph = stream.capture
            before = {event.operation} | ({stream.last} if stream.last is not None else set())
            graph.nodes.append((("join",), None, tuple(sorted(before))))
            stream.last = len(graph.nodes) - 1
            return
        if event.operation is not None:
            operation = Operation(
                next(self._numbers), ("join",), None, [stream.last, event.operation, *self._host_seen]
            )
            self.log.append(operation)
            self._pending.append(operation)
            stream.last = operation

    def prepare(self, symbol):
        self._count("prepare")

    def prepared_launch(self, symbol, tiles, shared_bytes, args):
        self._count("prepared_launch")
        return symbol, tiles, shared_bytes, args

    def launch(self, prepared, rows, stream, early=False):
        self._count("launch")
        symbol, tiles, shared_bytes, args = prepared
        args = args.copy()
        seed = self.random.getrandbits(32)

        def action():
            if self.execute:
                emulator.launch(symbol, args, tiles, rows, shared_bytes, seed)

        self._give(stream, ("launch", symbol, args, rows, early), action, early)

    def offers(self, product, tf32):
        return product.epilogue not in self.lacks_epilogues

    def prepared_product(self, product, operands, tf32):
        self._count("prepared_product")
        return product, operands

    def multiply(self, prepared, stream):
        self._count("multiply")
        product, operands = prepared
        if stream.capture is None:
            if stream not in self._with_workspace and self.free_bytes() < WORKSPACE_BYTES:
                raise MemoryError(f"{self.name} has no memory for a workspace left")
            self._with_workspace.add(stream)
            stream.products.add(product.form)
        elif product.form not in stream.products:
            raise CaptureError("a product whose kernel was not chosen before is captured")

        def action():
            if self.execute:
                emulator.multiply(product, operands)

        self._give(stream, ("multiply", product, operands), action)

    def copy_to_device(self, address, array, stream):
        self._count("copy_to_device")
        source = array if self._is_pinned(array) else array.copy()
        self._give(
            stream, ("to_device", array.nbytes), lambda: ctypes.memmove(address, source.ctypes.data, source.nbytes)
        )

    def copy_to_host(self, array, address, stream):
        self._count("copy_to_host")
        self._give(stream, ("to_host", array.nbytes), lambda: ctypes.memmove(array.ctypes.data, address, array.nbytes))
        if not self._is_pinned(array):
            self.synchronize(stream)

    def fill(self, address, num_bytes, value, stream):
        self._give(stream, ("fill", num_bytes), lambda: ctypes.memset(address, value, num_bytes))

    # --- doing it

    def _run_one(self):
        self._running = True
        try:
            ready = [o for o in self._pending if all(d.done for d in o.dependences)]
            if not self._pending:  # memory that Python freed just now has waited for all operations
                return
            operation = self.random.choice(ready)
            if operation.action is not None:
                operation.action()
            operation.time = self._time = self._clock()
            operation.done = True
            self._pending.remove(operation)
            self.order.append(operation)
        finally:
            self._running = False
        if not self._pending:
            self._forget_freed()

    def synchronize(self, stream=None):
        self._count("synchronize")
        if stream is not None and stream.capture is not None:
            raise CaptureError("a captured stream cannot be waited for")
        wanted = self._pending[:] if stream is None else [stream.last] if stream.last is not None else []
        seen = self.log[:] if stream is None else wanted
        while any(not o.done for o in wanted):
            self._run_one()
        covered = 0
        for o in seen:
            covered |= o.before
        keep = {id(o): o for o in (*self._host_seen, *seen) if not covered >> o.number & 1}
        self._host_seen = list(keep.values())

    def elapsed_s(self, start, stop):
        return stop.operation.time - start.operation.time

    # --- captured graphs

    def begin_capture(self, stream):
        stream.capture, stream.outside = FakeGraph(stream), stream.last
        self._captures.append(stream.capture)
        stream.last = None

    def abandon_capture(self, stream):
        self._captures.remove(stream.capture)
        for other in stream.capture.streams:
            other.capture, other.last = None, None
        stream.last = stream.outside

    def end_capture(self, stream):
        graph = stream.capture
        self._captures.remove(graph)
        if graph.invalid:
            raise CaptureError("something was refused within the capture")
        reached = set()
        todo = [stream.last]
        while todo:
            node = todo.pop()
            if node is not None and node not in reached:
                reached.add(node)
                todo.extend(graph.nodes[node][2])
        for other in graph.streams:
            if other.last is not None and other.last not in reached:
                raise CaptureError(f"stream {other.number} was not joined at the end of the capture")
            other.capture, other.last = None, None
        stream.last = stream.outside
        if GRAPH_NODE_BYTES * len(graph.nodes) > self.free_bytes():
            raise MemoryError(f"{self.name} has no memory for a captured graph left")
        self._graphs.add(graph)
        return graph

    def launch_graph(self, graph, stream):
        self._count("launch_graph")
        if stream.capture is not None:
            raise CaptureError("a graph is launched into a capture")
        made = []
        for label, action, before in graph.nodes:
            dependences = [made[k] for k in before] or [stream.last, *self._host_seen]
            operation = Operation(next(self._numbers), label, action, dependences)
            self.log.append(operation)
            self._pending.append(operation)
            made.append(operation)
        end = Operation(next(self._numbers), ("end of graph",), None, [*made, stream.last])
        self.log.append(end)
        self._pending.append(end)
        stream.last = end
