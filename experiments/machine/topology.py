"""Logical CPUs: their place, the caches that they share, and the order in which workers get them.

Functions that read files take `root`, the folder that stands for `/`.
"""

from __future__ import annotations

import os
from itertools import groupby
from pathlib import Path
from typing import Any

from ...cython_src.errors import UsageError
from ..tables.numbers import plural
from .proc import parsed, read_int, read_text

MOST_CPUS = 1 << 20
MASKS = ("core_cpus", "thread_siblings", "shared_cpu_map", "cpumap")  # files that hold hexadecimal digits, not a list
# What the kernel says of a CPU's speed, in its folder; and by how much a core of another kind is slower.
SPEEDS = ("cpu_capacity", "acpi_cppc/highest_perf", "cpufreq/cpuinfo_max_freq")
GAP = 1.5


def parse_cpu_list(text: str) -> list[int]:
    """Parse the kernel's list format: "0-2,5" is [0, 1, 2, 5]. Raises `ValueError` for another text."""
    cpus: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        span = range(int(first), int(last or first) + 1)
        if not 0 < len(span) <= MOST_CPUS:
            raise ValueError(part)
        cpus.extend(span)
    return cpus


def format_cpu_list(cpus) -> str:
    """Inverse of `parse_cpu_list`: [0, 1, 2, 5] is "0-2,5"."""
    parts: list[list[int]] = []
    for cpu in sorted(cpus):
        if parts and cpu == parts[-1][1] + 1:
            parts[-1][1] = cpu
        else:
            parts.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def _read_cpus(folder: Path, *names: str) -> list[int] | None:
    """Return the CPUs of the first file that holds some: a list, or a mask in groups of hexadecimal digits."""
    for name in names:
        if found := parsed(_parse_cpu_mask if name in MASKS else parse_cpu_list, read_text(folder / name)):
            return found
    return None


def _parse_cpu_mask(text: str) -> list[int]:
    mask = int(text.replace(",", ""), 16)
    return [cpu for cpu in range(mask.bit_length()) if mask >> cpu & 1]


def available_cpus() -> list[int]:
    """Return the logical CPUs that this process may run on, ascending."""
    return sorted(os.sched_getaffinity(0))


def core_counts(cpus=None, *, siblings: bool = False, root="/") -> tuple[int, ...]:
    """Return 1, 2, 4, ... and the number of physical cores of some CPUs, or of those that this process may use.

    With `siblings` the number of the CPUs comes last where some share a core.
    """
    cpus = available_cpus() if cpus is None else list(cpus)
    cores = len({c["core"] for c in read_topology(root, cpus)["cpus"] if c["cpu"] in cpus})
    counts = (*(1 << i for i in range((cores - 1).bit_length())), cores, *((len(cpus),) if siblings else ()))
    return tuple(dict.fromkeys(counts))


def read_topology(root="/", usable=()) -> dict:
    """Read the place of each online logical CPU; those that a process may run on, `usable`, are online.

    In a container `online` may count from 0 where the process's mask has the host's numbers.

    Returns
    -------
    dict
        "online": list of int; "cpus": list of {"cpu", "socket", "node", "core", "siblings", "kind", "capacity"},
        where "core" is the lowest logical CPU of the same physical core, "kind" that of its core (0: fastest) and
        "capacity" the relative speed of the kind (1024: fastest; None where not said, or where there is one kind).
        "cores", "sockets", "nodes": numbers of each; "threads_per_core": largest. "known": False if the kernel does
        not show which logical CPUs share a core; each then counts as a core of its own.
    """
    cpu_folder = Path(root, "sys/devices/system/cpu")
    online = sorted({*(_read_cpus(cpu_folder, "online") or ()), *usable}) or available_cpus()
    node_of = {}
    for folder in sorted(Path(root, "sys/devices/system/node").glob("node[0-9]*")):
        for cpu in _read_cpus(folder, "cpulist", "cpumap") or ():
            node_of[cpu] = parsed(int, folder.name[4:]) or 0
    kinds = _read_kinds(root, online)
    cpus = []
    known = True
    for cpu in online:
        topology = cpu_folder / f"cpu{cpu}" / "topology"
        siblings = _read_cpus(topology, "core_cpus_list", "thread_siblings_list", "core_cpus", "thread_siblings")
        if siblings is None or cpu not in siblings:
            known, siblings = False, [cpu]
        socket = read_int(topology / "physical_package_id")
        cpus.append(
            {
                "cpu": cpu,
                # Some Arm and virtual machines report -1 for an unknown package.
                "socket": socket if socket is not None and socket >= 0 else 0,
                "node": node_of.get(cpu, 0),
                "core": min(siblings),
                "siblings": siblings,
                **kinds[cpu],
            }
        )
    return {
        "known": known,
        "online": online,
        "cpus": cpus,
        "cores": len({c["core"] for c in cpus}),
        "sockets": len({c["socket"] for c in cpus}),
        "nodes": len({c["node"] for c in cpus}),
        "threads_per_core": max(len(c["siblings"]) for c in cpus),
    }


def _read_kinds(root, online: list[int]) -> dict[int, dict[str, int | None]]:
    """Return "kind" and "capacity" of each CPU: a kind ends at a gap of speed, and where Intel says its P cores end.

    Cores of one kind differ too, by a tenth or two, since some are chosen for a higher clock.
    """
    folder, intel = Path(root, "sys/devices/system/cpu"), Path(root, "sys/devices")
    for name in SPEEDS:
        speeds = [read_int(folder / f"cpu{cpu}" / name) or 0 for cpu in online]
        # Firmware may give all cores the same number in error; the kernel's own capacity is right also where it is one.
        if min(speeds) > 0 and (len(set(speeds)) > 1 or name == SPEEDS[0]):
            break
    else:
        speeds = [0] * len(online)
    fast, slow = _read_cpus(intel / "cpu_core", "cpus") or online, _read_cpus(intel / "cpu_atom", "cpus") or ()
    ranked = sorted((cpu in slow or cpu not in fast, -speed, cpu) for cpu, speed in zip(online, speeds, strict=True))
    found: dict[int, dict[str, int | None]] = {}
    kind, (atom, last, _) = 0, ranked[0]
    first, top = last, min(speed for _, speed, _ in ranked)
    for is_atom, speed, cpu in ranked:
        if is_atom != atom or last < GAP * speed:
            kind, first = kind + 1, speed
        atom, last = is_atom, speed
        found[cpu] = {"kind": kind, "capacity": round(1024 * first / top) if top else None}
    return found if kind else {cpu: {"kind": 0, "capacity": None} for cpu in online}


def cpu_order(n: int, cpus=None, *, root="/", oversubscribe: bool = False) -> list[int]:
    """Return logical CPUs for `n` workers, of some or of those that this process may use.

    Each physical core of all sockets gets one worker, then each SMT sibling. Faster cores come before slower ones, then
    sockets and NUMA nodes of a socket one after the other. With `oversubscribe` the order starts over.

    Raises
    ------
    UsageError
        If `n` is not positive, or exceeds the CPUs without `oversubscribe`.
    """
    cpus = available_cpus() if cpus is None else sorted(set(cpus))
    if n < 1:
        raise UsageError(f"the number of threads must be positive, got {n}; ask for 1 to {len(cpus)}")
    if n > len(cpus) and not oversubscribe:
        raise UsageError(
            f"the number of threads must not exceed the {plural(len(cpus), 'CPU')} this process may use, got {n}; "
            f"ask for fewer or pass --oversubscribe"
        )
    order = placement_order(read_topology(root, cpus), cpus)
    return [order[i % len(order)] for i in range(n)]


def placement_order(topology: dict, cpus) -> list[int]:
    """Return all of `cpus` in the order in which `cpu_order` gives them to workers."""
    place = {c["cpu"]: c for c in topology["cpus"]}
    taken: dict[int, int] = {}
    keys = {}
    for cpu in sorted(cpus):
        core = place[cpu]["core"]
        rank = taken[core] = taken.get(core, -1) + 1  # number of siblings in `cpus` before this one
        keys[cpu] = (rank, *(place[cpu][key] for key in ("kind", "socket", "node", "core")))
    return sorted(keys, key=keys.__getitem__)


def core_kinds(topology: dict, cpus) -> list[dict[str, Any]]:
    """Return runs of CPUs of one kind in the order in which workers get them: "kind", "cpus", and a "text".

    A board with four fast and four slow cores has two, "4 CPUs of capacity 1024 (4-7)" first; most machines have one.
    """
    place = {c["cpu"]: c for c in topology["cpus"]}
    found = []
    for kind, run in groupby(placement_order(topology, cpus), lambda cpu: place[cpu]["kind"]):
        group = list(run)
        capacity = place[group[0]]["capacity"]
        said = f"kind {kind + 1}" if capacity is None else f"capacity {capacity}"
        text = f"{plural(len(group), 'CPU')} of {said} ({format_cpu_list(group)})"
        found.append({"kind": kind, "cpus": group, "text": text})
    return found


def read_caches(root="/", cpu: int = 0) -> list[dict]:
    """Return the caches of one logical CPU: level, type, size_bytes, line_bytes, shared_by (logical CPUs)."""
    caches = []
    for index in sorted(Path(root, f"sys/devices/system/cpu/cpu{cpu}/cache").glob("index*")):
        level, size = read_int(index / "level"), parsed(_size_bytes, read_text(index / "size"))
        if level is None or size is None:
            continue
        caches.append(
            {
                "level": level,
                "type": read_text(index / "type"),
                "size_bytes": size,
                "line_bytes": read_int(index / "coherency_line_size"),
                "shared_by": _read_cpus(index, "shared_cpu_list", "shared_cpu_map") or [cpu],
            }
        )
    return caches


def last_level_cache_bytes(root="/", cpus=()) -> int:
    """Return the size of the distinct last-level caches of some CPUs together, 0 if caches are hidden."""
    seen: set[int] = set()
    sizes: dict[int, int] = {}
    for cpu in cpus:
        if cpu not in seen and (caches := read_caches(root, cpu)):
            last = max(caches, key=lambda c: c["level"])
            seen.update(last["shared_by"])
            sizes[last["level"]] = sizes.get(last["level"], 0) + last["size_bytes"]
    return sizes[max(sizes)] if sizes else 0


def _size_bytes(text: str) -> int:
    return int(text.rstrip("KMG")) * {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1], 1)
