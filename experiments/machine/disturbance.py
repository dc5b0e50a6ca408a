"""Limits of the container, free and resident memory, temperature and clocks of the processor, and disturbance of a
measurement by other programs, heat or low voltage.

Functions take `root`, the folder that stands for `/`.
"""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterable
from pathlib import Path

from ...cython_src.errors import UsageError
from .proc import parsed, read_fields, read_int, read_text

TICK_US = 1_000_000 // os.sysconf("SC_CLK_TCK")
# Integer additions per cycle. Whole cores of x86-64 do 3.9 to 5.6, those that share with another guest 2.0 to 2.8: the
# middle of the gap.
HALF_CORE = 3.3
PROCESSOR_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal")
# Bits of a Raspberry Pi's firmware: low voltage, capped frequency, throttled, soft limit of temperature, each now.
PI_SLOWED = 0b1111


def cgroup_folders(root="/", controller: str = "cpu") -> list[Path]:
    """Return folders that limit what this process gets of CPU time, or of another controller: own group first, then its
    parents, of both cgroup versions.

    A container often shows its own group as the root of the file system while /proc/self/cgroup still gives
    the host's path: folders that do not exist are skipped and the mount point always looked at.
    """
    base = Path(root, "sys/fs/cgroup")
    folders = []
    for line in (read_text(Path(root, "proc/self/cgroup")) or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, separator, path = rest.partition(":")
        if separator and controllers == "":
            mounts = [base, base / "unified"]
        elif controller in controllers.split(","):
            # One name is often a link to the other: the same folder would count twice.
            mounts = [m for m in (base / controllers, base / controller) if m.is_dir()][:1]
        else:
            continue
        for mount in mounts:
            own = mount / path.strip("/")
            inside = (folder for folder in (own, *own.parents) if folder.is_relative_to(mount))
            folders += [folder for folder in inside if folder.is_dir() and folder not in folders]
    return folders


def read_quota(root="/") -> float | None:
    """Return the CPUs' worth of time that the container may use, the tightest of all levels; None: no limit."""
    quotas = []
    for folder in cgroup_folders(root):
        share = parsed(lambda text: int(text.split()[0]) / int(text.split()[1]), read_text(folder / "cpu.max"))
        quota, period = read_int(folder / "cpu.cfs_quota_us"), read_int(folder / "cpu.cfs_period_us")
        if quota and quota > 0 and period:
            share = quota / period
        quotas += [] if share is None else [share]
    return min(quotas) if quotas else None


def read_memory(root="/") -> dict:
    """Return the machine's memory, the tightest limit of this process's control groups, what is free under all limits,
    and likewise swap space, in bytes: total_bytes, limit_bytes, available_bytes, swap_bytes, swap_free_bytes.

    Files in a group's page cache count as free: the kernel drops them before it kills anybody.
    """
    fields = read_fields(Path(root, "proc/meminfo"), ":")
    total, available, swap, swap_free = (
        parsed(lambda text: int(text.split()[0]) * 1024, fields.get(name))
        for name in ("MemTotal", "MemAvailable", "SwapTotal", "SwapFree")
    )
    limits, free = [], [] if available is None else [available]
    swaps, swaps_free = ([] if value is None else [value] for value in (swap, swap_free))
    for folder in cgroup_folders(root, "memory"):
        stat = read_fields(folder / "memory.stat", " ")
        # cgroup v2, which slows a group above `high`; v1, where sums over a group's children have names of their own
        for limit_file, used_file, sums in (
            ("memory.max", "memory.current", ""),
            ("memory.high", "memory.current", ""),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
        ):
            limit = read_int(folder / limit_file)
            if limit is not None and (total is None or limit < total):
                files = (parsed(int, stat.get(f"{sums}{name}_file")) or 0 for name in ("active", "inactive"))
                used = max((read_int(folder / used_file) or 0) - sum(files), 0)
                limits.append(limit)
                free.append(max(limit - used, 0))
        limit = read_int(folder / "memory.swap.max")
        if limit is not None and swap is not None:
            swaps.append(limit)
            swaps_free.append(max(limit - (read_int(folder / "memory.swap.current") or 0), 0))
    return {
        "total_bytes": total,
        "limit_bytes": min(limits, default=None),
        "available_bytes": min(free, default=None),
        "swap_bytes": min(swaps, default=None),
        "swap_free_bytes": min(swaps_free, default=None),
    }


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


def oom_kills(root="/") -> int:
    """Return how many processes the kernel has killed for lack of memory so far: in this control group, else in all."""
    paths = [*(folder / "memory.events" for folder in cgroup_folders(root, "memory")), Path(root, "proc/vmstat")]
    counts = [read_fields(path, " ").get("oom_kill", "") for path in paths]
    return sum(int(count) for count in counts if count.isdecimal())


def read_pressure(root="/") -> dict | None:
    """Read the line `some` of /proc/pressure/cpu: {"avg10": %, ..., "total": us}; None if the kernel has none."""
    some = read_fields(Path(root, "proc/pressure/cpu"), " ").get("some")
    result = parsed(lambda text: {key: float(value) for key, value in (x.split("=") for x in text.split())}, some)
    return result if result and result.keys() >= {"avg10", "total"} else None


def _ticks(root="/") -> tuple[int | None, int | None]:
    """Return the ticks that all CPUs have worked, and those that the hypervisor gave to others."""
    line = read_fields(Path(root, "proc/stat"), " ").get("cpu")
    ticks = parsed(lambda text: [int(field) for field in text.split()], line) or []
    if len(ticks) < 8:
        return None, None
    user, nice, system, _, _, interrupts, soft, steal = ticks[:8]
    return user + nice + system + interrupts + soft, steal


def core_state(additions: Iterable[float]) -> str:
    """Return "whole" if all of some CPUs are whole cores by their integer additions per cycle, "half" if one is not,
    "unknown" without a CPU or its cycles."""
    least = min(additions, default=0.0)
    return "whole" if least > HALF_CORE else "half" if least > 0 else "unknown"


class Disturbance:
    """Difference of the machine's disturbance counters over a measured interval.

    The six numbers, None where the machine hides one:
    "pressure_some_us": time in which some runnable thread of the machine waited for a CPU (own threads
    included);
    "others_us": CPU time of all but this process. The kernel counts the whole in ticks, so that it errs by some ticks,
    either way; over intervals that follow each other these errors cancel;
    "steal_ticks": time the hypervisor gave to others, in clock ticks (usually 1/100 s), summed over CPUs;
    "nonvoluntary_switches": times a thread of this process was pushed off its CPU;
    "throttled_us": time this container stood still for its quota;
    "thermal_throttles": times that heat or low voltage slowed a CPU, as the kernel counts them, and in each of the two
    readings one more if a CPU was slowed at that moment.

    One reading costs about 0.1 ms: take it outside the timed interval.

    Examples
    --------
    >>> disturbance = Disturbance()
    >>> before = disturbance.read()
    >>> sorted(disturbance.since(before))
    ['nonvoluntary_switches', 'others_us', 'pressure_some_us', 'steal_ticks', 'thermal_throttles', 'throttled_us']
    """

    FIELDS = (
        "pressure_some_us",
        "others_us",
        "steal_ticks",
        "nonvoluntary_switches",
        "throttled_us",
        "thermal_throttles",
    )

    def __init__(self, root="/"):
        self.root = root
        self.throttle_files = [f / "cpu.stat" for f in cgroup_folders(root) if (f / "cpu.stat").is_file()]

    def read(self) -> dict:
        """Return the counters now, as a dict of the six fields, and "slowed": whether heat slows a CPU right now."""
        pressure, own = read_pressure(self.root), resource.getrusage(resource.RUSAGE_SELF)
        worked, stolen = _ticks(self.root)
        own_us = round(1e6 * (own.ru_utime + own.ru_stime))
        return {
            "pressure_some_us": None if pressure is None else int(pressure["total"]),
            "others_us": None if worked is None else worked * TICK_US - own_us,
            "steal_ticks": stolen,
            "nonvoluntary_switches": own.ru_nivcsw,
            "throttled_us": self._throttled_us(),
            "thermal_throttles": count_throttles(self.root),
            "slowed": is_throttled(self.root),
        }

    def since(self, before: dict) -> dict:
        """Return the counts since `before`, an earlier result of `read`."""
        now = self.read()
        counts = {
            key: None if now[key] is None or before[key] is None else now[key] - before[key] for key in self.FIELDS
        }
        slowed = [reading["slowed"] for reading in (before, now) if reading["slowed"] is not None]
        if slowed:
            counts["thermal_throttles"] = (counts["thermal_throttles"] or 0) + sum(slowed)
        return counts

    def _throttled_us(self) -> int | None:
        total = None
        for path in self.throttle_files:
            fields = read_fields(path, " ")
            for name, unit in (("throttled_usec", 1), ("throttled_time", 1000)):  # cgroup v2; v1, in ns
                value = parsed(int, fields.get(name))
                if value is not None:
                    total = (total or 0) + value // unit
        return total


def read_temperature_c(root="/") -> float | None:
    """Return the temperature of the processor's hottest sensor, in degrees Celsius; None if the machine hides it."""
    result = []
    for zone in Path(root, "sys/class/thermal").glob("thermal_zone*"):
        if re.search(r"cpu|pkg|soc|core|tj", (read_text(zone / "type") or "").lower()):
            result.append(read_int(zone / "temp"))
    for folder in Path(root, "sys/class/hwmon").glob("hwmon*"):
        if read_text(folder / "name") in PROCESSOR_SENSORS:
            result += [read_int(path) for path in folder.glob("temp*_input")]
    # A sensor that is switched off answers with an error or with a temperature far below zero.
    known = [value for value in result if value is not None and value > -50_000]
    return max(known) / 1000 if known else None


def read_clocks_hz(cpus: Iterable[int], root="/") -> dict[str, float]:
    """Return the clock of some CPUs at this moment, without those whose clock the machine hides."""
    files = {cpu: Path(root, f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_cur_freq") for cpu in cpus}
    return {str(cpu): 1e3 * khz for cpu, path in files.items() if (khz := read_int(path))}


def count_throttles(root="/") -> int | None:
    """Return how often heat has throttled the CPUs so far, summed over CPUs and packages; None where nothing counts
    them."""
    files = Path(root, "sys/devices/system/cpu").glob("cpu[0-9]*/thermal_throttle/*_throttle_count")
    counts = [count for count in map(read_int, files) if count is not None]
    return sum(counts) if counts else None


def is_throttled(root="/") -> bool | None:
    """Return whether a cooling device or the firmware slows the CPUs at this moment; None where neither tells."""
    result = []
    for device in Path(root, "sys/class/thermal").glob("cooling_device*"):
        if (read_text(device / "type") or "").startswith(("thermal-cpufreq", "cpufreq", "Processor")):
            state = read_int(device / "cur_state")
            result += [] if state is None else [state > 0]
    for path in Path(root, "sys/devices/platform").glob("soc*/soc*firmware/get_throttled"):
        bits = parsed(lambda text: int(text, 16), read_text(path))
        result += [] if bits is None else [bool(bits & PI_SLOWED)]
    return any(result) if result else None
