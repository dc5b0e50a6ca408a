"""Measuring process: measure one configuration once.

    python -P -m forktask.experiments.sampling.measure < job.json

reads a job (one JSON object) from standard input and writes one JSON object, a sample or a profile, to
standard output. A fresh process for each keeps what one model leaves behind (threads that still spin, a warm
heap, an OpenMP team) out of the others' times. Imports nothing heavy: NumPy and the extensions.

A job has the keys `model` (spec), `threads`, `cpus` (list or null), `plan` (keyword arguments of `lower`, or the
user's own function, see `subject.py`), `seed`, `check_iterations`, `target_s`, `warmup_s` and `kind`
("sample", "profile" or "trace"); a sample may have `pairs` or `least_pairs` of timed runs.

What happens in a sample, in this order: plan, memory and data; record and close on their own (for models that
record a graph); `prepare`; the first replay; more iterations up to `check_iterations`, then a hash of all
parameters and of the losses so far, which must be the same for every model, thread count and schedule;
warm-up until stationary; timed runs; the clock frequency right after them, and the BLAS and OpenMP libraries
that were loaded.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ...cython_src.plan.dependences import record_graph
from ..machine import machine_peaks
from ..machine.disturbance import Disturbance
from ..machine.energy import EnergyMeter
from ..machine.environment import loaded_libraries
from ..machine.heat import read_temperature_c
from ..machine.perf_counters import PerfCounters
from .child import answer_job
from .gpu_profile import describe_gpu, measure_gpu_profile
from .measured_memory import peak_resident_bytes, resident_bytes
from .memory import graph_bytes
from .models import make_executor, parse_model
from .profile import measure_profile
from .subject import answer, build, result_hashes
from .timing import LEAST_PAIRS, Stepper, time_runs, warm_up
from .trace import measure_trace

FREQUENCY_S = 0.01  # duration of the frequency measurement after the timed runs


def record_costs(plan, model) -> dict[str, float | None]:
    """Time recording a plan's task graph and closing it over iterations; None for a model that does not do so.

    Closing registers the plan a second time, so its cost is the difference of both. Each is the shortest of
    up to three tries, which leaves out the first use of the memory allocator.
    """
    if not model.records:
        return {"record_s": None, "close_s": None}

    def shortest(closed: bool) -> float:
        times: list[float] = []
        while not times or (len(times) < 3 and sum(times) < 0.1):
            start = time.perf_counter()
            record_graph(plan.accesses, closed=closed)
            times.append(time.perf_counter() - start)
        return min(times)

    record_s = shortest(False)
    return {"record_s": record_s, "close_s": max(shortest(True) - record_s, 0.0) if model.closes else None}


def _check_finite(hashes: Mapping[str, Any], stepper: Stepper) -> None:
    if not hashes["finite"]:
        raise ArithmeticError(f"weights or losses are not finite after {stepper.iterations_done} iterations")


def _time_observed(job: Mapping[str, Any], stepper: Stepper, counters: PerfCounters, pass_time_s: float):
    """Time runs; return them, and the part of the row that says what the machine did meanwhile."""
    disturbance, energy = Disturbance(), EnergyMeter()
    before, usage, wall = disturbance.read(), resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    counters.start()
    with energy:
        least_pairs = job.get("least_pairs", LEAST_PAIRS)
        timed = time_runs(stepper, pass_time_s, job["target_s"], job.get("pairs"), least_pairs)
    counters.stop()
    wall = time.perf_counter() - wall
    counted = {**counters.read(), "error": counters.error}
    usage_after = resource.getrusage(resource.RUSAGE_SELF)
    return timed, {
        "disturbance": disturbance.since(before),
        "temperature_c": read_temperature_c(),
        "energy": energy.result(sum(timed.run_lengths)),
        "counters": counted,
        "timed_wall_s": wall,
        "timed_cpu_s": usage_after.ru_utime + usage_after.ru_stime - usage.ru_utime - usage.ru_stime,
        "page_faults": usage_after.ru_minflt - usage.ru_minflt,
    }


def measure_sample(job: Mapping[str, Any], bound=None) -> dict[str, Any]:
    """Measure one configuration once. See the module's docstring for the steps.

    Parameters
    ----------
    job : mapping
    bound : BoundPlan, optional
        Used in place of the job's plan.
    """
    spec = parse_model(job["model"])
    started, libraries_bytes = time.time(), resident_bytes()
    bound = build(job, spec) if bound is None else bound
    stride = bound.iteration_stride
    costs = record_costs(bound.plan, spec.model)
    counters = PerfCounters()  # before the executor starts its threads, which inherit them
    executor = make_executor(spec, job["threads"], cpus=job["cpus"])
    untrained = result_hashes(bound)["weights_hash"]
    with counters, executor:
        start = time.perf_counter()
        executor.prepare(bound)
        prepare_s = time.perf_counter() - start
        stepper = Stepper(executor, stride)
        first_replay_s = stepper.run(1)
        check_passes = -(-job["check_iterations"] // stride)
        if check_passes > 1:
            stepper.run(check_passes - 1)
        hashes, answered = result_hashes(bound), answer(bound, stepper.iterations_done)
        _check_finite(hashes, stepper)
        trains = "parameters" in bound.plan.attributes and "learning_rates" in bound.arrays
        if trains and hashes["weights_hash"] == untrained:
            raise ArithmeticError(f"no weight changed in {stepper.iterations_done} iterations: nothing can be checked")
        warm = warm_up(stepper, job["warmup_s"])
        conduct = asdict(executor.conduct()) if spec.model.device == "cpu" else None
        swaps = executor.num_cpu_swaps if conduct else 0  # before the timed runs
        timed, observed = _time_observed(job, stepper, counters, warm.pass_time_s)
        swaps = executor.num_cpu_swaps - swaps if conduct else 0
        _check_finite(result_hashes(bound), stepper)
    frequency_hz = machine_peaks.measure_frequency(FREQUENCY_S, job["cpus"][0] if job["cpus"] else None)
    libraries = loaded_libraries()
    busy_blas = [library["name"] for library in libraries if library["kind"] == "blas" and library["threads"] != 1]
    if busy_blas:
        raise RuntimeError(f"BLAS must run on one thread inside blocks, {', '.join(busy_blas)} runs on more")
    return {
        "step_time_s": timed.step_time_s,
        "fill_time_s": timed.fill_time_s,
        "run_lengths": timed.run_lengths,
        "run_times_s": timed.run_times_s,
        "warmup_lengths": [n * stride for n in warm.passes],
        "warmup_times_s": warm.times_s,
        "stationary": warm.stationary,
        "prepare_s": prepare_s,
        **costs,
        "first_replay_s": first_replay_s,
        "check_iterations": check_passes * stride,
        "weights_hash": hashes["weights_hash"],
        "losses_hash": hashes["losses_hash"],
        "answer": answered,
        "deterministic": bound.plan.deterministic and spec.model.reproducible,
        "gpu": describe_gpu(bound) if spec.model.device == "gpu" else None,
        "conduct": conduct,
        "cpu_swaps": swaps,
        **observed,
        "max_resident_bytes": peak_resident_bytes(),
        "libraries_bytes": libraries_bytes,
        "graph_bytes": graph_bytes(bound.plan, spec.model.records),
        "frequency_hz": frequency_hz,
        "libraries": libraries,
        "instruction_set": f"{bound.instruction_set}, {spec}" if spec.model.mixes_devices else bound.instruction_set,
        "pid": os.getpid(),
        "started": started,
    }


def measure(job: Mapping[str, Any]) -> dict[str, Any]:
    """Measure a sample, a trace, or a profile of a model of the CPU or of a GPU."""
    if job["kind"] == "sample":
        return measure_sample(job)
    if job["kind"] == "trace":
        return measure_trace(job)
    on_gpu = parse_model(job["model"]).model.device == "gpu"
    return measure_gpu_profile(job) if on_gpu else measure_profile(job)


if __name__ == "__main__":
    sys.exit(answer_job(measure))
