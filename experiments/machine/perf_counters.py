"""Hardware counters of this process and the threads it starts, through Linux's `perf_event_open`.

Counters are opened before the threads that are to be counted: those inherit them. Where the kernel, the processor or a
virtual machine offers none, each reads None, and `error` says why.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import struct
from collections.abc import Mapping, Sequence
from fcntl import ioctl
from pathlib import Path

from ...cython_src.closing import Closing
from ...cython_src.errors import UsageError, did_you_mean
from .proc import read_fields

_SYSCALLS = {"x86_64": 298, "aarch64": 241}
_HARDWARE, _SOFTWARE, _CACHE, _RAW = 0, 1, 3, 4
_MISSES = 1 << 16
# Type and number of each event, from linux/perf_event.h; cache misses are those of the last level on common processors.
EVENTS = {"cycles": (_HARDWARE, 0), "instructions": (_HARDWARE, 1), "llc_misses": (_HARDWARE, 3)}
# Those that blocks are counted by, unless others are requested; Linux has no number of its own for L2.
BLOCK_EVENTS = ("instructions", "cycles", "l1_misses", "l2_misses", "llc_misses", "node_loads", "node_misses")
_FURTHER = {
    "l1_misses": (_CACHE, 0 | _MISSES),
    "node_loads": (_CACHE, 6),
    "node_misses": (_CACHE, 6 | _MISSES),
    "branch_misses": (_HARDWARE, 5),
    "task_clock_ns": (_SOFTWARE, 1),
    "page_faults": (_SOFTWARE, 2),
    "context_switches": (_SOFTWARE, 3),
    "cpu_migrations": (_SOFTWARE, 4),
}
# L2_RQSTS.MISS since Skylake; L2CacheReqStat of Zen: misses of both L1; L2D_CACHE_REFILL of ARM, which has no vendor.
_L2_MISSES = {"GenuineIntel": 0x3F24, "AuthenticAMD": 0x0964, None: 0x17}
_IN_KERNEL = (_FURTHER["context_switches"], _FURTHER["cpu_migrations"])
MOST_EVENTS = 8  # of a block
_ATTRIBUTE_BYTES = 128
NUMBERS = ("count", "enabled", "running")  # that a read gives
_TIMES = 1 | 2  # read_format: the times enabled and running stand behind the count
_DISABLED_AND_INHERITED = 1 << 0 | 1 << 1  # by new threads
_USER_ONLY = 1 << 5 | 1 << 6  # without the kernel and hypervisor
CLOSE_ON_EXEC = 8
_ENABLE, _DISABLE = 0x2400, 0x2401


def attribute(kind: int, config: int, flags: int = 0) -> bytes:
    """Return the `struct perf_event_attr` of an event."""
    flags |= 0 if (kind, config) in _IN_KERNEL else _USER_ONLY
    return struct.pack("IIQQQQQ", kind, _ATTRIBUTE_BYTES, config, 0, 0, _TIMES, flags).ljust(_ATTRIBUTE_BYTES, b"\0")


def block_events(names: Sequence[str] = ()) -> dict[str, tuple[int, int]]:
    """Return type and number of the events that blocks are counted by, `BLOCK_EVENTS` by default. Raises `UsageError`:
    a name that is neither known nor `r` and a processor's own number in hexadecimal digits; too many."""
    known = {**EVENTS, **_FURTHER}
    vendor = read_fields(Path("/proc/cpuinfo"), ":").get("vendor_id")
    if vendor in _L2_MISSES:
        known["l2_misses"] = (_RAW, _L2_MISSES[vendor])
    result = {}
    for name in map(str, names or (name for name in BLOCK_EVENTS if name in known)):
        if re.fullmatch("r[0-9a-f]{1,16}", name):
            result[name] = (_RAW, int(name[1:], 16))
        elif name not in known:
            raise UsageError(
                f"counters must be some of {', '.join(known)}, or r and a processor's own number such as r3f24, got "
                f"{name!r}{did_you_mean(name, known)}"
            )
        else:
            result[name] = known[name]
    if len(result) > MOST_EVENTS:
        raise UsageError(f"counters must be at most {MOST_EVENTS} events, got {len(result)}; leave some out")
    return result


class PerfCounters(Closing):
    """Counters of the calling thread and of all threads that are started later, in whatever program they run.

    `error` says why the first event that is missing cannot be counted; it is empty if all can.
    """

    def __init__(self, events: Mapping[str, tuple[int, int]] = EVENTS):
        self.error = ""
        self._files: dict[str, int] = {}
        self._names = tuple(events)
        number = _SYSCALLS.get(platform.machine())
        if number is None:
            self.error = f"not known how to ask for them on {platform.machine()}"
            return
        libc = ctypes.CDLL(None, use_errno=True)
        for name, (kind, config) in events.items():
            asked = attribute(kind, config, _DISABLED_AND_INHERITED)
            file = libc.syscall(number, asked, 0, -1, -1, CLOSE_ON_EXEC)
            if file < 0:
                self.error = self.error or os.strerror(ctypes.get_errno())
            else:
                self._files[name] = file

    @property
    def counted(self) -> list[str]:
        """Names of the events that can be counted."""
        return list(self._files)

    def start(self) -> None:
        """Go on counting."""
        for file in self._files.values():
            ioctl(file, _ENABLE, 0)

    def stop(self) -> None:
        """Count no further."""
        for file in self._files.values():
            ioctl(file, _DISABLE, 0)

    def read(self) -> dict[str, float | None]:
        """Return the counts so far; None for an event that cannot be counted.

        More events than the processor counts at once take turns: their counts are scaled up to the whole time.
        """
        result: dict[str, float | None] = dict.fromkeys(self._names)
        for name, file in self._files.items():
            count, enabled, running = struct.unpack("QQQ", os.read(file, 24))
            result[name] = count * enabled / running if running else (0.0 if not enabled else None)
        return result

    def close(self) -> None:
        """Give the counters back."""
        for file in self._files.values():
            os.close(file)
        self._files = {}
