"""Logical CPUs: their place, the caches that they share, and the order in which workers get them.

Functions that read files take `root`, the folder that stands for `/`.
"""

from __future__ import annotations

import os
from itertools import groupby
from pathlib import Path

from ...cython_src.errors import UsageError
from ..tables.numbers import plural
from .proc import read_int, read_text


def parse_cpu_list(text: str) -> list[int]:
    """Parse the kernel's list format: "0-2,5" is [0, 1, 2, 5]."""
    cpus = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cpus.extend(range(int(first), int(last or first) + 1))
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


def available_cpus() -> list[int]:
    """Return the logical CPUs that this process may run on, ascending."""
    return sorted(os.sched_getaffinity(0))


def core_counts(available: int | None = None) -> tuple[int, ...]:
    """Return 1, 2, 4, ... and the number of CPUs that this process may use."""
    if available is None:
        available = len(os.sched_getaffinity(0))
    return tuple(dict.fromkeys((*(1 << i for i in range((available - 1).bit_length())), available)))


def read_topology(root="/") -> dict:
    """Read the place of each online logical CPU.

    Returns
    -------
    dict
        "online": list of int; "cpus": list of {"cpu", "socket", "node", "core", "siblings", "capacity"},
        where "core" is the lowest logical CPU of the same physical core and "capacity" the kernel's relative
        speed (1024: fastest; None where not said). "cores", "sockets", "nodes": numbers of each;
        "threads_per_core": largest. "known": False if the kernel does not show which logical CPUs share a
        core; each then counts as a core of its own.
    """
    cpu_folder = Path(root, "sys/devices/system/cpu")
    text = read_text(cpu_folder / "online")
    online = parse_cpu_list(text) if text else available_cpus()
    node_of = {}
    for folder in sorted(Path(root, "sys/devices/system/node").glob("node[0-9]*")):
        for cpu in parse_cpu_list(read_text(folder / "cpulist") or ""):
            node_of[cpu] = int(folder.name[4:])
    cpus = []
    known = True
    for cpu in online:
        topology = cpu_folder / f"cpu{cpu}" / "topology"
        siblings = read_text(topology / "core_cpus_list") or read_text(topology / "thread_siblings_list")
        known = known and siblings is not None
        siblings = parse_cpu_list(siblings) if siblings else [cpu]
        socket = read_int(topology / "physical_package_id")
        cpus.append(
            {
                "cpu": cpu,
                # Some Arm and virtual machines report -1 for an unknown package.
                "socket": socket if socket is not None and socket >= 0 else 0,
                "node": node_of.get(cpu, 0),
                "core": min(siblings),
                "siblings": siblings,
                "capacity": read_int(cpu_folder / f"cpu{cpu}" / "cpu_capacity"),
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


def cpu_order(n: int, cpus=None, *, root="/", oversubscribe: bool = False) -> list[int]:
    """Return logical CPUs for `n` workers, of some or of those that this process may use.

    Within a socket each physical core gets one worker, then each SMT sibling; then comes the next socket. Faster cores
    come before slower ones, also where the kernel calls each cluster of cores a socket, and NUMA nodes of a socket one
    after the other. With `oversubscribe` the order starts over.

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
    topology = read_topology(root)
    unknown = sorted(set(cpus) - set(topology["online"]))
    if unknown:
        raise UsageError(f"CPUs must be online, got {unknown}; online are {format_cpu_list(topology['online'])}")
    order = placement_order(topology, cpus)
    return [order[i % len(order)] for i in range(n)]


def placement_order(topology: dict, cpus) -> list[int]:
    """Return all of `cpus` in the order in which `cpu_order` gives them to workers."""
    place = {c["cpu"]: c for c in topology["cpus"]}
    fastest: dict[int, int] = {}
    for c in topology["cpus"]:
        fastest[c["socket"]] = max(fastest.get(c["socket"], 0), c["capacity"] or 0)
    taken: dict[int, int] = {}
    keys = {}
    for cpu in sorted(cpus):
        core = place[cpu]["core"]
        rank = taken[core] = taken.get(core, -1) + 1  # number of siblings in `cpus` before this one
        socket, capacity = place[cpu]["socket"], place[cpu]["capacity"] or 0
        keys[cpu] = (-fastest[socket], socket, rank, -capacity, place[cpu]["node"], core)
    return sorted(keys, key=keys.__getitem__)


def core_kinds(topology: dict, cpus) -> list[dict]:
    """Return runs of equally fast CPUs in the order in which workers get them: "capacity", "cpus", and both as "text".

    A board with four fast and four slow cores has two, "4 CPUs of capacity 1024 (4-7)" first; most machines have one.
    """
    capacity = {c["cpu"]: c["capacity"] for c in topology["cpus"]}
    runs = [(kind, list(group)) for kind, group in groupby(placement_order(topology, cpus), capacity.__getitem__)]
    return [
        {
            "capacity": kind,
            "cpus": group,
            "text": f"{plural(len(group), 'CPU')} of capacity {kind} ({format_cpu_list(group)})",
        }
        for kind, group in runs
    ]


def read_caches(root="/", cpu: int = 0) -> list[dict]:
    """Return the caches of one logical CPU: level, type, size_bytes, line_bytes, shared_by (logical CPUs)."""
    caches = []
    for index in sorted(Path(root, f"sys/devices/system/cpu/cpu{cpu}/cache").glob("index*")):
        level, size = read_int(index / "level"), read_text(index / "size")
        if level is None or not size:
            continue
        unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(size[-1], 1)
        caches.append(
            {
                "level": level,
                "type": read_text(index / "type"),
                "size_bytes": int(size.rstrip("KMG")) * unit,
                "line_bytes": read_int(index / "coherency_line_size"),
                "shared_by": parse_cpu_list(read_text(index / "shared_cpu_list") or str(cpu)),
            }
        )
    return caches


def last_level_cache_bytes(environment: dict) -> int:
    """Return the size of all last-level caches together, 0 if caches are hidden."""
    caches = environment["caches"]
    if not caches:
        return 0
    last = max(caches, key=lambda c: c["level"])
    return last["size_bytes"] * max(1, len(environment["topology"]["online"]) // len(last["shared_by"]))
