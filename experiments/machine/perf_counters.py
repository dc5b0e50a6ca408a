"""Hardware counters of this process and the threads it starts, through Linux's `perf_event_open`.

Counters are opened before the threads that are to be counted: those inherit them. Where the kernel, the processor or a
virtual machine offers none, each reads None, and `error` says why.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Mapping
from fcntl import ioctl

_SYSCALLS = {"x86_64": 298, "aarch64": 241}
_HARDWARE = 0
# Type and number of each event, from linux/perf_event.h; cache misses are those of the last level on common processors.
EVENTS = {"cycles": (_HARDWARE, 0), "instructions": (_HARDWARE, 1), "llc_misses": (_HARDWARE, 3)}
_ATTRIBUTE_BYTES = 128
_TIMES = 1 | 2  # read_format: the times enabled and running stand behind the count
_FLAGS = 1 << 0 | 1 << 1 | 1 << 5 | 1 << 6  # disabled, inherited by new threads, without the kernel and hypervisor
_CLOSE_ON_EXEC = 8
_ENABLE, _DISABLE = 0x2400, 0x2401


class PerfCounters:
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
            attribute = ctypes.create_string_buffer(_ATTRIBUTE_BYTES)
            struct.pack_into("IIQQQQQ", attribute, 0, kind, _ATTRIBUTE_BYTES, config, 0, 0, _TIMES, _FLAGS)
            file = libc.syscall(number, attribute, 0, -1, -1, _CLOSE_ON_EXEC)
            if file < 0:
                self.error = self.error or os.strerror(ctypes.get_errno())
            else:
                self._files[name] = file

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

    def __enter__(self) -> PerfCounters:
        return self

    def __exit__(self, *_) -> None:
        self.close()
