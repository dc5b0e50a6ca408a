"""The machine's measured limits: peak arithmetic, bandwidth and capacity of threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial

from ...cython_src.errors import MachineError
from ..tables.progress import say
from . import machine_peaks
from .disturbance import Disturbance
from .environment import collect, this_node
from .numa import FIRST_TOUCH, NODE0, memory_nodes, set_memory_policy
from .topology import available_cpus, core_counts, cpu_order, topology_of


def working_set(environment: dict) -> int:
    """Return bytes that no cache holds, and that are free."""
    wanted = max(4 * environment["last_level_cache_bytes"], 64 << 20)
    free = environment["memory"]["available_bytes"]
    return wanted if free is None else min(wanted, free // 4)


Order = Callable[[int], list[int]]  # CPUs, from a number of threads
DEFAULT_ORDER = partial(cpu_order, oversubscribe=True)


def measure_capacity(threads: Iterable[int], order: Order = DEFAULT_ORDER, seconds: float = 0.1) -> dict[str, float]:
    """Return the arithmetic of threads together over that of one, by thread count; see `measure_machine`.

    Virtual machines and clocks move, so a sweep measures it before the first repetition and in each one.
    """
    return _by_threads(threads, lambda n: 1.0 if n == 1 else machine_peaks.measure_capacity(n, seconds, order(n)))


def _by_threads(threads: Iterable[int], measure: Callable[[int], float]) -> dict[str, float]:
    """Return measurements by thread count, omitting counts that this process cannot start."""
    result = {}
    for n in threads:
        with suppress(MachineError):  # samples on this count fail too, and say why
            result[str(n)] = measure(n)
    return result


def _measure_between_nodes(seconds: float, array_bytes: int) -> dict[str, dict[str, float]]:
    """Return the bandwidth of one thread by the node that it runs on, then by the node of its memory; nothing of a
    single node, whose pages take seconds to touch and tell no more than the bandwidth of one thread."""
    nodes, cpus, result = memory_nodes(), {}, {}
    if len(nodes) < 2:
        return {}
    for each in topology_of(available_cpus())["cpus"]:
        cpus.setdefault(each["node"], each["cpu"])
    for run in nodes:
        for memory in nodes:
            if refused := set_memory_policy(NODE0, [memory, *nodes][: len(nodes)]):
                say(f"memory of single nodes was not measured: {refused}")
                return {}
            rate = machine_peaks.measure_bandwidth(1, seconds, array_bytes, [cpus[run]])
            result.setdefault(str(run), {})[str(memory)] = rate
    set_memory_policy(FIRST_TOUCH, nodes)
    return result


def measure_machine(environment: dict | None = None, seconds: float = 0.1, order: Order = DEFAULT_ORDER) -> dict:
    """Measure the machine's limits, for the row `machine` of a samples file. `environment`: result of `collect`, if at
    hand; `seconds`: duration of each single measurement, one of the peak, one of bandwidth and capacity for each thread
    count; `order`: number of threads -> their CPUs."""
    environment = collect() if environment is None else environment
    threads = core_counts(siblings=True)
    disturbance = Disturbance()
    before = disturbance.read()
    start = time.perf_counter()
    first = order(1)[0]
    peak = machine_peaks.measure_peak_flops(seconds, None, first)
    array_bytes = working_set(environment)
    bandwidth = _by_threads(threads, lambda n: machine_peaks.measure_memory(n, seconds, array_bytes, order(n)))
    cache_bandwidth = {
        str(cache["level"]): machine_peaks.measure_bandwidth(1, seconds / 4, cache["size_bytes"] // 2, [first])
        for cache in environment["caches"]
        if cache["type"] != "Instruction" and cache["size_bytes"] <= array_bytes
    }
    capacity = measure_capacity(threads, order, seconds)
    between = _measure_between_nodes(seconds / 2, array_bytes)
    cpus = sorted({cpu for cpu in order(max(threads)) if cpu is not None})
    additions = {str(cpu): machine_peaks.measure_additions(seconds / 5, cpu) for cpu in cpus}
    return {
        "node": this_node(),
        "instruction_set": peak["instruction_set"],
        "peak_flops_per_s_1thread": peak["flops_per_s"],
        "median_flops_per_s_1thread": peak["median_flops_per_s"],
        "frequency_hz": peak["frequency_hz"],
        "flops_per_cycle": peak["flops_per_cycle"],
        "additions_per_cycle": additions,
        "bandwidth_bytes_per_s": bandwidth,
        "cache_bandwidth_bytes_per_s": cache_bandwidth,
        "between_nodes": between,
        "capacity": capacity,
        "capacity_beside": {},
        "disturbance": disturbance.since(before),
        "elapsed_s": time.perf_counter() - start,
    }
