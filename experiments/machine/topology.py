"""Logical CPUs: their place, the caches that they share, and the order in which workers get them.

Functions that read files take `root`, the folder that stands for `/`.
"""

from __future__ import annotations

import functools
from bisect import bisect_left
from collections import Counter
from itertools import cycle, groupby
from pathlib import Path
from typing import Any

from ...cython_src.affinity import binding_variables, usable_cpus
from ...cython_src.errors import UsageError, did_you_mean
from ..tables.numbers import plural
from .proc import parsed, read_int, read_text

MOST_CPUS = 1 << 20
MASKS = ("core_cpus", "thread_siblings", "shared_cpu_map", "cpumap")  # files that hold hexadecimal digits, not a list
# What the kernel says of a CPU's speed, in its folder; and by how much a core of another kind is slower.
SPEEDS = ("cpu_capacity", "acpi_cppc/highest_perf", "cpufreq/cpuinfo_max_freq")
GAP = 1.3
# Places of workers, and what the CPUs of one have in common.
PLACES = {"cores": None, "threads": None, "llc": "llc", "numa": "node", "sockets": "socket"}
BINDS = ("close", "spread", "none")
NEARNESS = ("kind", "socket", "node", "llc", "core")
# Where a curve over threads may bend, the widest first.
WIDTHS = {"socket": "next socket", "node": "next NUMA node", "llc": "next cache", "kind": "slower cores"}
WIDTHS["sibling"] = "siblings"


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
        if result := parsed(_parse_cpu_mask if name in MASKS else parse_cpu_list, read_text(folder / name)):
            return result
    return None


def _parse_cpu_mask(text: str) -> list[int]:
    mask = int(text.replace(",", ""), 16)
    return [cpu for cpu in range(mask.bit_length()) if mask >> cpu & 1]


def available_cpus() -> list[int]:
    """Return the logical CPUs that this process may run on, ascending."""
    return usable_cpus()


def core_counts(cpus=None, *, siblings: bool = False, root="/") -> tuple[int, ...]:
    """Return 1, 2, 4, ... and the number of physical cores of CPUs, by default of this process's.

    With `siblings` the number of the CPUs comes last where some share a core.
    """
    cpus = available_cpus() if cpus is None else list(cpus)
    cores = len({c["core"] for c in topology_of(cpus, root)["cpus"] if c["cpu"] in cpus})
    counts = (*(1 << i for i in range((cores - 1).bit_length())), cores, *((len(cpus),) if siblings else ()))
    return tuple(dict.fromkeys(counts))


def read_topology(root="/", usable=()) -> dict:
    """Read the place of each online logical CPU; those that a process may run on, `usable`, are online.

    In a container `online` may count from 0 where the process's mask has the host's numbers.

    Returns
    -------
    dict
        "online": list of int; "cpus": list of {"cpu", "socket", "node", "llc", "core", "siblings", "kind",
        "capacity"}, where "llc" is the lowest logical CPU that shares its last-level cache (None: hidden), "core" that
        of the same physical core, "kind" that of its core (0: fastest) and "capacity" the relative speed of the kind
        (1024: fastest; None where not said, or where there is one kind).
        "cores", "sockets", "nodes": numbers of each; "threads_per_core": largest. "known": False if the kernel does
        not show which logical CPUs share a core; each then counts as a core of its own.
    """
    cpu_folder = Path(root, "sys/devices/system/cpu")
    # Old kernels have no list; there offline CPUs have no place.
    placed = (parsed(int, path.parent.name[3:]) for path in cpu_folder.glob("cpu[0-9]*/topology"))
    listed = _read_cpus(cpu_folder, "online") or [cpu for cpu in placed if cpu is not None]
    online = sorted({*listed, *usable}) or available_cpus()
    node_of = {}
    for folder in sorted(Path(root, "sys/devices/system/node").glob("node[0-9]*")):
        for cpu in _read_cpus(folder, "cpulist", "cpumap") or ():
            node_of[cpu] = parsed(int, folder.name[4:]) or 0
    kinds = _read_kinds(root, online)
    caches = {cpu: min(cache["shared_by"]) for cache in _last_level_caches(root, online) for cpu in cache["shared_by"]}
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
                "llc": caches.get(cpu),
                "core": min(siblings),
                "siblings": siblings,
                **kinds[cpu],
            }
        )
    return {
        "known": known,
        "online": online,
        "cpus": cpus,
        **{f"{part}s": len({c[part] for c in cpus}) for part in ("core", "socket", "node")},
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
    result: dict[int, dict[str, int | None]] = {}
    kind, (atom, last, _) = 0, ranked[0]
    first, top = last, min(speed for _, speed, _ in ranked)
    for is_atom, speed, cpu in ranked:
        if is_atom != atom or last < GAP * speed:
            kind, first = kind + 1, speed
        atom, last = is_atom, speed
        result[cpu] = {"kind": kind, "capacity": round(1024 * first / top) if top else None}
    return result if kind else {cpu: {"kind": 0, "capacity": None} for cpu in online}


def check_places(places: str) -> str:
    """Return the name of places, or a list of CPUs, each once; raises `UsageError` for another text."""
    cpus = [] if places in PLACES else parsed(parse_cpu_list, places) or [0, 0]
    if len(set(cpus)) < len(cpus):
        raise UsageError(
            f"places must be {', '.join(PLACES)} or a list of CPUs, each once, such as 0-3,8, got {places!r}"
            f"{did_you_mean(places, PLACES)}"
        )
    return places


def cpu_order(
    n: int, cpus=None, *, root="/", places: str = "cores", bind: str = "close", oversubscribe: bool = False
) -> list[int]:
    """Return logical CPUs for `n` workers, by default of this process's CPUs; see `placement_order`. Raises
    `UsageError`: `n` is not positive, or exceeds the CPUs without `oversubscribe`; places that there are not."""
    cpus = available_cpus() if cpus is None else sorted(set(cpus))
    whose = "this process may use"
    if places not in PLACES:
        usable, cpus, whose = cpus, parse_cpu_list(check_places(places)), f"of places {places}"
        if strange := {*cpus} - {*usable}:
            raise UsageError(
                f"places must be CPUs that this process may use, {format_cpu_list(usable)}, got "
                f"{format_cpu_list(strange)} in {places}; leave them out"
            )
    if n < 1:
        raise UsageError(f"the number of threads must be positive, got {n}; ask for 1 to {len(cpus)}")
    if n > len(cpus) and not oversubscribe:
        unset = "".join(f", unset {variable}" for variable in binding_variables())
        raise UsageError(
            f"the number of threads must not exceed the {plural(len(cpus), 'CPU')} {whose}, got {n}; "
            f"ask for fewer{unset} or pass --oversubscribe"
        )
    return placement_order(topology_of(cpus, root), cpus, n, places, bind)


def topology_of(cpus, root="/") -> dict:
    """Return what `read_topology` does, of this machine read once for the same CPUs: 256 take a tenth of a second."""
    return _topology_here(tuple(cpus)) if str(root) == "/" else read_topology(root, cpus)


def places_of(cpus, root="/") -> list[tuple[int, int, int, int]]:
    """Return numbers of the socket, NUMA node, last-level cache (-1: hidden) and core of some CPUs, in their order."""
    place = {c["cpu"]: c for c in topology_of(sorted(set(cpus)), root)["cpus"]}
    return [tuple(_number(place[cpu][key]) for key in ("socket", "node", "llc", "core")) for cpu in cpus]


@functools.cache
def _topology_here(cpus: tuple[int, ...]) -> dict:
    return read_topology("/", cpus)


def placement_order(
    topology: dict, cpus, n: int | None = None, places: str = "cores", bind: str = "close"
) -> list[int]:
    """Return the CPU of each of `n` workers, by default of as many as there are `cpus`.

    Faster cores come before slower ones, then sockets, NUMA nodes of a socket and caches of a node one after the other.
    As in OpenMP, "close" gives neighbouring workers neighbouring places, "spread" places at equal distances, and more
    workers than places share these equally. Within a place each core gets a worker before the first SMT sibling does;
    "threads" and lists of CPUs have no such rule. Where there are more workers than CPUs, the order begins anew.

    `places`: one of `PLACES`, or a list of CPUs, which stands for `cpus`.
    """
    place = {c["cpu"]: c for c in topology["cpus"]}
    if places in PLACES:
        near = sorted(cpus, key=lambda cpu: [_number(place[cpu].get(key)) for key in (*NEARNESS, "cpu")])
    else:
        near = parse_cpu_list(places)
    single = places == "threads" or places not in PLACES
    groups: dict[Any, list[list[int]]] = {}
    for _, siblings in groupby(near, lambda cpu: cpu if single else place[cpu]["core"]):
        core, common = [*siblings], PLACES.get(places)
        at = place[core[0]].get(common) if common else 0
        if at is None:
            raise UsageError(f"places={places} needs caches that the kernel shows, got none of CPU {core[0]}; use numa")
        groups.setdefault(at, []).append(core)
    shares = Counter(_deal([[at] * sum(map(len, cores)) for at, cores in groups.items()], n or len(near), bind))
    return [cpu for at, cores in groups.items() for cpu in _deal(cores, shares[at], bind)]


def _number(value: int | None) -> int:
    return -1 if value is None else value


def _deal(places: list[list], n: int, bind: str) -> list:
    """Return the first of each place for the first workers, then the seconds, and so on, then all once more."""
    result: list = []
    for rank in cycle(range(max(map(len, places)))):
        row = [place[rank] for place in places if len(place) > rank]
        left = n - len(result)
        if left <= len(row):
            return result + [row[k * len(row) // left if bind == "spread" else k] for k in range(left)]
        result += row
    return result


def first_beyond(topology: dict, cpus, places: str = "cores", bind: str = "close") -> dict[int, str]:
    """Return what a curve over threads meets, by the first number of workers that are no longer alike: on one socket,
    one NUMA node, and so on. Of several things at once the widest is named; there are none where workers roam, or where
    the topology does not have their CPUs.
    """
    place = {c["cpu"]: c for c in topology.get("cpus", ())}
    used = cpus if places in PLACES else parsed(parse_cpu_list, places) or ()
    if bind == "none" or not used or not {*used} <= {*place}:
        return {}
    result: dict[int, str] = {}

    def differ(n: int, key: str) -> bool:
        if key == "sibling":
            return len({place[cpu]["core"] for cpu in workers(n)}) < n
        return len({place[cpu].get(key) for cpu in workers(n)}) > 1

    def workers(n: int) -> list[int]:
        return placement_order(topology, cpus, n, places, bind)

    most = len(used)
    for key, name in WIDTHS.items():
        n = 1 + bisect_left(range(1, most + 1), True, key=lambda n, key=key: differ(n, key))
        if n <= most:
            result.setdefault(n, name)
    return result


def core_kinds(topology: dict, cpus) -> list[dict[str, Any]]:
    """Return runs of CPUs of one kind in the order in which workers get them: "kind", "cpus", and a "text".

    A board with four fast and four slow cores has two, "4 CPUs of capacity 1024 (4-7)" first; most machines have one.
    """
    place = {c["cpu"]: c for c in topology["cpus"]}
    result = []
    for kind, run in groupby(placement_order(topology, cpus), lambda cpu: place[cpu]["kind"]):
        group = list(run)
        capacity = place[group[0]]["capacity"]
        name = f"kind {kind + 1}" if capacity is None else f"capacity {capacity}"
        text = f"{plural(len(group), 'CPU')} of {name} ({format_cpu_list(group)})"
        result.append({"kind": kind, "cpus": group, "text": text})
    return result


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
    sizes: Counter[int] = Counter()
    for cache in _last_level_caches(root, cpus):
        sizes[cache["level"]] += cache["size_bytes"]
    return sizes[max(sizes)] if sizes else 0


def _last_level_caches(root, cpus) -> list[dict]:
    """Return the last-level cache of each CPU, each cache once."""
    result, seen = [], set()
    for cpu in cpus:
        if cpu not in seen and (caches := read_caches(root, cpu)):
            result.append(max(caches, key=lambda cache: cache["level"]))
            seen.update(result[-1]["shared_by"])
    return result


def _size_bytes(text: str) -> int:
    return int(text.rstrip("KMG")) * {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1], 1)
