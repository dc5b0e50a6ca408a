"""What CUDA functions move and multiply against what they must, counted as the emulation runs some of their CUDA
blocks: `python -P tests/gpu/fake_gpu -m gpu.fake_gpu.traffic BATCH NETWORK ...` prints a CSV.

Moved are sectors of 32 bytes that a CUDA block reads or writes, each once a block, as if its multiprocessor's cache
kept them. What must be moved is each region of a loop once. Products are those of whole tiles, padding included; those
of attention are not counted. All products are ours: what cuBLAS does is not seen. Serial reads are those of the thread
with the most, of another sector than its last one, summed over the launches of a row: the most that can wait for one
another (unrolled loops, and copies to shared memory, have several under way).
"""

import csv
import ctypes
import math
import mmap
import re
import sys
from functools import cache
from pathlib import Path

import numpy as np
from builds import built
from gpu.fake_gpu import emulator
from gpu.fake_gpu.device import FakeDevice
from gpu.nvrtc import compile_for

from forktask.cython_src.gpu import device as gpu_device
from forktask.cython_src.gpu import launches
from forktask.experiments.subjects import models
from forktask.experiments.subjects.subject import build

SECTOR_BYTES = 32
MEMORY_BYTES = 16 << 30
GROUPS = 12  # of CUDA blocks that run of each launch
REGISTERS, SHARED_BYTES, MOST_BLOCKS = 65536, 227 << 10, 16  # of a multiprocessor of sm_90
HEAD = "network,functions,loops,cuda_blocks,serial_reads,MB,must_MB,GFLOP,must_GFLOP,registers,spilled,"
HEAD += "shared_bytes,resident"


@cache
def library():
    """The emulated kernels, whose accesses to memory are counted."""
    source = launches.source(*launches.SOURCE_FILES)
    command = ["g++", "-std=c++17", "-O2", "-fPIC", "-fsanitize=thread", "--param", "tsan-instrument-func-entry-exit=0"]
    command += ["-Wno-unknown-pragmas", "-include", Path(__file__).with_name("traffic.h")]
    compiled = built("traffic.o", [*command, "-c", "-x", "c++", "-"], source)
    return ctypes.PyDLL(str(built("traffic.so", ["g++", "-shared", compiled])))


@cache
def resources(file: str) -> dict[str, tuple[int, int]]:
    """Registers, and bytes that are spilled, of the CUDA functions of a file on sm_90."""
    status, log, _ = compile_for(file, "sm_90")
    if status:
        raise RuntimeError(log)
    found = re.findall(r"entry function '(\w+)'.*?(\d+) bytes spill stores.*?Used (\d+) registers", log, re.S)
    return {name: (int(registers), int(spilled)) for name, spilled, registers in found}


class CountingDevice(FakeDevice):
    """Runs some CUDA blocks of each launch, at once, and counts. Its memory is one piece, mostly never touched."""

    def __init__(self):
        super().__init__(memory_bytes=MEMORY_BYTES)
        self.memory = np.frombuffer(mmap.mmap(-1, MEMORY_BYTES), np.uint8)
        self.taken = 0
        self.counted = []  # moved bytes, numbers of operations, CUDA blocks, reads of a thread
        self._seen = [np.frombuffer(mmap.mmap(-1, MEMORY_BYTES // SECTOR_BYTES * 4), np.uint32) for _ in range(2)]
        addresses = [array.ctypes.data for array in (self.memory, *self._seen)]
        library().watch(*map(ctypes.c_size_t, (addresses[0], MEMORY_BYTES, *addresses[1:])))

    def allocate(self, num_bytes):
        address = self.memory.ctypes.data + self.taken
        self.taken += -(-num_bytes // 256) * 256
        return address

    def free(self, address):
        pass

    def launch(self, prepared, rows, stream, early=False):
        symbol, tiles, shared_bytes, args = prepared
        counts = np.zeros(5, np.uint64)
        parts = math.gcd(tiles, max(1, int(args["parts"])))  # 0: of several loops; threads may be parts, too
        numbers = map(ctypes.c_uint, (tiles, rows, shared_bytes, parts, GROUPS))
        pointers = (ctypes.c_void_p(array.ctypes.data) for array in (args, counts))
        status = library().count(getattr(library(), symbol), next(pointers), *numbers, next(pointers))
        if status:
            raise RuntimeError(f"{symbol}: {emulator.STATUS[status]}")
        read, written, copied, taken, serial = counts.tolist()
        share_of_all = tiles * rows / (taken * parts)
        tile = re.search(r"_(\d+)x(\d+)$", symbol)
        height, width = (16 * int(tile[1]), 8 * int(tile[2])) if tile else (0, 1)
        operations = 2 * copied / (height + width) * height * width
        moved = SECTOR_BYTES * (read + written) * share_of_all
        self.counted.append((moved, operations * share_of_all, tiles * rows, serial))


def rows_of(network: str, batch: int):
    """Rows of the table, the largest first."""
    device = CountingDevice()
    gpu_device.default_gpu = lambda: device
    spec = models.runnable("gpu_stream:products=own")
    job = {"model": spec, "threads": 1, "cpus": None, "seed": 1}
    bound = build({**job, "plan": {"network": network, "batch": batch, "conv": "direct"}}, spec)
    bound.acquire_all()
    device.synchronize()
    rows = {}
    for numbers in bound.groups:
        device.counted.clear()
        bound.launch(numbers, stream=None, replay=0)
        moved, operations, blocks, serial = np.sum(device.counted, axis=0)
        loops = [bound.plan.loops[number] for number in numbers]
        least, flops = sum(map(bound.plan.least_bytes, loops)), sum(loop.flops for loop in loops)
        own = len(loops), blocks, serial, 1e-6 * moved, 1e-6 * least, 1e-9 * operations, 1e-9 * flops
        key = bound.launches_for(numbers)
        name = " + ".join(how.symbol for how in key), max(how.shared_bytes for how in key)
        rows[name] = np.add(rows.get(name, 0), own)
    for (functions, shared_bytes), sums in sorted(rows.items(), key=lambda row: -row[1][3]):
        registers, spilled = zip(
            *(resources(launches.file_of(one))[one] for one in functions.split(" + ")), strict=True
        )
        by_registers = REGISTERS // (-(-max(registers) // 8) * 8 * launches.THREADS)
        resident = min(MOST_BLOCKS, by_registers, SHARED_BYTES // (shared_bytes + 1024))
        yield network, functions, *(f"{n:.6g}" for n in sums), max(registers), sum(spilled), shared_bytes, resident


if __name__ == "__main__":
    print(HEAD)
    for name in sys.argv[2:]:
        csv.writer(sys.stdout, lineterminator="\n").writerows(rows_of(name, int(sys.argv[1])))
