"""Resident memory of a process."""

from __future__ import annotations

from pathlib import Path

from ...cython_src.errors import UsageError
from ..machine.disturbance import read_memory
from ..machine.proc import read_fields


def resident_bytes(field: str = "VmRSS") -> int:
    """Return the resident memory of this process. Raises `UsageError`: the system does not show it."""
    try:
        return 1024 * int(read_fields(Path("/proc/self/status"), ":")[field].split()[0])
    except (LookupError, ValueError):
        raise UsageError(f"measuring memory needs {field} in /proc/self/status, which this system has not") from None


def peak_resident_bytes() -> int:
    """Return the most memory that was resident in this process so far; raises like `resident_bytes`.

    The figure of `getrusage` would not do: a process inherits it from the one that started it.
    """
    return resident_bytes("VmHWM")


def own_and_free_bytes() -> int | None:
    """Return the bytes that this process holds or could get: None where the machine does not say what is free."""
    memory = read_memory()
    free, limit = memory["available_bytes"], memory["limit_bytes"]
    # What is resident includes files, which count as free as well.
    return None if free is None else min(filter(None, (free + resident_bytes(), limit)))
