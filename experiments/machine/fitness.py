"""Whether this machine is fit for measuring, with a remedy for each reason against it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from ...cython_src.typed_text import format_bytes
from ..tables.numbers import plural
from .limits import working_set
from .topology import format_cpu_list

FIT, RESERVED, UNFIT = LEVELS = ("fit", "fit with reservations", "not fit")
CLOCK_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
QUIT = "quit other programs or wait a minute, look again"
UNEQUAL = "compare efficiency with the capacity measured above, not with the number of threads"

Reason = tuple[str, str, str]  # level, reason, remedy


def verdict(environment: dict, machine: dict) -> dict:
    """Judge whether measurements here can be trusted, from what `collect` and `measure_machine` return.

    Returns
    -------
    dict
        "level": the worst of the reasons' levels, "fit" if there are none; "reasons": list of
        {"level", "reason", "remedy"}, worst first.
    """
    result = [
        *_of_cpus(environment),
        *_of_capacity(environment, machine),
        *_of_disturbance(environment, machine),
        *_of_clock(environment["clock"]),
        *_of_settings(environment),
    ]
    result.sort(key=lambda reason: -LEVELS.index(reason[0]))
    reasons = [dict(zip(("level", "reason", "remedy"), reason, strict=True)) for reason in result]
    return {"level": result[0][0] if result else FIT, "reasons": reasons}


def verdict_text(judgement: Mapping) -> str:
    """Return a verdict in a sentence, with its worst reason and the remedy."""
    text, reasons = f"this machine is {judgement['level']} for measuring", judgement["reasons"]
    if not reasons:
        return text
    others = f" ({plural(len(reasons) - 1, 'reason')} more: forktask info)" if len(reasons) > 1 else ""
    return f"{text}: {reasons[0]['reason']}; {reasons[0]['remedy']}{others}"


def _of_cpus(environment: dict) -> Iterator[Reason]:
    topology, usable, quota = environment["topology"], environment["affinity"], environment["quota_cpus"]
    placing = (f"{v['name']}={v['value']}" for v in environment["variables"] if v["kind"] == "placement")
    pinned_by = " and ".join(("taskset", *placing))
    if quota is not None and quota < len(usable):
        share = f"the time of {quota:g} CPU{'s' * (quota != 1)}"
        text = f"the container may use {share} but shows {len(usable)}: more threads get stopped"
        fewer = f" or measure with at most {plural(int(quota), 'thread')}" if quota >= 1 else ""
        yield UNFIT, text, f"raise the quota to {plural(len(usable), 'CPU')}{fewer}"
    if len(usable) == 1:
        remedy = f"start without {pinned_by} or in a container with more CPUs"
        yield RESERVED, "only one CPU may be used: no scaling can be seen", remedy
    elif len(usable) < len(topology["online"]):
        text = (
            f"only CPUs {format_cpu_list(usable)} of {len(topology['online'])} may be used: other jobs may run on the "
            "others, caches and memory are shared with them"
        )
        yield RESERVED, text, f"start without {pinned_by}, or keep the other CPUs idle"
    if not topology["known"]:
        text = "the kernel hides which CPUs share a core: pinning may put two workers on one"
        yield RESERVED, text, "mount /sys into the container, or trust the capacity measured above"
    if len({c["kind"] for c in topology["cpus"] if c["cpu"] in usable}) > 1:
        text = f"the CPUs are of unequal speed, threads get {kinds_text(environment)}: more threads means slower ones"
        equal = next((kind["cpus"] for kind in environment["core_kinds"] if len(kind["cpus"]) > 1), None)
        remedy = f"restrict the run to equal cores: taskset -c {format_cpu_list(equal)}" if equal else UNEQUAL
        yield RESERVED, text, remedy


def _of_capacity(environment: dict, machine: dict) -> Iterator[Reason]:
    usable = environment["affinity"]
    cores = {c["core"] for c in environment["topology"]["cpus"] if c["cpu"] in usable}
    capacity = machine["capacity"].get(str(len(usable)))
    if capacity is not None and len(usable) > 1:
        share = capacity / len(usable)
        text = f"{len(usable)} threads deliver {capacity:.2f} times one thread's arithmetic"
        if len(cores) < len(usable):
            if share < 0.85:
                text += f": {len(usable)} CPUs are SMT siblings on {plural(len(cores), 'core')}"
                remedy = f"judge scaling up to {plural(len(cores), 'thread')}; beyond, threads share a core"
                yield RESERVED, text, remedy
        elif share < 0.75:
            text += ": CPUs that claim to be cores are siblings of one core, or competing processes are running"
            yield UNFIT, text, "ask the host for dedicated cores; quit other programs and look again"
        elif share < 0.92:
            text += ": the frequency falls with more threads, or competing processes are running"
            remedy = "compare efficiency with this capacity, not with the number of threads; quit other programs"
            yield RESERVED, text, remedy
    caches = environment["last_level_cache_bytes"]
    if working_set(environment) < caches:
        text = f"little memory is free: arrays that measure bandwidth fit into the caches ({format_bytes(caches)})"
        yield RESERVED, text, "raise the memory limit of the container or job, or quit other programs; look again"
    best, median = machine["peak_flops_per_s_1thread"], machine["median_flops_per_s_1thread"]
    if median < 0.9 * best:
        rates = f"median {median / 1e9:.0f} of {best / 1e9:.0f} GFLOP/s"
        text = f"the arithmetic rate of one thread wavers: {rates}"
        yield RESERVED, text, "quit other programs, fix the frequency, look again"


def _of_disturbance(environment: dict, machine: dict) -> Iterator[Reason]:
    num_cpus, disturbance = len(environment["topology"]["online"]), machine["disturbance"]
    pressure, load = environment["pressure_some_percent"], environment["load_average"]
    if disturbance["throttled_us"]:
        still = f"{disturbance['throttled_us'] / 1000:.0f} ms"
        text = f"the container was stopped for {still} of this check because of its quota"
        yield UNFIT, text, "raise the quota or use fewer threads"
    if pressure is not None and pressure > 5:
        text = f"threads waited for a CPU in {pressure:.0f} % of the last ten seconds (/proc/pressure/cpu)"
        yield UNFIT if pressure > 25 else RESERVED, text, QUIT
    # The load of the last minute includes the user's own preparations, such as a build.
    elif load is not None and load[0] > 0.5 * num_cpus:
        yield RESERVED, f"the load average is {load[0]:.1f} on {num_cpus} CPUs", QUIT
    stolen = (disturbance["steal_ticks"] or 0) / (CLOCK_TICKS_PER_S * machine["elapsed_s"] * num_cpus)
    if stolen > 0.01:
        text = f"the hypervisor gave {100 * stolen:.0f} % of the CPU time to others during this check"
        remedy = "ask for dedicated cores, or measure at another time with more generations"
        yield UNFIT if stolen > 0.1 else RESERVED, text, remedy
    if environment["board"]["throttled"] or disturbance["thermal_throttles"]:
        remedy = "cool the machine, give it a stronger supply or lower its frequency, look again"
        yield UNFIT, "heat or low voltage slows the CPUs", remedy


def _of_clock(clock: dict) -> Iterator[Reason]:
    remedy = "choose the clock source tsc (kernel parameter clocksource=tsc)"
    if clock["step_ns"] > 1000:
        yield UNFIT, f"the clock moves in steps of {clock['step_ns'] / 1000:.0f} µs", remedy
    elif clock["cost_ns"] > 200:
        cost = f"one reading of the clock ({clock['source']}) costs {clock['cost_ns']:.0f} ns"
        yield RESERVED, f"{cost}: event logs of short blocks are distorted", remedy


def _of_settings(environment: dict) -> Iterator[Reason]:
    build = environment["build"]
    if build["optimization"] not in ("2", "3") or build["sanitize"] != "none":
        text = f"this copy was built with optimization {build['optimization']} and sanitizer {build['sanitize']}"
        yield UNFIT, text, "install a release build: pip install ."
    remedies = dict.fromkeys(
        ("cripples", "placement"), "forktask keeps it from its measuring processes, your own scripts get it"
    )
    remedies["kernels"] = "unless it is what you study"
    for variable in environment["variables"]:
        if variable["kind"] in remedies:
            text = f"{variable['name']}={variable['value']}: {variable['effect']}"
            yield RESERVED, text, f"unset {variable['name']}: {remedies[variable['kind']]}"
    runtimes = sorted({x["file"] for x in environment["libraries"] if x["kind"] == "openmp"})
    if len(runtimes) > 1:
        listed = f"several OpenMP runtimes in one process ({', '.join(runtimes)})"
        remedy = "let all libraries use one, or import them in separate processes"
        yield RESERVED, f"{listed}: idle threads of one spin while another works", remedy
    if os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR):
        text = "this process runs under a real-time policy: threads that spin keep all others of their CPUs waiting"
        yield RESERVED, text, "start without chrt, or leave a CPU free: one thread fewer than CPUs"
    governor = environment["frequency"]["governor"]
    if governor not in (None, "performance"):
        text = f"the frequency governor is {governor!r}: clock rate depends on recent load"
        yield RESERVED, text, "cpupower frequency-set -g performance"
    if environment["numa_balancing"] and environment["topology"]["nodes"] > 1:
        yield RESERVED, "automatic NUMA balancing moves pages during runs", "sysctl kernel.numa_balancing=0"


def kinds_text(environment: dict) -> str:
    """Return the kinds of cores in the order in which threads get them."""
    return ", then ".join(kind["text"] for kind in environment["core_kinds"])
