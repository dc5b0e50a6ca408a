"""Limits of the container, free memory, and disturbance of a measurement by other programs."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from .heat import count_throttles, is_throttled
from .proc import read_fields, read_int, read_text

TICK_US = 1_000_000 // os.sysconf("SC_CLK_TCK")


def cgroup_folders(root="/") -> list[Path]:
    """Return folders that limit this process's CPU time, own group first, then its parents, of both cgroup versions.

    A container often shows its own group as the root of the file system while /proc/self/cgroup still gives
    the host's path: folders that do not exist are skipped and the mount point always looked at.
    """
    base = Path(root, "sys/fs/cgroup")
    folders = []
    for line in (read_text(Path(root, "proc/self/cgroup")) or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            mounts = [base, base / "unified"]
        elif "cpu" in controllers.split(","):
            mounts = [base / "cpu", base / "cpu,cpuacct", base / "cpuacct,cpu"]
        else:
            continue
        for mount in mounts:
            folder = mount / path.strip("/")
            while True:
                if folder.is_dir() and folder not in folders:
                    folders.append(folder)
                if folder == mount:
                    break
                folder = folder.parent
    return folders


def read_quota(root="/") -> float | None:
    """Return the CPUs' worth of time that the container may use, the tightest of all levels; None: no limit."""
    quotas = []
    for folder in cgroup_folders(root):
        text = read_text(folder / "cpu.max")
        if text and not text.startswith("max"):
            quota, period = text.split()
            quotas.append(int(quota) / int(period))
        quota, period = read_int(folder / "cpu.cfs_quota_us"), read_int(folder / "cpu.cfs_period_us")
        if quota and quota > 0 and period:
            quotas.append(quota / period)
    return min(quotas) if quotas else None


def read_memory(root="/") -> dict:
    """Return the machine's total and available memory and its swap space, in bytes."""
    fields = read_fields(Path(root, "proc/meminfo"), ":")
    sizes = {name: int(value.split()[0]) * 1024 for name, value in fields.items() if value}
    return {
        "total_bytes": sizes.get("MemTotal"),
        "available_bytes": sizes.get("MemAvailable"),
        "swap_bytes": sizes.get("SwapTotal"),
        "swap_free_bytes": sizes.get("SwapFree"),
    }


def oom_kills(root="/") -> int:
    """Return how many processes the kernel has killed for lack of memory so far: in this control group, else in all."""
    paths = [*(folder / "memory.events" for folder in cgroup_folders(root)), Path(root, "proc/vmstat")]
    counts = [read_fields(path, " ").get("oom_kill", "") for path in paths]
    return sum(int(count) for count in counts if count.isdecimal())


def read_pressure(root="/") -> dict | None:
    """Read the line `some` of /proc/pressure/cpu: {"avg10": %, ..., "total": us}; None if the kernel has none."""
    some = read_fields(Path(root, "proc/pressure/cpu"), " ").get("some")
    return {key: float(value) for key, value in (field.split("=") for field in some.split())} if some else None


def _ticks(root="/") -> tuple[int | None, int | None]:
    """Return the ticks that all CPUs have worked, and those that the hypervisor gave to others."""
    ticks = [int(field) for field in read_fields(Path(root, "proc/stat"), " ").get("cpu", "").split()]
    if len(ticks) < 8:
        return None, None
    user, nice, system, _, _, interrupts, soft, steal = ticks[:8]
    return user + nice + system + interrupts + soft, steal


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
                if name in fields:
                    total = (total or 0) + int(fields[name]) // unit
        return total
