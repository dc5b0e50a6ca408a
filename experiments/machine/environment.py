"""Environment of a measurement: hardware, limits, software and settings.

Everything is read from /proc, /sys and the process itself; nothing heavy is imported, so that a measured process may
call `collect` before its first block. Functions that read files take `root`, the folder that stands for `/`.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from ...cython_src.kernels.simd import instruction_sets
from . import machine_peaks
from .build_info import BUILD
from .disturbance import is_throttled, read_memory, read_pressure, read_quota, read_temperature_c
from .energy import energy_text
from .numa import nodes_memory, own_bytes_by_node
from .perf_counters import PerfCounters
from .proc import parsed, read_fields, read_int, read_text
from .topology import available_cpus, core_kinds, last_level_cache_bytes, read_caches, read_topology

PACKAGES = ("numpy", "threadpoolctl", "joblib", "pandas", "matplotlib", "seaborn", "torch", "jax", "cupy", "dask")

# Fields that may differ between two runs in the same environment: load, free memory, measured clock, and the libraries
# imported so far. Of the variables only those that cripple a library count (`environment_id`). Kinds of cores follow
# from the topology, and a node may be started again.
VOLATILE = (
    "node",
    "load_average",
    "pressure_some_percent",
    "memory",
    "memory_of_nodes",
    "own_bytes_by_node",
    "clock",
    "libraries",
    "variables",
    "perf_counters",
    "board",
    "core_kinds",
)
# Variables in which schedulers tell a job its node: Slurm, and pods of Kubernetes that are given it.
SCHEDULERS_NAMES = ("SLURMD_NODENAME", "NODE_NAME")
# Variables that change how fast something runs. Of these, measuring processes get from outside only FORKTASK_ISA and
# those of memory; any other use of NumPy, PyTorch or OpenMP gets all. "cripples": slows a library down or removes
# threads from it, so that comparisons with it are false; "placement": competes with the pinning of executors;
# "threads": sets numbers of threads; "spin": tells idle threads what to do; "kernels": chooses kernels of this package;
# "memory": another allocator, or its settings.
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
    "OMP_THREAD_LIMIT": ("cripples", "OpenMP gives no team more threads than this, silently"),
    "OMP_DYNAMIC": ("cripples", "OpenMP may give a team fewer threads than requested"),
    "OMP_PROC_BIND": ("placement", "OpenMP binds its threads itself"),
    "OMP_PLACES": ("placement", "places that OpenMP binds its threads to"),
    "GOMP_CPU_AFFINITY": ("placement", "libgomp binds its threads to these CPUs"),
    "KMP_AFFINITY": ("placement", "LLVM's and Intel's OpenMP bind their threads"),
    "OMP_NUM_THREADS": ("threads", "default team size; forktask always requests its own number"),
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
    "LD_PRELOAD": ("memory", "libraries that come before others, such as an allocator"),
    "GLIBC_TUNABLES": ("memory", "settings of the C library, such as its allocator's"),
    "FORKTASK_ISA": ("kernels", "forktask uses the kernels of this instruction set"),
}
VARIABLE_PREFIXES = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "GOTO_", "BLIS_", "ONEDNN_", "DNNL_")
MEMORY_PREFIXES = ("MALLOC_", "TCMALLOC_")
OPENMP_LIBRARIES = ("libgomp", "libomp", "libiomp")


def is_volatile(entry: str) -> bool:
    """Return whether an entry of the environment, a dotted name, may differ in the same environment."""
    return entry.partition(".")[0].partition("[")[0] in VOLATILE


def version_text(build: Mapping[str, str] = BUILD) -> str:
    """Return the version, the commit of the sources, and whether they were changed since."""
    commit, _, changed = build["commit"].partition("-")
    return f"{build['version']} (commit {commit[:12]}{', with changes' if changed else ''})"


def read_variables(variables=None) -> list[dict]:
    """Return environment variables that change threads or kernels: name, value, kind (see VARIABLES), effect."""
    variables = os.environ if variables is None else variables
    result = []
    for name in sorted(variables):
        if name in VARIABLES or name.startswith((*VARIABLE_PREFIXES, *MEMORY_PREFIXES)):
            kind, effect = VARIABLES.get(name, ("unknown", "read by a library of threads or kernels; effect not known"))
            if name.startswith(MEMORY_PREFIXES):
                kind, effect = "memory", "settings of a memory allocator"
            value = variables[name]
            if name == "OMP_DYNAMIC" and value.strip().lower() == "false":
                kind = "threads"  # the default, stated explicitly
            if name == "OMP_MAX_ACTIVE_LEVELS" and value.strip() == "0":
                kind, effect = "cripples", "OpenMP runs each team with one thread"
            result.append({"name": name, "value": value, "kind": kind, "effect": effect})
    return result


def this_node(root="/") -> dict[str, str]:
    """Return host, scheduler's node name and boot id; empty where there is none."""
    return {
        "host": platform.node(),
        "scheduler": next(filter(None, map(os.environ.get, SCHEDULERS_NAMES)), ""),
        "boot_id": read_text(Path(root, "proc/sys/kernel/random/boot_id")) or "",
    }


def loaded_libraries() -> list[dict]:
    """Return the OpenMP and BLAS libraries that imports have loaded into this process, by threadpoolctl."""
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
    """Return versions of installed packages that matter, read from their metadata; nothing is imported."""
    from importlib import metadata  # takes as long as NumPy's C part, and measuring processes have no use for it

    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def cpu_model(root="/") -> dict:
    fields = read_fields(Path(root, "proc/cpuinfo"), ":")
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
    boost = read_int(Path(root, "sys/devices/system/cpu/cpufreq/boost"))
    no_turbo = read_int(Path(root, "sys/devices/system/cpu/intel_pstate/no_turbo"))
    return {
        "governor": read_text(folder / "scaling_governor"),
        "driver": read_text(folder / "scaling_driver"),
        "min_khz": read_int(folder / "cpuinfo_min_freq"),
        "max_khz": read_int(folder / "cpuinfo_max_freq"),
        "boost": bool(boost) if boost is not None else None if no_turbo is None else not no_turbo,
    }


def _gpus(root="/") -> list[str]:
    """Return names of NVIDIA GPUs as their driver lists them; `gpu_details` has details, which cost a second."""
    paths = sorted(Path(root, "proc/driver/nvidia/gpus").glob("*/information"))
    return [fields["Model"] for fields in (read_fields(path, ":") for path in paths) if "Model" in fields]


def gpu_details() -> list[dict]:
    """Return nvidia-smi's description of each GPU; empty without any. It takes up to a second."""
    if shutil.which("nvidia-smi") is None:
        return []
    fields = ("name", "driver_version", "memory.total", "clocks.max.sm", "persistence_mode", "mig.mode.current")
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []  # A driver that does not answer counts as no GPU.
    return [dict(zip(fields, (v.strip() for v in line.split(",")), strict=False)) for line in output.splitlines()]


def _board(root="/") -> dict:
    """Return what a board says of itself, its GPU's memory, heat and energy.

    The GPU of an NVIDIA Tegra works in the processor's memory; other GPUs that CUDA knows have their own.
    """
    compatible = (read_text(Path(root, "proc/device-tree/compatible")) or "").split("\0")
    tegra = any(name.startswith("nvidia,tegra") for name in compatible)
    return {
        "model": (read_text(Path(root, "proc/device-tree/model")) or "").strip("\0") or None,
        "shared_gpu_memory": tegra,
        "temperature_c": read_temperature_c(root),
        "throttled": is_throttled(root),
        "energy": energy_text(root),
    }


def collect(root="/", variables=None) -> dict:
    """Return all that describes the hardware and software of a measurement, for JSON; `variables` in place of
    os.environ.

    Call it before pinning: "affinity" is the calling thread's. Fields of VOLATILE change from call to call; the others
    are the machine and its software.
    """
    clock_cost_ns, clock_step_ns = machine_peaks.measure_clock()
    with PerfCounters() as counters:
        pass
    load = parsed(lambda text: [float(x) for x in text.split()[:3]], read_text(Path(root, "proc/loadavg")))
    pressure = read_pressure(root)
    here = str(root) == "/"
    topology = read_topology(root, available_cpus() if here else ())
    usable = available_cpus() if here else topology["online"]
    return {
        "node": this_node(root),
        "forktask": version_text(),
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
        "cpu": cpu_model(root),
        "instruction_sets": instruction_sets.available(),
        "topology": topology,
        "core_kinds": core_kinds(topology, usable),
        "board": _board(root),
        "caches": read_caches(root, usable[0]),
        "last_level_cache_bytes": last_level_cache_bytes(root, topology["online"]),
        "affinity": available_cpus(),
        "isolated": read_text(Path(root, "sys/devices/system/cpu/isolated")) or "",
        "quota_cpus": read_quota(root),
        "memory": read_memory(root),
        "memory_of_nodes": nodes_memory(root),
        "own_bytes_by_node": own_bytes_by_node(root),
        "frequency": _frequency(root),
        "clock": {
            "source": read_text(Path(root, "sys/devices/system/clocksource/clocksource0/current_clocksource")),
            "cost_ns": clock_cost_ns,
            "step_ns": clock_step_ns,
        },
        "transparent_huge_pages": _bracketed(read_text(Path(root, "sys/kernel/mm/transparent_hugepage/enabled"))),
        "numa_balancing": read_int(Path(root, "proc/sys/kernel/numa_balancing")),
        "perf_counters": {
            "error": counters.error,
            "paranoid": read_int(Path(root, "proc/sys/kernel/perf_event_paranoid")),
        },
        "variables": read_variables(variables),
        "libraries": loaded_libraries(),
        "gpus": _gpus(root),
        "load_average": load or None,
        "pressure_some_percent": None if pressure is None else pressure["avg10"],
    }


def _bracketed(text: str | None) -> str | None:
    """Return the chosen word of a text such as "always [madvise] never"."""
    if text is None or "[" not in text:
        return text
    return text[text.index("[") + 1 : text.index("]")]


def environment_id(environment: dict) -> str:
    """Return twelve hexadecimal digits of the stable part, equal for runs whose samples may stand in one table.

    The fields of VOLATILE are left out, except for the total memory, the clock source, and variables that cripple a
    library or choose kernels.
    """
    stable = {key: value for key, value in environment.items() if key not in VOLATILE}
    stable["memory_total"] = environment["memory"]["total_bytes"]
    stable["clock_source"] = environment["clock"]["source"]
    stable["variables"] = [
        [v["name"], v["value"]] for v in environment["variables"] if v["kind"] in ("cripples", "kernels")
    ]
    return hashlib.sha256(json.dumps(stable, sort_keys=True).encode()).hexdigest()[:12]


def described_environment(variables=None) -> dict:
    """Return what a results folder keeps of the environment, see `collect`: "environment" and "environment_id"."""
    result = collect(variables=variables)
    return {"environment": result, "environment_id": environment_id(result)}
