"""Opening a GPU: the sentences where there is none, and that CuPy still has what we call."""

import ctypes
import importlib
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from gpu.fake_gpu.device import FakeDevice

from forktask.cython_src.errors import UsageError
from forktask.cython_src.gpu import device as gpu_device
from forktask.cython_src.gpu import launches as gpu_launches
from forktask.cython_src.gpu.launches import ARGS_DTYPE
from forktask.cython_src.lowering.lower import lower
from forktask.cython_src.targets import bind

DAY = Path(__file__).resolve().parents[2] / "tools" / "gpu_day"


@pytest.fixture(autouse=True)
def no_cached_device():
    """The process's device is not found out before."""
    gpu_device.default_gpu.cache_clear()


def test_without_cupy_one_sentence(monkeypatch):
    """Check what a user without CuPy reads, also through `bind`: how to install it only where there is a GPU."""
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setattr(gpu_device, "shows_gpu", lambda: False)
    with pytest.raises(UsageError, match=r"^this machine has no GPU; .*--device cpu$"):
        gpu_device.count_gpus()
    monkeypatch.setattr(gpu_device, "shows_gpu", lambda: True)
    with pytest.raises(UsageError, match=r"needs CuPy, which cannot be imported .*pip install 'forktask\[gpu\]'"):
        bind(lower("lenet5", batch=2), target="gpu")


@pytest.mark.cupy
def test_without_a_gpu_one_sentence():
    """Check what a user with CuPy reads in a process that sees no GPU, on a machine with one and without."""
    code = "from forktask.cython_src.gpu.device import default_gpu, shows_gpu; print(shows_gpu()); default_gpu()"
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, env=environment)
    there = done.stdout.split() == ["True"]
    text = "UsageError: the GPU of this machine cannot be used: .*--device cpu" if there else "this machine has no GPU"
    assert re.search(text, done.stderr.splitlines()[-1])


@pytest.mark.cupy
def test_cupy_has_what_the_device_calls():
    """Check each call of CuPy's runtime and driver in Device against their signatures."""
    from cupy.cuda import Event
    from cupy_backends.cuda.api import driver, runtime

    assert "disable_timing" in inspect.signature(Event).parameters and "Event.ptr" in Event.__doc__
    text = inspect.getsource(gpu_device.Device)
    calls = re.findall(r"_(runtime|driver)\.(\w+)\(([^()]*(?:\([^()]*\)[^()]*)*)\)", text)
    assert calls and len(calls) == len(re.findall(r"_(?:runtime|driver)\.\w+\(", text))
    for module, name, arguments in calls:
        function = getattr({"runtime": runtime, "driver": driver}[module], name)
        signature = function.__doc__.split("\n")[0]
        wanted = [p for p in re.search(r"\((.*)\)", signature).group(1).split(",") if p.strip()]
        given = [a for a in re.sub(r"\([^()]*\)", "", arguments).split(",") if a.strip()]
        optional = sum("=" in p for p in wanted)
        assert len(wanted) - optional <= len(given) <= len(wanted), f"{name}({arguments}) against {signature}"
    for function in ("mallocManaged", "hostAlloc", "malloc", "streamCreateWithFlags", "streamEndCapture"):
        assert "-> intptr_t" in getattr(runtime, function).__doc__


def test_memory_that_a_gpu_refuses_is_one_sentence():
    """Check what users read where CUDA says that memory is out, and that other errors of CUDA stay what they are."""

    class CudaError(Exception):
        status = gpu_device.OUT_OF_MEMORY

    class Refusing:
        """A runtime or a driver none of whose calls succeeds but the end of a capture."""

        CUDARuntimeError = CUDADriverError = CudaError
        hostAllocDefault = 0

        def __getattr__(self, name):
            def call(*arguments):
                if name not in ("streamEndCapture", "graphDestroy"):
                    raise CudaError

            return call

    device = object.__new__(gpu_device.Device)
    device.name, device._runtime, device._driver = "board", Refusing(), Refusing()
    device._functions, device._modules = {"spin": 0}, {(gpu_launches.file_of("loss_sum"), ""): Refusing()}
    spin = device.prepared_launch("spin", 1, 0, np.zeros((), ARGS_DTYPE))
    for call, what in (
        (lambda: device.allocate(3 << 29), r"1\.5 GiB of its own memory"),
        (lambda: device.host_memory(3 << 29, "pinned"), r"1\.5 GiB of page-locked memory of the host"),
        (lambda: device.host_memory(3 << 29, "managed"), r"1\.5 GiB of memory shared with the host"),
        (lambda: device.end_capture(0), "memory for a captured graph"),
        (lambda: device.stream(), "memory for a stream"),
        (lambda: device.prepare("loss_sum"), "memory for kernels"),
        (lambda: device.launch(spin, 1, 0), "memory for a launch"),
    ):
        with pytest.raises(MemoryError, match=rf"board has no {what} left; use a smaller batch"):
            call()
    CudaError.status = 700  # an illegal address
    for call in (lambda: device.allocate(1), lambda: device.launch(spin, 1, 0)):
        with pytest.raises(CudaError):
            call()


def test_an_early_launch_gets_what_the_driver_takes():
    """Check what lies where in the structures of cuLaunchKernelEx, whose status is looked at."""
    device, seen = object.__new__(gpu_device.Device), []
    device._driver = SimpleNamespace(CUDADriverError=OSError, check_status=seen.append)
    device._functions = {"spin": 4242}

    def call(config, function, arguments, extra):
        words = np.frombuffer(ctypes.string_at(config.value, 56), np.uint32)
        stream, attributes = words[8:12].view(np.uint64).tolist()
        seen.extend((words[:7].tolist(), stream, int(words[12]), ctypes.string_at(attributes, 72), function.value))
        seen.extend((ctypes.c_uint64.from_address(arguments.value).value, extra.value))
        return 7

    device._launch_call, args = call, np.zeros((), ARGS_DTYPE)
    device.launch(device.prepared_launch("spin", 5, 64, args), 3, 99, early=True)
    attribute = np.array([6, 0, 1] + 15 * [0], np.int32).tobytes()
    assert seen == [[5, 3, 1, 128, 1, 1, 64], 99, 1, attribute, 4242, args.ctypes.data, None, 7]


def test_the_day_on_a_gpu_compiles_each_file_in_each_arithmetic(monkeypatch, capsys):
    """Check what tools/gpu_day.sh compiles ahead."""
    monkeypatch.syspath_prepend(DAY)
    importlib.import_module("steps").files()
    listed = capsys.readouterr().out.split()
    assert {"kernels/linear/linear.cu", "kernels/linear/linear.cu@tf32"} <= set(listed)
    assert {line.partition("@")[0] for line in listed} == set(gpu_launches.SOURCE_FILES)


def test_parts_of_a_persistent_kernel(monkeypatch, capsys):
    """Check what tools/gpu_day/persistent.py launches, how often, and what it prints; its kernels do not run here."""
    monkeypatch.syspath_prepend(DAY)
    persistent, device = importlib.import_module("persistent"), FakeDevice(execute=False)
    monkeypatch.setattr(persistent, "default_gpu", lambda: device)
    monkeypatch.setattr(persistent, "prepared", lambda symbol, tiles, *args: (symbol, tiles, 0, np.array(args)))
    persistent.measure(5)
    head, *lines = capsys.readouterr().out.splitlines()
    assert head == "what,ns" and [float(line.split(",")[1]) > 0 for line in lines] == [True] * 4
    symbols = [operation.label[1] for operation in device.log if operation.label[0] == "launch"]
    assert [symbols.count(name) / persistent.REPEATS for name in ("join", "program")] == [1, 2 + 5]
