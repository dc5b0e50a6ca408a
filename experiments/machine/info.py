"""Description of this machine: hardware, measured limits, and fitness for measuring."""

from __future__ import annotations

import itertools
import os
import textwrap
from collections.abc import Iterable

import numpy  # noqa: F401  loads OpenBLAS, as a measured process will have

from ...cython_src.typed_text import format_bytes
from ...forkjoin import executor  # noqa: F401  loads libgomp, as a measured process will have
from ..tables.numbers import plural
from .disturbance import core_state
from .environment import collect, environment_id, gpu_details
from .fitness import UNFIT, kinds_text, verdict
from .limits import measure_machine
from .topology import format_cpu_list, placement_order


def describe_machine() -> dict:
    """Return a description of this machine: environment, environment_id, machine, gpus and verdict."""
    environment = collect()
    machine = measure_machine(environment=environment)
    return {
        "environment": environment,
        "environment_id": environment_id(environment),
        "machine": machine,
        "gpus": gpu_details(),
        "verdict": verdict(environment, machine),
    }


def format_page(result: dict) -> str:
    """Format the result of `describe_machine` for a terminal: one topic a line, then the verdict."""
    judgement = result["verdict"]
    lines = [f"{topic:<12}{text}" for topic, text in machine_topics(result).items()]
    lines += ["", f"Verdict: {judgement['level']} for measuring"]
    for reason in judgement["reasons"]:
        mark = "!" if reason["level"] == UNFIT else "-"
        lines.append(textwrap.fill(reason["reason"], 110, initial_indent=f"  {mark} ", subsequent_indent="    "))
        lines.append(textwrap.fill(reason["remedy"], 110, initial_indent="      -> ", subsequent_indent="         "))
    return "\n".join(lines)


def machine_topics(result: dict) -> dict[str, str]:
    """Return the result of `describe_machine` in words, by topic."""
    environment, machine = result["environment"], result["machine"]
    return {**_hardware(environment, result["gpus"]), **_measured(environment, machine), **_software(environment)}


def _hardware(environment: dict, gpus: list[dict]) -> dict[str, str]:
    cpu, topology, board, usable = (environment[k] for k in ("cpu", "topology", "board", "affinity"))
    memory, quota, isolated = (environment[k] for k in ("memory", "quota_cpus", "isolated"))
    # ARM's do not tell vendor and numbers in these words.
    numbers = [cpu["vendor"], cpu["family"], cpu["model_number"]]
    family = "" if None in numbers else " ({} {}/{})".format(*numbers)
    order = placement_order(topology, usable)
    listed = ", ".join(map(str, order[:16])) + (", ..." if len(order) > 16 else "")
    python = environment["python"]
    limit = "" if memory["limit_bytes"] is None else f", limit {_bytes(memory['limit_bytes'])}"
    return {
        "forktask": f"{environment['forktask']}, {python['implementation']} {python['version']}, Linux "
        f"{environment['kernel']}, {environment['libc']}; environment {environment_id(environment)}",
        "CPU": f"{_listed([board['model'], cpu['model']], 'unknown model')}{family}"
        f"{', virtual machine' if cpu['virtual_machine'] else ''}; {', '.join(environment['instruction_sets'])}",
        "Cores": f"{plural(len(topology['online']), 'logical CPU')}, {plural(topology['cores'], 'core')}"
        f"{'' if topology['known'] else ' (assumed)'}, {plural(topology['sockets'], 'socket')}, "
        f"{plural(topology['nodes'], 'NUMA node')}; may use {format_cpu_list(usable)}"
        f"{', isolated ' + isolated if isolated else ''}",
        "Pinning": f"workers go to CPUs {listed}"
        + (f"; {kinds_text(environment)}" if len(environment["core_kinds"]) > 1 else ""),
        "Limits": f"CPU quota {'none' if quota is None else f'{quota:g} CPU' + 's' * (quota != 1)}; memory "
        f"{_bytes(memory['total_bytes'])}{limit}, {_bytes(memory['available_bytes'])} available; {_swap(memory)}; "
        f"huge pages {environment['transparent_huge_pages'] or 'hidden'}",
        **({"Nodes": _nodes(environment)} if topology["nodes"] > 1 or len(environment["memory_of_nodes"]) > 1 else {}),
        "Caches": _listed(map(_cache, environment["caches"]), "hidden"),
        "GPU": "; ".join(f"{g['name']}, {g['memory.total']} MiB, driver {g['driver_version']}" for g in gpus)
        or "; ".join(environment["gpus"])
        or ("the board's own, in the processor's memory" if board["shared_gpu_memory"] else "none"),
    }


def _measured(environment: dict, machine: dict) -> dict[str, str]:
    frequency, clock, board, disturbance = (
        *(environment[k] for k in ("frequency", "clock", "board")),
        machine["disturbance"],
    )
    boost = {True: ", boost on", False: ", boost off", None: ""}[frequency["boost"]]
    memory = [f"{plural(int(n), 'thread')} {r / 1e9:.0f}" for n, r in machine["bandwidth_bytes_per_s"].items()]
    cached = [f"L{n} {rate / 1e9:.0f}" for n, rate in machine["cache_bandwidth_bytes_per_s"].items()]
    capacity = [f"{n} threads do {c:.2f} times one thread's work" for n, c in machine["capacity"].items() if n != "1"]
    heat = "hidden" if board["temperature_c"] is None else f"{board['temperature_c']:.0f} \u00b0C"
    slowed = {True: "; throttled now", False: "; not throttled", None: ""}[board["throttled"]]
    load = environment["load_average"]
    return {
        "Frequency": f"{machine['frequency_hz'] / 1e9:.2f} GHz measured on one core; "
        f"governor {frequency['governor'] or 'hidden'}{boost}",
        "Peak": f"{machine['peak_flops_per_s_1thread'] / 1e9:.1f} GFLOP/s float32 on one core "
        f"({machine['instruction_set']}, {machine['flops_per_cycle']:.0f} flops per cycle); "
        f"median {machine['median_flops_per_s_1thread'] / 1e9:.1f}",
        "Issue": _additions(machine["additions_per_cycle"], environment["cpu"]["virtual_machine"]),
        "Bandwidth": f"GB/s: memory with {', '.join(memory)}{'; one thread in ' if cached else ''}{', '.join(cached)}",
        **({"Memory": _between_nodes(pairs)} if (pairs := machine["between_nodes"]) else {}),
        "Capacity": "; ".join(capacity) or "one thread only",
        "Heat": f"processor's temperature {heat}{slowed}",
        "Energy": board["energy"],
        "Clock": f"{clock['source'] or 'source hidden'}, {clock['cost_ns']:.0f} ns per reading, "
        f"smallest step {clock['step_ns']:.0f} ns",
        "Load now": f"load average {_or_hidden(load and load[0])}, pressure "
        f"{_or_hidden(environment['pressure_some_percent'], ' %')}; during this check: "
        f"{_or_hidden(disturbance['steal_ticks'])} ticks stolen, {disturbance['nonvoluntary_switches']} times pushed "
        "off a CPU",
    }


def _between_nodes(pairs: dict[str, dict[str, float]]) -> str:
    """Return the bandwidth from the CPUs of each node to the memory of each."""
    texts = [
        f"{rate / 1e9:.0f} GB/s from node {run} to {memory}"
        for run, of_memory in pairs.items()
        for memory, rate in of_memory.items()
    ]
    return f"one thread: {'; '.join(texts)}"


def _additions(by_cpu: dict[str, float], virtual: bool | None) -> str:
    """Return how many integer additions each CPU does in a cycle, and in a virtual machine what that says of it."""
    states = {"half": " (half a core)", "whole": " (whole core)", "unknown": ""}
    texts = [
        f"{rate:.1f} on CPU {cpu}{states[core_state([rate])] if virtual else ''}"
        for cpu, rate in itertools.islice(by_cpu.items(), 16)
    ]
    return f"integer additions per cycle: {', '.join(texts)}{', ...' if len(by_cpu) > 16 else ''}"


def _software(environment: dict) -> dict[str, str]:
    build = environment["build"]
    libraries = [
        " ".join(filter(None, (x["name"], x["version"], x["architecture"], f"({plural(x['threads'], 'thread')})")))
        for x in environment["libraries"]
    ]
    return {
        "Libraries": "; ".join(libraries) or "no OpenMP or BLAS library loaded",
        "Variables": _listed((f"{v['name']}={v['value']}" for v in environment["variables"]), "none that matter"),
        "Counters": _counters(environment["perf_counters"], environment["cpu"]["virtual_machine"]),
        "Build": f"{build['compiler']} {build['compiler_version']}, {build['buildtype']} -O{build['optimization']}, "
        f"-std={build['c_std']}, OpenMP {build['openmp']}, Cython {build['cython']}",
    }


def _counters(counters: dict, virtual_machine: bool | None) -> str:
    error, paranoid = counters["error"], counters["paranoid"]
    if not error:
        return "hardware counters usable"
    if error == os.strerror(2):
        error = "this virtual machine has none" if virtual_machine else "the kernel knows no counters of this CPU"
    elif paranoid is not None and paranoid > 2:
        error = f"kernel.perf_event_paranoid is {paranoid}; set it to 2 or less"
    else:
        error += f" (perf_event_paranoid {_or_hidden(paranoid)}); a container may forbid the system call"
    return f"no hardware counters: {error}"


def _cache(cache: dict) -> str:
    kind = {"Instruction": "i", "Data": "d"}.get(cache["type"], "")
    shared = f" shared by {format_cpu_list(cache['shared_by'])}" if len(cache["shared_by"]) > 1 else ""
    return f"L{cache['level']}{kind} {_bytes(cache['size_bytes'])}{shared}"


def _nodes(environment: dict) -> str:
    """Return the CPUs and the memory of each NUMA node, and where the pages of this process lie."""
    cpus: dict[str, list[int]] = {}
    for cpu in environment["topology"]["cpus"]:
        cpus.setdefault(str(cpu["node"]), []).append(cpu["cpu"])
    texts = []
    for node in sorted({*cpus, *environment["memory_of_nodes"]}, key=int):
        memory = environment["memory_of_nodes"].get(node, {"total_bytes": None, "free_bytes": None})
        sizes = f"{_bytes(memory['total_bytes'])}, {_bytes(memory['free_bytes'])} free"
        texts.append(f"{node} has CPUs {format_cpu_list(cpus.get(node, ())) or 'none'} and {sizes}")
    own = [f"{_bytes(count)} on {node}" for node, count in environment["own_bytes_by_node"].items()]
    return f"{'; '.join(texts)}; pages of this process: {', '.join(own) or 'hidden'}"


def _swap(memory: dict) -> str:
    if memory["swap_bytes"] is None or memory["swap_free_bytes"] is None:
        return "swap hidden"
    if not memory["swap_bytes"]:
        return "no swap"
    return f"swap {_bytes(memory['swap_bytes'])}, {_bytes(memory['swap_bytes'] - memory['swap_free_bytes'])} used"


def _listed(parts: Iterable[str | None], otherwise: str) -> str:
    return ", ".join(filter(None, parts)) or otherwise


def _or_hidden(value: float | None, unit: str = "") -> str:
    return "hidden" if value is None else f"{value:g}{unit}"


def _bytes(count: int | None) -> str:
    return "hidden" if count is None else format_bytes(count)
