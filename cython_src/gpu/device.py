"""A GPU as the executors see it: memory, streams, events, launches, captured graphs. CuPy stands behind it.

`Device` is small enough for a fake one to stand in, which has the same methods (tests/gpu/fake_gpu): streams and events
are whatever the device hands out, addresses are integers. CuPy is imported when a device is opened, never before.
"""

from __future__ import annotations

import ctypes
import math
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UsageError
from ..typed_text import format_bytes
from . import launches
from .blas import Blas, Product
from .epilogues import BlasLt

# Lanes for float32 multiply-adds of a multiprocessor, by compute capability (CUDA C++ Programming Guide, "Throughput of
# Native Arithmetic Instructions").
LANES_OF_MULTIPROCESSOR = {
    **dict.fromkeys(((7, 0), (7, 5), (8, 0)), 64),
    **dict.fromkeys(((8, 6), (8, 7), (8, 9), (9, 0), (10, 0), (12, 0)), 128),
}

OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation

# For cuLaunchKernelEx, which CuPy does not offer (cuda.h). CUlaunchConfig: grid, CUDA block, shared bytes, stream,
# attributes, their number. CUlaunchAttribute: a number, padding, a union of 64 bytes; CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_
# STREAM_SERIALIZATION is 1.
LAUNCH_CONFIG = np.dtype("(3,)u4, (3,)u4, u4, u8, u8, u4", align=True)
PROGRAMMATIC = np.array([6, 0, 1, *(0,) * 15], np.int32)
PROGRAMMATIC_LAUNCHES = 90  # the architecture that has them


# Device files of the driver, of boards whose GPU is on no PCI bus, and the driver that Windows lends to its Linux.
SIGNS_OF_A_GPU = ("/dev/nvidia0", "/dev/nvhost-gpu", "/dev/nvgpu", "/usr/lib/wsl/lib/libcuda.so.1")
NO_GPU = "this machine has no GPU; a command that has models of the processor too runs them with --device cpu"


def shows_gpu() -> bool:
    """Return whether this machine has an NVIDIA GPU, as far as its buses and device files show: asks no driver."""
    if any(Path(sign).exists() for sign in SIGNS_OF_A_GPU):
        return True
    for device in Path("/sys/bus/pci/devices").glob("*"):
        try:
            vendor, kind = ((device / name).read_text() for name in ("vendor", "class"))
        except OSError:
            continue
        if vendor.startswith("0x10de") and kind.startswith("0x03"):  # NVIDIA's, a display controller
            return True
    return False


def count_gpus() -> int:
    """GPUs of this machine; makes no context on any. Raises `UsageError`: no GPU; or one that cannot be used, without
    CuPy or a driver."""
    try:
        import cupy
    except ImportError as error:
        if not shows_gpu():
            raise UsageError(NO_GPU) from None
        raise UsageError(
            f"a GPU needs CuPy, which cannot be imported ({error}); install it with pip install 'forktask[gpu]'"
        ) from None
    try:
        return cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        if not shows_gpu():
            raise UsageError(NO_GPU) from None
        raise UsageError(
            f"the GPU of this machine cannot be used: {error}; use --device cpu, or install NVIDIA's driver"
        ) from None


@cache
def default_gpu() -> Device:
    """The process's GPU, the first one: plans that share memory must be on the same device. Raises `UsageError`: what
    `count_gpus` refuses."""
    count_gpus()
    return Device()


def borrow_streams(device, owner: object, count: int) -> list:
    """Streams for one owner at a time; they are returned with it, and lent again."""
    streams = [device.spare_streams.pop() if device.spare_streams else device.stream() for _ in range(count)]
    weakref.finalize(owner, device.spare_streams.extend, streams).atexit = False
    return streams


class Device:
    """The first GPU, as executors need it. Calls return before the work is done unless they say that they wait."""

    name: str
    architecture: str  # such as "sm_90"
    costs_s: dict[str, float]  # what happens once: "context", "compilation"
    peak_flops_per_s: float  # of float32 multiply-adds, by the clock that the driver names; nan: unknown
    peak_bytes_per_s: float  # of its memory, likewise
    multiprocessors: int
    spare_streams: list  # of `borrow_streams`
    shares_memory: bool  # host and device may touch managed memory at the same time
    has_tf32: bool  # tensor cores that multiply in TF32
    has_pdl: bool  # a kernel can be launched before the one before it is done

    def __init__(self):
        start = time.perf_counter()
        import cupy
        from cupy_backends.cuda.api import driver, runtime

        self._runtime, self._driver = runtime, driver
        cupy.cuda.Device(0).use()
        runtime.free(0)  # creates the context
        self.costs_s = {"context": time.perf_counter() - start}
        properties = runtime.getDeviceProperties(0)
        self.name = properties["name"].decode()
        self.architecture = f"sm_{properties['major']}{properties['minor']}"
        self.multiprocessors = properties["multiProcessorCount"]
        clock_hz = 1e3 * runtime.deviceGetAttribute(13, 0)  # cudaDevAttrClockRate
        lanes = LANES_OF_MULTIPROCESSOR.get((properties["major"], properties["minor"]), math.nan)
        self.peak_flops_per_s = 2 * lanes * self.multiprocessors * clock_hz
        memory_hz, bits = 1e3 * runtime.deviceGetAttribute(36, 0), runtime.deviceGetAttribute(37, 0)  # twice a cycle
        self.peak_bytes_per_s = 2 * memory_hz * bits / 8 or math.nan
        number = properties["major"] * 10 + properties["minor"]
        self.has_tf32 = number >= launches.TENSOR_CORES
        self._launch_call = getattr(ctypes.CDLL("libcuda.so.1"), "cuLaunchKernelEx", None)
        self.has_pdl = number >= PROGRAMMATIC_LAUNCHES and self._launch_call is not None
        if number < launches.MINIMUM_ARCHITECTURE:
            raise UsageError(
                f"the GPU must be of architecture sm_{launches.MINIMUM_ARCHITECTURE} or newer, {self.name} is "
                f"{self.architecture}; use another GPU"
            )
        self._compile, self._event = cupy.RawModule, cupy.cuda.Event
        self._modules: dict[tuple[str, str], object] = {}
        self._functions: dict[str, int] = {}
        self._blas: Blas | None = None
        self.spare_streams = []
        self.shares_memory = bool(runtime.deviceGetAttribute(89, 0))  # cudaDevAttrConcurrentManagedAccess

    def prepare(self, symbol: str) -> None:
        """Compile and load a CUDA function now; else its first launch does.

        The first function of a file compiles all of that file; CuPy keeps the result on disk.
        """
        if symbol not in self._functions:
            start = time.perf_counter()
            name, _, products = symbol.partition("@")
            key = launches.file_of(name), products
            if key not in self._modules:
                self._modules[key] = self._compile(
                    code=launches.source(key[0], products=products), options=launches.COMPILE_OPTIONS, backend="nvrtc"
                )
            function = self._reserve("memory for kernels", lambda: self._modules[key].get_function(name))
            self._functions[symbol] = function.kernel.ptr
            self.costs_s["compilation"] = self.costs_s.get("compilation", 0.0) + time.perf_counter() - start

    def free_bytes(self) -> int:
        """Free bytes of device memory."""
        return self._runtime.memGetInfo()[0]

    def clock_hz(self) -> float | None:
        """Clock of the multiprocessors now; None without NVIDIA's management library (nvidia-ml-py)."""
        try:
            import pynvml
        except ImportError:
            return None
        try:
            pynvml.nvmlInit()
            board = self._runtime.deviceGetPCIBusId(0)
            handle = pynvml.nvmlDeviceGetHandleByPciBusId(board)
            return 1e6 * pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)
        except pynvml.NVMLError:
            return None

    def _reserve(self, what: str, allocate: Callable[[], Any]) -> Any:
        """Call what allocates; `MemoryError` where there is not enough."""
        try:
            return allocate()
        except (self._runtime.CUDARuntimeError, self._driver.CUDADriverError) as error:
            raise self._told(error, what) from None

    def _told(self, error, what: str) -> Exception:
        """An error of CUDA, or what users are told of it."""
        if error.status != OUT_OF_MEMORY:
            return error
        return MemoryError(f"{self.name} has no {what} left; use a smaller batch, or end what else uses the GPU")

    def allocate(self, num_bytes: int) -> int:
        """Address of device memory, aligned to 256 bytes, undefined content; `MemoryError` where there is none."""
        what = f"{format_bytes(num_bytes)} of its own memory"
        return self._reserve(what, lambda: self._runtime.malloc(max(num_bytes, 1)))

    def free(self, address: int) -> None:
        """Give memory back; waits for work that may use it."""
        self._runtime.free(address)

    def host_memory(self, num_bytes: int, kind: str) -> np.ndarray:
        """Bytes that the host can use: page-locked ("pinned"), or shared with the device ("managed"). They are given
        back with the last array that lies there.

        `MemoryError` where there are none.
        """
        if kind == "pinned":
            flags, what = self._runtime.hostAllocDefault, f"{format_bytes(num_bytes)} of page-locked memory of the host"
            address = self._reserve(what, lambda: self._runtime.hostAlloc(num_bytes, flags))
        else:
            what = f"{format_bytes(num_bytes)} of memory shared with the host"
            address = self._reserve(what, lambda: self._runtime.mallocManaged(num_bytes))
        memory = (ctypes.c_uint8 * num_bytes).from_address(address)
        free = self._runtime.freeHost if kind == "pinned" else self._runtime.free
        weakref.finalize(memory, free, address).atexit = False
        return np.frombuffer(memory, dtype=np.uint8)

    def stream(self):
        """A new stream, independent of all others, for good: `borrow_streams` makes no more than are used at once."""
        # cudaStreamNonBlocking: does not wait for the default stream
        return self._reserve("memory for a stream", lambda: self._runtime.streamCreateWithFlags(1))

    def event(self, timing: bool = False):
        """A new event, which is released with the last reference to it."""
        return self._event(disable_timing=not timing)  # destroyed with the last reference

    def record(self, event, stream) -> None:
        """The event happens when all work given to the stream so far is done."""
        self._runtime.eventRecord(event.ptr, stream)

    def wait(self, stream, event) -> None:
        """Work given to the stream from now on starts after the event, as last recorded; nothing if it never was."""
        self._runtime.streamWaitEvent(stream, event.ptr)

    def prepared_launch(self, symbol: str, tiles: int, shared_bytes: int, args: np.ndarray) -> tuple:
        """What `launch` takes, made once; `args` may change between launches."""
        self.prepare(symbol)
        pointer = ctypes.c_void_p(args.ctypes.data)  # the launch copies what the one parameter's pointer points to
        return self._functions[symbol], tiles, shared_bytes, ctypes.addressof(pointer), pointer, args

    def launch(self, prepared: tuple, rows: int, stream, early: bool = False) -> None:
        """Run a CUDA function of `launches` over tiles x rows CUDA blocks. Its arguments are copied now.

        `early`: where `has_pdl`; the stream's last work is a kernel, for which the function waits itself.
        """
        function, tiles, shared_bytes, address, *_ = prepared
        try:
            if early:
                sizes = (tiles, rows, 1), (launches.THREADS, 1, 1), shared_bytes
                config = np.array((*sizes, stream, PROGRAMMATIC.ctypes.data, 1), LAUNCH_CONFIG)
                pointers = map(ctypes.c_void_p, (config.ctypes.data, function, address, None))
                self._driver.check_status(self._launch_call(*pointers))
                return
            self._driver.launchKernel(
                function, tiles, rows, 1, launches.THREADS, 1, 1, shared_bytes, stream, address, 0
            )
        except self._driver.CUDADriverError as error:
            raise self._told(error, "memory for a launch") from None

    def prepared_product(self, product: Product, operands: Sequence[int], tf32: bool) -> tuple:
        """What `multiply` takes, made once. `operands`: addresses, by the numbers that matrices give."""
        library = self._blas_lt if product.epilogue else self._open_blas()
        return library.multiply, library.arguments(product, operands, tf32)

    def offers(self, product: Product, tf32: bool) -> bool:
        """Whether cuBLASLt has a product with its epilogue on this device."""
        return self._blas_lt.offers(product, tf32)

    def multiply(self, prepared: tuple, stream) -> None:
        """A matrix product by the device's library."""
        give, arguments = prepared
        give(arguments, stream)

    @property
    def num_workspaces(self) -> int:
        """Streams that have a workspace for products, of `WORKSPACE_BYTES`."""
        return 0 if self._blas is None else self._blas.num_workspaces

    def _open_blas(self) -> Blas:
        if self._blas is None:
            self._blas = Blas(self._library("libcublas"), self.allocate)
        return self._blas

    @cached_property
    def _blas_lt(self) -> BlasLt:
        return BlasLt(self._library("libcublasLt"), lambda stream: self._open_blas().prepare(stream)[1])

    @cached_property
    def has_blas_lt(self) -> bool:
        """Whether cuBLASLt can be loaded."""
        try:
            self._library("libcublasLt")
        except OSError:
            return False
        return True

    def _library(self, name: str) -> ctypes.CDLL:
        import cupy_backends.cuda.libs.cublas  # noqa: F401 (loads both libraries, wherever they are installed)

        major = self._runtime.runtimeGetVersion() // 1000  # that of CUDA is that of its libraries
        return ctypes.CDLL(f"{name}.so.{major}")

    def copy_to_device(self, address: int, array: np.ndarray, stream) -> None:
        """Copy a C-contiguous array; pageable memory is read before this returns, pinned memory at any time until the
        stream gets there."""
        self._runtime.memcpyAsync(address, array.ctypes.data, array.nbytes, 1, stream)

    def copy_to_host(self, array: np.ndarray, address: int, stream) -> None:
        """Copy to a C-contiguous array; with pageable memory this waits until the copy is done."""
        self._runtime.memcpyAsync(array.ctypes.data, address, array.nbytes, 2, stream)

    def fill(self, address: int, num_bytes: int, value: int, stream) -> None:
        """Set bytes."""
        self._runtime.memsetAsync(address, value, num_bytes, stream)

    def synchronize(self, stream=None) -> None:
        """Wait until all work of a stream is done; None: of the device."""
        if stream is None:
            self._runtime.deviceSynchronize()
        else:
            self._runtime.streamSynchronize(stream)

    def elapsed_s(self, start, stop) -> float:
        """Seconds between two recorded timing events, both of which have happened."""
        return self._runtime.eventElapsedTime(start.ptr, stop.ptr) * 1e-3

    def begin_capture(self, stream) -> None:
        """Record later work of `stream`, and of streams that wait for its events, in a graph instead of doing it."""
        self._runtime.streamBeginCapture(stream)

    def abandon_capture(self, stream) -> None:
        """End a capture in which something was refused: the stream, and all that joined it, can be used again."""
        with suppress(self._runtime.CUDARuntimeError):  # that the capture is invalid is known already
            graph = self._runtime.streamEndCapture(stream)
            self._runtime.graphDestroy(graph)

    def end_capture(self, stream):
        """The graph, ready to be launched, which is released with the last reference to it; `MemoryError` where there
        is no memory for it. All streams that took part must have joined `stream` by events."""
        graph = self._runtime.streamEndCapture(stream)
        what = "memory for a captured graph"
        try:
            address = self._reserve(what, lambda: self._runtime.graphInstantiate(graph))
        finally:
            self._runtime.graphDestroy(graph)
        result = CapturedGraph(address)
        # Not at exit, when the driver may be gone already.
        weakref.finalize(result, self._runtime.graphExecDestroy, address).atexit = False
        # Else the first launch takes the device's memory, within a run.
        self._reserve(what, lambda: self._runtime.graphUpload(address, stream))
        return result

    def launch_graph(self, graph, stream) -> None:
        """Run a captured graph."""
        self._runtime.graphLaunch(graph.address, stream)


class CapturedGraph:
    """A graph that CUDA has instantiated, by its address."""

    def __init__(self, address: int):
        self.address = address
