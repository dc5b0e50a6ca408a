"""Is a persistent kernel worth writing? `python -m persistent COUNT`: ns that its parts take (persistent.cu), and of an
empty kernel of a captured graph, in a chain as the tasks of the program."""

import ctypes
import sys
from pathlib import Path

import numpy as np

from forktask.cython_src.gpu.device import default_gpu

REPEATS = 9
BLOCKS = 3  # CUDA blocks that are joined on each multiprocessor, which has room for them: 128 threads, few registers


def prepared(symbol, tiles, *args):
    """What `Device.launch` takes."""
    import cupy

    module = cupy.RawModule(code=Path(__file__).with_suffix(".cu").read_text(), backend="nvrtc")
    record = np.array(args, np.int64)
    pointer = ctypes.c_void_p(record.ctypes.data)
    return module.get_function(symbol).kernel.ptr, tiles, 0, ctypes.addressof(pointer), pointer, record


def measure(count):
    device = default_gpu()
    stream, size = device.stream(), 4 * (count + 1)
    flags, failed = (device.allocate(size) for _ in range(2))
    device.fill(failed, size, 0, stream)

    def report(what, launch):
        times = []
        for _ in range(REPEATS):
            device.fill(flags, size, 0, stream)
            start, stop = (device.event(timing=True) for _ in range(2))
            device.record(start, stream)
            launch()
            device.record(stop, stream)
            device.synchronize(stream)
            times.append(device.elapsed_s(start, stop))
        print(f"{what},{1e9 * np.median(times) / count:.0f}", flush=True)

    print("what,ns")
    each = device.multiprocessors
    for what, symbol, tiles in (
        ("hand-over between", "program", 2),
        ("join of", "join", BLOCKS * each),
        ("task of a program on", "program", each),
    ):
        kernel = prepared(symbol, tiles, flags, failed, count)
        report(f"{what} {tiles} CUDA blocks", lambda kernel=kernel: device.launch(kernel, 1, stream))
    empty = prepared("program", 1, flags, failed, 0)
    device.begin_capture(stream)
    for _ in range(count):
        device.launch(empty, 1, stream)
    graph = device.end_capture(stream)
    report("kernel of a captured graph", lambda: device.launch_graph(graph, stream))
    given_up = np.zeros(1, np.int32)
    device.copy_to_host(given_up, failed, stream)
    if given_up[0]:
        sys.exit("CUDA blocks waited in vain for others: the figures mean nothing")


if __name__ == "__main__":
    measure(int(sys.argv[1]))
