"""Description of this machine: hardware, measured limits, and fitness for measuring."""

from __future__ import annotations

import os
import textwrap

import numpy  # noqa: F401  loads OpenBLAS, as a measured process will have

from ...cython_src.typed_text import rounded
from ...forkjoin import executor  # noqa: F401  loads libgomp, as a measured process will have
from .environment import collect, environment_id, gpu_details
from .limits import measure_machine
from .topology import format_cpu_list, placement_order

LEVELS = ("fit", "fit with reservations", "not fit")
CLOCK_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


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


def verdict(environment: dict, machine: dict) -> dict:
    """Judge whether measurements here can be trusted, and name the remedies.

    Parameters
    ----------
    environment : dict
        Result of `environment.collect`.
    machine : dict
        Result of `limits.measure_machine`.

    Returns
    -------
    dict
        "level": the worst of the reasons' levels, "fit" if there are none; "reasons": list of
        {"level", "reason", "remedy"}, worst first.
    """
    reasons: list[dict] = []

    def add(level: str, reason: str, remedy: str) -> None:
        reasons.append({"level": level, "reason": reason, "remedy": remedy})

    _judge_cpus(environment, machine, add)
    _judge_disturbance(environment, machine, add)
    _judge_clock(environment, add)
    _judge_settings(environment, add)
    reasons.sort(key=lambda r: -LEVELS.index(r["level"]))
    return {"level": reasons[0]["level"] if reasons else "fit", "reasons": reasons}


def _judge_cpus(environment, machine, add):
    topology, usable = environment["topology"], environment["affinity"]
    cores = {c["core"] for c in topology["cpus"] if c["cpu"] in usable}
    quota = environment["quota_cpus"]
    if quota is not None and quota < len(usable):
        add(
            "not fit",
            f"the container may use {quota:g} CPUs' time but shows {len(usable)} CPUs: more threads get stopped",
            f"raise the quota to {len(usable)} CPUs or measure with at most {_plural(int(quota), 'thread')}"
            if quota >= 1
            else "raise the quota to at least one CPU",
        )
    if len(usable) == 1:
        add(
            "fit with reservations",
            "only one CPU may be used: no scaling can be seen",
            "start without taskset or in a container with more CPUs",
        )
    elif len(usable) < len(topology["online"]):
        add(
            "fit with reservations",
            f"only CPUs {format_cpu_list(usable)} of {len(topology['online'])} may be used: neighbours may sit on "
            f"the others, caches and memory are shared with them",
            "start without taskset, or keep the other CPUs idle",
        )
    if not topology["known"]:
        add(
            "fit with reservations",
            "the kernel hides which CPUs share a core: pinning may put two workers on one",
            "mount /sys into the container, or trust the capacity measured above",
        )
    if len({c["capacity"] for c in topology["cpus"] if c["cpu"] in usable}) > 1:
        add(
            "fit with reservations",
            f"the CPUs are of unequal speed, threads get {_kinds(environment)}: more threads means slower threads",
            f"restrict the run to equal cores: taskset -c {format_cpu_list(environment['core_kinds'][0]['cpus'])}",
        )
    capacity = machine["capacity"].get(str(len(usable)))
    if capacity is not None and len(usable) > 1:
        said = f"{len(usable)} threads deliver {capacity:.2f} times one thread's arithmetic"
        if len(cores) < len(usable):
            if capacity < 0.85 * len(usable):
                add(
                    "fit with reservations",
                    f"{said}: {len(usable)} CPUs are SMT siblings on {_plural(len(cores), 'core')}",
                    f"judge scaling up to {_plural(len(cores), 'thread')}; beyond, threads share a core",
                )
        elif capacity < 0.75 * len(usable):
            add(
                "not fit",
                f"{said}: CPUs that claim to be cores are siblings of one core, or somebody else is running",
                "ask the host for dedicated cores; quit other programs and look again",
            )
        elif capacity < 0.92 * len(usable):
            add(
                "fit with reservations",
                f"{said}: the frequency falls with more threads, or somebody else is running",
                "compare efficiency with this capacity, not with the number of threads; quit other programs",
            )
    best, median = machine["peak_flops_per_s_1thread"], machine["median_flops_per_s_1thread"]
    if median < 0.9 * best:
        add(
            "fit with reservations",
            f"the arithmetic rate of one thread wavers: median {median / 1e9:.0f} of {best / 1e9:.0f} GFLOP/s",
            "quit other programs, fix the frequency, look again",
        )


def _judge_disturbance(environment, machine, add):
    num_cpus = len(environment["topology"]["online"])
    pressure = environment["pressure_some_percent"]
    if pressure is not None and pressure > 5:
        add(
            "not fit" if pressure > 25 else "fit with reservations",
            f"threads waited for a CPU in {pressure:.0f} % of the last ten seconds (/proc/pressure/cpu)",
            "quit other programs or wait, look again",
        )
    load = environment["load_average"]
    # The load of the last minute includes the user's own preparations, such as a build.
    if load is not None and load[0] > 0.5 * num_cpus and not (pressure is not None and pressure > 5):
        add(
            "fit with reservations",
            f"the load average is {load[0]:.1f} on {num_cpus} CPUs",
            "quit other programs or wait a minute, look again",
        )
    steal = machine["disturbance"]["steal_ticks"]
    if steal is not None:
        stolen = steal / (CLOCK_TICKS_PER_S * machine["elapsed_s"] * num_cpus)
        if stolen > 0.01:
            add(
                "not fit" if stolen > 0.1 else "fit with reservations",
                f"the hypervisor gave {100 * stolen:.0f} % of the CPU time to others during this check",
                "ask for dedicated cores, or measure at another time with more repetitions",
            )
    throttled = machine["disturbance"]["throttled_us"]
    if throttled:
        add(
            "not fit",
            f"the container stood still for {throttled / 1000:.0f} ms of this check because of its quota",
            "raise the quota or use fewer threads",
        )
    if environment["board"]["throttled"] or machine["disturbance"]["thermal_throttles"]:
        add(
            "not fit",
            "heat or low voltage slows the CPUs",
            "cool the machine, give it a stronger supply or lower its frequency, look again",
        )


def _judge_clock(environment, add):
    clock = environment["clock"]
    if clock["step_ns"] > 1000:
        add(
            "not fit",
            f"the clock moves in steps of {clock['step_ns'] / 1000:.0f} us",
            "choose the clock source tsc (kernel parameter clocksource=tsc)",
        )
    elif clock["cost_ns"] > 200:
        add(
            "fit with reservations",
            f"one reading of the clock ({clock['source']}) costs {clock['cost_ns']:.0f} ns: event logs of short "
            f"blocks are distorted",
            "choose the clock source tsc (kernel parameter clocksource=tsc)",
        )


def _judge_settings(environment, add):
    build = environment["build"]
    if build["optimization"] not in ("2", "3") or build["sanitize"] != "none":
        add(
            "not fit",
            f"this copy was built with optimisation {build['optimization']} and sanitizer {build['sanitize']}",
            "install a release build: pip install .",
        )
    for variable in environment["variables"]:
        name, said = variable["name"], f"{variable['name']}={variable['value']}: {variable['effect']}"
        if variable["kind"] in ("cripples", "placement"):
            add(
                "fit with reservations",
                said,
                f"unset {name}: forktask keeps it from its measuring processes, your own scripts get it",
            )
        elif variable["kind"] == "kernels":
            add("fit with reservations", said, f"unset {name}, unless it is what you study")
    runtimes = sorted({x["file"] for x in environment["libraries"] if x["kind"] == "openmp"})
    if len(runtimes) > 1:
        add(
            "fit with reservations",
            f"several OpenMP runtimes in one process ({', '.join(runtimes)}): idle threads of "
            f"one spin while another works",
            "let all libraries use one, or import them in separate processes",
        )
    if os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR):
        add(
            "fit with reservations",
            "this process runs under a real-time policy: threads that spin keep all others of their CPUs waiting",
            "start without chrt, or leave a CPU free: one thread fewer than CPUs",
        )
    governor = environment["frequency"]["governor"]
    if governor not in (None, "performance"):
        add(
            "fit with reservations",
            f"the frequency governor is {governor!r}: clock rate depends on recent load",
            "cpupower frequency-set -g performance",
        )
    if environment["numa_balancing"] and environment["topology"]["nodes"] > 1:
        add(
            "fit with reservations",
            "automatic NUMA balancing moves pages during runs",
            "sysctl kernel.numa_balancing=0",
        )


def format_page(found: dict) -> str:
    """Format the result of `describe_machine` for a terminal: one topic a line, then the verdict."""
    environment, machine, gpus, judgement = (found[k] for k in ("environment", "machine", "gpus", "verdict"))
    lines = [f"{label:<12}{text}" for label, text in _page_rows(environment, machine, gpus)]
    lines += ["", f"Verdict: {judgement['level']} for measuring"]
    for reason in judgement["reasons"]:
        mark = "!" if reason["level"] == "not fit" else "-"
        lines.append(textwrap.fill(reason["reason"], 110, initial_indent=f"  {mark} ", subsequent_indent="    "))
        lines.append(textwrap.fill(reason["remedy"], 110, initial_indent="      -> ", subsequent_indent="         "))
    return "\n".join(lines)


def _page_rows(environment, machine, gpus):
    cpu, topology, frequency = environment["cpu"], environment["topology"], environment["frequency"]
    board, usable = environment["board"], environment["affinity"]
    yield (
        "forktask",
        (
            f"{environment['forktask']}, {environment['python']['implementation']} {environment['python']['version']}, "
            f"Linux {environment['kernel']}, {environment['libc']}; environment {environment_id(environment)}"
        ),
    )
    yield (
        "CPU",
        (
            f"{', '.join(filter(None, (board['model'], cpu['model']))) or 'unknown model'}"
            f"{_family(cpu)}"
            f"{', virtual machine' if cpu['virtual_machine'] else ''}; {', '.join(environment['instruction_sets'])}"
        ),
    )
    yield (
        "Cores",
        (
            f"{len(topology['online'])} logical CPUs, {topology['cores']} cores"
            f"{'' if topology['known'] else ' (assumed)'}, {_plural(topology['sockets'], 'socket')}, "
            f"{_plural(topology['nodes'], 'NUMA node')}; may use {format_cpu_list(usable)}"
            f"{', isolated ' + environment['isolated'] if environment['isolated'] else ''}"
        ),
    )
    order = placement_order(topology, usable)
    kinds = f"; {_kinds(environment)}" if len(environment["core_kinds"]) > 1 else ""
    yield (
        "Pinning",
        "workers go to CPUs " + ", ".join(map(str, order[:16])) + (", ..." if len(order) > 16 else "") + kinds,
    )
    quota, memory = environment["quota_cpus"], environment["memory"]
    yield (
        "Limits",
        (
            f"CPU quota {'none' if quota is None else f'{quota:g} CPUs'}; memory {_bytes(memory['total_bytes'])}, "
            f"{_bytes(memory['available_bytes'])} available; {_swap(memory)}; "
            f"huge pages {environment['transparent_huge_pages'] or 'hidden'}"
        ),
    )
    yield (
        "Caches",
        ", ".join(
            f"L{c['level']}{'i' if c['type'] == 'Instruction' else 'd' if c['type'] == 'Data' else ''} "
            f"{_bytes(c['size_bytes'])}"
            f"{' shared by ' + format_cpu_list(c['shared_by']) if len(c['shared_by']) > 1 else ''}"
            for c in environment["caches"]
        )
        or "hidden",
    )
    boost = {True: ", boost on", False: ", boost off", None: ""}[frequency["boost"]]
    yield (
        "Frequency",
        f"{machine['frequency_hz'] / 1e9:.2f} GHz measured on one core; "
        f"governor {frequency['governor'] or 'hidden'}{boost}",
    )
    yield (
        "Peak",
        f"{machine['peak_flops_per_s_1thread'] / 1e9:.1f} GFLOP/s float32 on one core ({machine['instruction_set']}, "
        f"{machine['flops_per_cycle']:.0f} flops a cycle); median {machine['median_flops_per_s_1thread'] / 1e9:.1f}",
    )
    bandwidth = ", ".join(
        f"{_plural(int(n), 'thread')} {rate / 1e9:.0f}" for n, rate in machine["bandwidth_bytes_per_s"].items()
    )
    cached = "".join(f", L{n} {rate / 1e9:.0f}" for n, rate in machine["cache_bandwidth_bytes_per_s"].items())
    yield "Bandwidth", f"GB/s: memory with {bandwidth}; one thread in{cached[1:]}" if cached else f"GB/s: {bandwidth}"
    yield (
        "Capacity",
        "; ".join(f"{n} threads do {c:.2f} times one thread's work" for n, c in machine["capacity"].items() if n != "1")
        or "one thread only",
    )
    heat = "hidden" if board["temperature_c"] is None else f"{board['temperature_c']:.0f} \u00b0C"
    slowed = {True: "; throttled now", False: "; not throttled", None: ""}[board["throttled"]]
    yield "Heat", f"processor's temperature {heat}{slowed}"
    yield "Energy", board["energy"]
    clock = environment["clock"]
    source = clock["source"] or "source hidden"
    yield "Clock", f"{source}, {clock['cost_ns']:.0f} ns a reading, smallest step {clock['step_ns']:.0f} ns"
    yield (
        "Libraries",
        "; ".join(
            " ".join(filter(None, (x["name"], x["version"], x["architecture"], f"({_plural(x['threads'], 'thread')})")))
            for x in environment["libraries"]
        )
        or "no OpenMP or BLAS library loaded",
    )
    yield "Variables", ", ".join(f"{v['name']}={v['value']}" for v in environment["variables"]) or "none that matter"
    yield "Waiting", environment["spin_policy"]
    flushed = environment["denormals"]["results_flushed"] and environment["denormals"]["operands_flushed"]
    yield (
        "Denormals",
        (f"{'flushed' if flushed else 'kept'} on this thread; every executor flushes them on every thread (FTZ, DAZ)"),
    )
    counters = environment["perf_counters"]
    yield (
        "Counters",
        (
            "hardware counters usable"
            if counters["error"] is None
            else f"no hardware counters: {_why_no_counters(counters, cpu['virtual_machine'])}"
        ),
    )
    yield (
        "GPU",
        "; ".join(f"{g['name']}, {g['memory.total']} MiB, driver {g['driver_version']}" for g in gpus)
        or "; ".join(environment["gpus"])
        or ("the board's own, in the processor's memory" if board["shared_gpu_memory"] else "none"),
    )
    build = environment["build"]
    yield (
        "Build",
        (
            f"{build['compiler']} {build['compiler_version']}, {build['buildtype']} -O{build['optimization']}, "
            f"-std={build['c_std']}, OpenMP {build['openmp']}, Cython {build['cython']}"
        ),
    )
    disturbance = machine["disturbance"]
    yield (
        "Load now",
        (
            f"load average {_or_hidden(environment['load_average'] and environment['load_average'][0])}, pressure "
            f"{_or_hidden(environment['pressure_some_percent'], ' %')}; during this check: "
            f"{_or_hidden(disturbance['steal_ticks'])} ticks stolen, "
            f"{disturbance['nonvoluntary_switches']} times pushed off a CPU"
        ),
    )


def _why_no_counters(counters, virtual_machine):
    paranoid = counters["paranoid"]
    if counters["error"] == os.strerror(2):
        return "this virtual machine has none" if virtual_machine else "the kernel knows no counters of this CPU"
    if paranoid is not None and paranoid > 2:
        return f"kernel.perf_event_paranoid is {paranoid}; set it to 2 or less"
    return f"{counters['error']} (perf_event_paranoid {_or_hidden(paranoid)}); a container may forbid the system call"


def _kinds(environment) -> str:
    return ", then ".join(kind["text"] for kind in environment["core_kinds"])


def _swap(memory) -> str:
    if not memory["swap_bytes"]:
        return "swap hidden" if memory["swap_bytes"] is None else "no swap"
    return f"swap {_bytes(memory['swap_bytes'])}, {_bytes(memory['swap_bytes'] - memory['swap_free_bytes'])} used"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _family(cpu) -> str:
    """Vendor and numbers of the CPU, which ARM's do not tell in these words."""
    known = (cpu["vendor"], cpu["family"], cpu["model_number"])
    return "" if None in known else " ({} {}/{})".format(*known)


def _or_hidden(value, unit: str = "") -> str:
    return "hidden" if value is None else f"{value:g}{unit}"


def _bytes(count: int | None) -> str:
    """Format a size in the largest binary unit that leaves a number of at least one: 33554432 is "32 MiB"."""
    if count is None:
        return "hidden"
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit:
            return f"{rounded(count / unit, zeros=False)} {name}"
    return f"{count} B"
