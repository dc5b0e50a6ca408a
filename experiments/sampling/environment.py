"""What a measurement ran on: hardware, limits, software, settings, and what else happened meanwhile.

Everything is read from /proc, /sys and the process itself; nothing heavy is imported, so that a measured
process may call `collect` before its first block. Functions that read files take `root`, the folder that
stands for `/`. A value that this machine hides is None, never a guess.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import resource
import sys
from importlib import metadata
from pathlib import Path

from ... import __version__
from ...cython_src.errors import UsageError

PACKAGES = ("numpy", "threadpoolctl", "joblib", "pandas", "matplotlib", "seaborn", "torch", "cupy", "dask")

# Variables that change how fast something runs. Measuring processes get none of these but FORKTASK_ISA from
# outside; any other use of NumPy, PyTorch or OpenMP here does. "cripples": makes a library slower than it is
# or takes threads away, so that comparisons with it are false; "placement": competes with our pinning;
# "threads": sets numbers of threads;
# "spin": what idle threads do; "kernels": chooses kernels of this package.
VARIABLES = {
    "OPENBLAS_CORETYPE": ("cripples", "OpenBLAS uses the kernels of this CPU model, often half as fast; acts at load"),
    "OPENBLAS_L2_SIZE": ("cripples", "OpenBLAS blocks for this L2 size instead of the real one"),
    "OPENBLAS_BLOCK_FACTOR": ("cripples", "OpenBLAS changes its cache blocking"),
    "MKL_DEBUG_CPU_TYPE": ("cripples", "MKL uses the kernels of another CPU type"),
    "MKL_ENABLE_INSTRUCTIONS": ("cripples", "MKL uses no wider instruction set than this"),
    "MKL_CBWR": ("cripples", "MKL trades speed for reproducible sums"),
    "ONEDNN_MAX_CPU_ISA": ("cripples", "oneDNN (PyTorch) uses no wider instruction set than this"),
    "DNNL_MAX_CPU_ISA": ("cripples", "oneDNN (PyTorch) uses no wider instruction set than this"),
    "ATEN_CPU_CAPABILITY": ("cripples", "PyTorch uses no wider instruction set than this"),
    "BLIS_ARCH_TYPE": ("cripples", "BLIS uses the kernels of this CPU model"),
    "NPY_DISABLE_CPU_FEATURES": ("cripples", "NumPy leaves these instruction sets unused"),
    "OMP_THREAD_LIMIT": ("cripples", "OpenMP gives no team more threads than this, without a word"),
    "OMP_DYNAMIC": ("cripples", "OpenMP may give a team fewer threads than asked for"),
    "OMP_PROC_BIND": ("placement", "OpenMP binds its threads itself"),
    "OMP_PLACES": ("placement", "places that OpenMP binds its threads to"),
    "GOMP_CPU_AFFINITY": ("placement", "libgomp binds its threads to these CPUs"),
    "KMP_AFFINITY": ("placement", "LLVM's and Intel's OpenMP bind their threads"),
    "OMP_NUM_THREADS": ("threads", "default team size; forktask always asks for its own number"),
    "OPENBLAS_NUM_THREADS": ("threads", "threads inside one BLAS call"),
    "GOTO_NUM_THREADS": ("threads", "threads inside one OpenBLAS call"),
    "MKL_NUM_THREADS": ("threads", "threads inside one MKL call"),
    "MKL_DYNAMIC": ("threads", "MKL may use fewer threads than set"),
    "BLIS_NUM_THREADS": ("threads", "threads inside one BLIS call"),
    "NUMEXPR_NUM_THREADS": ("threads", "threads of NumExpr"),
    "OMP_MAX_ACTIVE_LEVELS": ("threads", "how deep OpenMP regions may nest"),
    "OMP_SCHEDULE": ("threads", "schedule of loops that say `runtime`; forktask names its own"),
    "OMP_STACKSIZE": ("threads", "stack of each OpenMP thread"),
    "OMP_WAIT_POLICY": ("spin", "whether idle OpenMP threads spin (active) or sleep (passive)"),
    "GOMP_SPINCOUNT": ("spin", "how long idle libgomp threads spin before they sleep"),
    "KMP_BLOCKTIME": ("spin", "how long idle LLVM OpenMP threads spin, ms"),
    "KMP_LIBRARY": ("spin", "waiting mode of LLVM's and Intel's OpenMP"),
    "FORKTASK_ISA": ("kernels", "forktask uses the kernels of this instruction set"),
}
VARIABLE_PREFIXES = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "GOTO_", "BLIS_", "ONEDNN_", "DNNL_")


def _read(path: Path) -> str | None:
    """Text of a file without surrounding white space; None where it is missing or may not be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def _read_int(path: Path) -> int | None:
    text = _read(path)
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def parse_cpu_list(text: str) -> list[int]:
    """The kernel's list format: "0-2,5" is [0, 1, 2, 5]."""
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
    """Logical CPUs this process may run on, ascending."""
    return sorted(os.sched_getaffinity(0))


# Topology


def read_topology(root="/") -> dict:
    """Place of each online logical CPU.

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
    text = _read(cpu_folder / "online")
    online = parse_cpu_list(text) if text else available_cpus()
    node_of = {}
    for folder in sorted(Path(root, "sys/devices/system/node").glob("node[0-9]*")):
        for cpu in parse_cpu_list(_read(folder / "cpulist") or ""):
            node_of[cpu] = int(folder.name[4:])
    cpus = []
    known = True
    for cpu in online:
        topology = cpu_folder / f"cpu{cpu}" / "topology"
        siblings = _read(topology / "core_cpus_list") or _read(topology / "thread_siblings_list")
        known = known and siblings is not None
        siblings = parse_cpu_list(siblings) if siblings else [cpu]
        socket = _read_int(topology / "physical_package_id")
        cpus.append(
            {
                "cpu": cpu,
                # Some Arm and virtual machines say -1 for an unknown package.
                "socket": socket if socket is not None and socket >= 0 else 0,
                "node": node_of.get(cpu, 0),
                "core": min(siblings),
                "siblings": siblings,
                "capacity": _read_int(cpu_folder / f"cpu{cpu}" / "cpu_capacity"),
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
    """Logical CPUs for `n` workers: within a socket one worker a physical core, then SMT siblings; then the
    next socket.

    Faster cores come before slower ones and NUMA nodes of a socket one after the other.

    Parameters
    ----------
    n : int
    cpus : iterable of int, optional
        CPUs to choose from. Default: those this process may use. Pass the ones found at start if the caller
        has been pinned since.
    oversubscribe : bool
        Allow more workers than CPUs: the order starts over.

    Returns
    -------
    list of int

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
            f"the number of threads must not exceed the {len(cpus)} CPUs this process may use, got {n}; "
            f"ask for fewer or pass --oversubscribe"
        )
    topology = read_topology(root)
    unknown = sorted(set(cpus) - set(topology["online"]))
    if unknown:
        raise UsageError(f"CPUs must be online, got {unknown}; online are {format_cpu_list(topology['online'])}")
    order = placement_order(topology, cpus)
    return [order[i % len(order)] for i in range(n)]


def placement_order(topology: dict, cpus) -> list[int]:
    """All of `cpus` in the order in which `cpu_order` gives them to workers."""
    place = {c["cpu"]: c for c in topology["cpus"]}
    taken: dict[int, int] = {}
    keys = {}
    for cpu in sorted(cpus):
        core = place[cpu]["core"]
        rank = taken[core] = taken.get(core, -1) + 1  # how many siblings among `cpus` come before this one
        keys[cpu] = (place[cpu]["socket"], rank, -(place[cpu]["capacity"] or 0), place[cpu]["node"], core)
    return sorted(keys, key=keys.__getitem__)


def read_caches(root="/", cpu: int = 0) -> list[dict]:
    """Caches seen by one logical CPU: level, type, size_bytes, line_bytes, shared_by (logical CPUs)."""
    caches = []
    for index in sorted(Path(root, f"sys/devices/system/cpu/cpu{cpu}/cache").glob("index*")):
        level, size = _read_int(index / "level"), _read(index / "size")
        if level is None or not size:
            continue
        unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(size[-1], 1)
        caches.append(
            {
                "level": level,
                "type": _read(index / "type"),
                "size_bytes": int(size.rstrip("KMG")) * unit,
                "line_bytes": _read_int(index / "coherency_line_size"),
                "shared_by": parse_cpu_list(_read(index / "shared_cpu_list") or str(cpu)),
            }
        )
    return caches


def last_level_cache_bytes(environment: dict) -> int:
    """Size of all last-level caches together, 0 where caches are hidden."""
    caches = environment["caches"]
    if not caches:
        return 0
    last = max(caches, key=lambda c: c["level"])
    return last["size_bytes"] * max(1, len(environment["topology"]["online"]) // len(last["shared_by"]))


# Limits of the container


def _cgroup_folders(root="/") -> list[Path]:
    """Folders that limit this process's CPU time, own group first, then its parents, of both cgroup versions.

    A container often shows its own group as the root of the file system while /proc/self/cgroup still gives
    the host's path: folders that do not exist are skipped and the mount point always looked at.
    """
    base = Path(root, "sys/fs/cgroup")
    folders = []
    for line in (_read(Path(root, "proc/self/cgroup")) or "").splitlines():
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
    """CPUs' worth of time the container may use, the tightest of all levels; None: no limit."""
    quotas = []
    for folder in _cgroup_folders(root):
        text = _read(folder / "cpu.max")
        if text and not text.startswith("max"):
            quota, period = text.split()
            quotas.append(int(quota) / int(period))
        quota, period = _read_int(folder / "cpu.cfs_quota_us"), _read_int(folder / "cpu.cfs_period_us")
        if quota and quota > 0 and period:
            quotas.append(quota / period)
    return min(quotas) if quotas else None


def read_memory(root="/") -> dict:
    """Memory of the machine and what is free to take, bytes."""
    fields = {}
    for line in (_read(Path(root, "proc/meminfo")) or "").splitlines():
        name, _, value = line.partition(":")
        fields[name] = int(value.split()[0]) * 1024 if value.split() else None
    return {"total_bytes": fields.get("MemTotal"), "available_bytes": fields.get("MemAvailable")}


# Disturbance: what else happened while something was measured


def _pressure(root="/") -> dict | None:
    """The line `some` of /proc/pressure/cpu: {"avg10": %, ..., "total": us}; None where the kernel does not keep it."""
    for line in (_read(Path(root, "proc/pressure/cpu")) or "").splitlines():
        name, *fields = line.split()
        if name == "some":
            return {key: float(value) for key, value in (field.split("=") for field in fields)}
    return None


def _steal_ticks(root="/") -> int | None:
    for line in (_read(Path(root, "proc/stat")) or "").splitlines():
        fields = line.split()
        if fields[0] == "cpu" and len(fields) > 8:
            return int(fields[8])
    return None


class Disturbance:
    """Difference of the machine's disturbance counters over a measured interval.

    The four numbers, None where the machine hides one:
    "pressure_some_us": time in which some runnable thread of the machine waited for a CPU (own threads
    included);
    "steal_ticks": time the hypervisor gave to others, in clock ticks (usually 1/100 s), summed over CPUs;
    "nonvoluntary_switches": times a thread of this process was pushed off its CPU;
    "throttled_us": time this container stood still for its quota.

    One reading costs about 0.1 ms: take it outside the timed interval.

    Examples
    --------
    >>> disturbance = Disturbance()
    >>> before = disturbance.read()
    >>> sorted(disturbance.since(before))
    ['nonvoluntary_switches', 'pressure_some_us', 'steal_ticks', 'throttled_us']
    """

    FIELDS = ("pressure_some_us", "steal_ticks", "nonvoluntary_switches", "throttled_us")

    def __init__(self, root="/"):
        self.root = root
        self.throttle_files = [f / "cpu.stat" for f in _cgroup_folders(root) if (f / "cpu.stat").is_file()]

    def read(self) -> dict:
        """Counters now, as a dict of the four fields."""
        pressure = _pressure(self.root)
        return {
            "pressure_some_us": None if pressure is None else int(pressure["total"]),
            "steal_ticks": _steal_ticks(self.root),
            "nonvoluntary_switches": resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw,
            "throttled_us": self._throttled_us(),
        }

    def since(self, before: dict) -> dict:
        """What was added since `before`, an earlier result of `read`."""
        now = self.read()
        return {key: None if now[key] is None or before[key] is None else now[key] - before[key] for key in self.FIELDS}

    def _throttled_us(self) -> int | None:
        total = None
        for path in self.throttle_files:
            for line in (_read(path) or "").splitlines():
                name, _, value = line.partition(" ")
                if name == "throttled_usec":  # cgroup v2
                    total = (total or 0) + int(value)
                elif name == "throttled_time":  # cgroup v1, ns
                    total = (total or 0) + int(value) // 1000
        return total


# Software and settings


def read_variables(variables=None) -> list[dict]:
    """Environment variables that change threads or kernels: name, value, kind (see VARIABLES), effect."""
    variables = os.environ if variables is None else variables
    found = []
    for name in sorted(variables):
        if name in VARIABLES or name.startswith(VARIABLE_PREFIXES):
            kind, effect = VARIABLES.get(name, ("unknown", "read by a library of threads or kernels; effect not known"))
            value = variables[name]
            if name == "OMP_DYNAMIC" and value.strip().lower() == "false":
                kind = "threads"  # the default, said aloud
            found.append({"name": name, "value": value, "kind": kind, "effect": effect})
    return found


def spin_policy(variables=None) -> str:
    """What idle OpenMP threads of gcc's runtime do, in words; forktask's own workers are described by their executor."""
    variables = os.environ if variables is None else variables
    if "GOMP_SPINCOUNT" in variables:
        return f"GOMP_SPINCOUNT={variables['GOMP_SPINCOUNT']}: libgomp spins that many rounds, then sleeps"
    policy = variables.get("OMP_WAIT_POLICY", "").strip().lower()
    if policy == "active":
        return "OMP_WAIT_POLICY=active: libgomp spins practically for ever"
    if policy == "passive":
        return "OMP_WAIT_POLICY=passive: libgomp sleeps at once"
    return "default: libgomp spins 300000 rounds (1000 with more threads than CPUs), then sleeps"


def loaded_libraries() -> list[dict]:
    """OpenMP and BLAS libraries in this process, by threadpoolctl; only what an import has loaded so far."""
    from threadpoolctl import threadpool_info

    return [
        {
            "kind": library["user_api"],
            "name": library["prefix"] if library["user_api"] == "openmp" else library["internal_api"],
            "version": library.get("version"),
            "architecture": library.get("architecture"),
            "threads": library["num_threads"],
            "file": Path(library["filepath"]).name,
        }
        for library in threadpool_info()
    ]


def package_versions() -> dict[str, str]:
    """Versions of the packages that matter, where installed; read from their metadata, nothing is imported."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _cpu_model(root="/") -> dict:
    fields: dict[str, str] = {}
    for line in (_read(Path(root, "proc/cpuinfo")) or "").splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    flags = set(fields.get("flags", fields.get("Features", "")).split())
    return {
        "model": fields.get("model name") or fields.get("CPU part"),
        "vendor": fields.get("vendor_id") or fields.get("CPU implementer"),
        "family": fields.get("cpu family"),
        "model_number": fields.get("model"),
        "stepping": fields.get("stepping"),
        "flags": sorted(f for f in flags if f.startswith(("avx", "fma", "amx", "f16c", "sve", "asimd"))),
        "virtual_machine": "hypervisor" in flags if flags else None,
    }


def _frequency(root="/") -> dict:
    folder = Path(root, "sys/devices/system/cpu/cpu0/cpufreq")
    boost = _read_int(Path(root, "sys/devices/system/cpu/cpufreq/boost"))
    no_turbo = _read_int(Path(root, "sys/devices/system/cpu/intel_pstate/no_turbo"))
    return {
        "governor": _read(folder / "scaling_governor"),
        "driver": _read(folder / "scaling_driver"),
        "min_khz": _read_int(folder / "cpuinfo_min_freq"),
        "max_khz": _read_int(folder / "cpuinfo_max_freq"),
        "boost": bool(boost) if boost is not None else None if no_turbo is None else not no_turbo,
    }


def _gpus(root="/") -> list[str]:
    """Names of NVIDIA GPUs as their driver lists them; details cost a second and belong to `gpu_details`."""
    names = []
    for path in sorted(Path(root, "proc/driver/nvidia/gpus").glob("*/information")):
        for line in (_read(path) or "").splitlines():
            if line.startswith("Model:"):
                names.append(line.partition(":")[2].strip())
    return names


def gpu_details() -> list[dict]:
    """What nvidia-smi says of each GPU; empty where there is none. Takes up to a second."""
    import shutil
    import subprocess

    if shutil.which("nvidia-smi") is None:
        return []
    fields = ("name", "driver_version", "memory.total", "clocks.max.sm", "persistence_mode", "mig.mode.current")
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []  # a driver that does not answer is as good as no GPU
    return [dict(zip(fields, (v.strip() for v in line.split(",")), strict=False)) for line in output.splitlines()]


def collect(root="/", variables=None) -> dict:
    """Everything that describes where and with what a measurement ran.

    Call it before pinning: "affinity" is the calling thread's.

    Parameters
    ----------
    root : path
        Folder that stands for `/`; another one is for tests.
    variables : mapping, optional
        In place of os.environ.

    Returns
    -------
    dict
        JSON-able. Fields of VOLATILE change from call to call; the others are the machine and its software.
    """
    from ...cython_src.kernels.simd import instruction_sets
    from ..machine import machine_peaks
    from .build_info import BUILD

    clock_cost_ns, clock_step_ns = machine_peaks.measure_clock()
    flushed_results, flushed_operands = machine_peaks.denormals_flushed()
    load = (_read(Path(root, "proc/loadavg")) or "").split()
    pressure = _pressure(root)
    return {
        "forktask": __version__,
        "python": {
            "version": platform.python_version(),
            "implementation": platform.python_implementation(),
            "gil": getattr(sys, "_is_gil_enabled", lambda: True)(),
        },
        "packages": package_versions(),
        "build": dict(BUILD),
        "kernel": platform.release(),
        "libc": " ".join(platform.libc_ver()),
        "architecture": platform.machine(),
        "cpu": _cpu_model(root),
        "instruction_sets": instruction_sets.available(),
        "topology": read_topology(root),
        "caches": read_caches(root, available_cpus()[0] if str(root) == "/" else 0),
        "affinity": available_cpus(),
        "isolated": _read(Path(root, "sys/devices/system/cpu/isolated")) or "",
        "quota_cpus": read_quota(root),
        "memory": read_memory(root),
        "frequency": _frequency(root),
        "clock": {
            "source": _read(Path(root, "sys/devices/system/clocksource/clocksource0/current_clocksource")),
            "cost_ns": clock_cost_ns,
            "step_ns": clock_step_ns,
        },
        "transparent_huge_pages": _bracketed(_read(Path(root, "sys/kernel/mm/transparent_hugepage/enabled"))),
        "numa_balancing": _read_int(Path(root, "proc/sys/kernel/numa_balancing")),
        "perf_counters": {
            "error": machine_peaks.perf_counters_error(),
            "paranoid": _read_int(Path(root, "proc/sys/kernel/perf_event_paranoid")),
        },
        "denormals": {"results_flushed": flushed_results, "operands_flushed": flushed_operands},
        "variables": read_variables(variables),
        "spin_policy": spin_policy(variables),
        "libraries": loaded_libraries(),
        "gpus": _gpus(root),
        "load_average": [float(x) for x in load[:3]] or None,
        "pressure_some_percent": None if pressure is None else pressure["avg10"],
    }


def _bracketed(text: str | None) -> str | None:
    """The chosen one of "always [madvise] never"."""
    if text is None or "[" not in text:
        return text
    return text[text.index("[") + 1 : text.index("]")]


# What may differ between two runs that count as one environment: load, free memory, measured clock, and the
# libraries that happen to be imported so far. Variables are in only where they cripple (`environment_id`).
VOLATILE = (
    "load_average",
    "pressure_some_percent",
    "memory",
    "clock",
    "libraries",
    "denormals",
    "variables",
    "spin_policy",
    "perf_counters",
)


def environment_id(environment: dict) -> str:
    """Twelve hexadecimal digits of the stable part: equal for runs whose samples may stand in one table.

    Left out: the fields of VOLATILE, but the total memory, the clock source and variables that cripple a
    library or choose kernels stay in.
    """
    stable = {key: value for key, value in environment.items() if key not in VOLATILE}
    stable["memory_total"] = environment["memory"]["total_bytes"]
    stable["clock_source"] = environment["clock"]["source"]
    stable["variables"] = [
        [v["name"], v["value"]] for v in environment["variables"] if v["kind"] in ("cripples", "kernels")
    ]
    return hashlib.sha256(json.dumps(stable, sort_keys=True).encode()).hexdigest()[:12]


def thread_counts(num_cpus: int) -> list[int]:
    """1, 2, 4, ... and `num_cpus` itself."""
    counts = []
    n = 1
    while n < num_cpus:
        counts.append(n)
        n *= 2
    return [*counts, num_cpus]


def measure_machine(threads=None, *, cpus=None, environment: dict | None = None, seconds: float = 0.1) -> dict:
    """The machine's measured limits: the row `machine` of a samples file.

    Takes about `seconds` for the peak, once for each thread count for the bandwidth and once for the
    capacity, and the first touch of the bandwidth's arrays.

    Parameters
    ----------
    threads : sequence of int, optional
        Thread counts. Default: 1, 2, 4, ... up to the CPUs this process may use.
    cpus : iterable of int, optional
        CPUs to choose from, as in `cpu_order`.
    environment : dict, optional
        Result of `collect`, if at hand.
    seconds : float
        Of each single measurement.

    Returns
    -------
    dict
        "kind", "instruction_set", "peak_flops_per_s_1thread" and its "median_flops_per_s_1thread",
        "frequency_hz",
        "flops_per_cycle", "bandwidth_bytes_per_s" and "capacity" by thread count (string keys, as JSON has
        it),
        "cache_bandwidth_bytes_per_s" of one thread by cache level, "disturbance" over all of it, "elapsed_s".
    """
    import time

    from ..machine import machine_peaks

    environment = collect() if environment is None else environment
    cpus = available_cpus() if cpus is None else sorted(set(cpus))
    threads = thread_counts(len(cpus)) if threads is None else sorted(set(threads))
    disturbance = Disturbance()
    before = disturbance.read()
    start = time.perf_counter()
    first = cpu_order(1, cpus)[0]
    peak = machine_peaks.measure_peak_flops(seconds, None, first)
    working_set = max(4 * last_level_cache_bytes(environment), 64 << 20)
    free = environment["memory"]["available_bytes"]
    if free is not None:
        working_set = min(working_set, free // 4)
    order = {n: cpu_order(n, cpus, oversubscribe=True) for n in threads}
    bandwidth = {str(n): machine_peaks.measure_bandwidth(n, seconds, working_set, order[n]) for n in threads}
    cache_bandwidth = {
        str(cache["level"]): machine_peaks.measure_bandwidth(1, seconds / 4, cache["size_bytes"] // 2, [first])
        for cache in environment["caches"]
        if cache["type"] != "Instruction" and cache["size_bytes"] <= working_set
    }
    capacity = {str(n): 1.0 if n == 1 else machine_peaks.measure_capacity(n, seconds, order[n]) for n in threads}
    return {
        "kind": "machine",
        "instruction_set": peak["instruction_set"],
        "peak_flops_per_s_1thread": peak["flops_per_s"],
        "median_flops_per_s_1thread": peak["median_flops_per_s"],
        "frequency_hz": peak["frequency_hz"],
        "flops_per_cycle": peak["flops_per_cycle"],
        "bandwidth_bytes_per_s": bandwidth,
        "cache_bandwidth_bytes_per_s": cache_bandwidth,
        "capacity": capacity,
        "disturbance": disturbance.since(before),
        "elapsed_s": time.perf_counter() - start,
    }
