"""Measuring process: measure one configuration once.

    python -P -m forktask.experiments.sampling.measure < job.json

reads a job and answers as `child.py` says; the row is a sample, a profile or a trace. A fresh process for each model
keeps what it leaves behind (threads that still spin, a warm heap, an OpenMP team) out of the others' times. Imports
nothing heavy: NumPy and the extensions.

A job has the keys `model` (spec), `threads`, `cpus` (list or null), `plan` (keyword arguments of `lower`, or the
user's own function, see `subject.py`), `seed`, `check_iterations`, `warmup_s` and `kind` ("sample", "profile" or
"trace"); a sample `turn_s`, the others `target_s`. A sample with `profile` says its row and measures a profile when it
is told to go on.

What happens in a sample, in this order: plan, memory and data; then, after the process was told to go on, since all
that follows is timed: record and close on their own (for models that record a graph); `prepare`; the first replay; more
iterations up to `check_iterations`, then a hash of all parameters and of the losses so far, which must be the same for
every model, thread count and schedule; warm-up until stationary; turns, as often as asked for; at the end the clock
frequency, and the BLAS and OpenMP libraries that were loaded.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict, replace
from statistics import median
from typing import Any

from ...cython_src.errors import UsageError
from ...cython_src.plan.dependences import record_graph
from ..machine import machine_peaks
from ..machine.disturbance import Disturbance, peak_resident_bytes, read_clocks_hz, read_temperature_c, resident_bytes
from ..machine.energy import EnergyMeter
from ..machine.environment import loaded_libraries
from ..machine.numa import pages_of
from ..machine.perf_counters import PerfCounters
from ..subjects.calls import label
from ..subjects.memory import graph_bytes
from ..subjects.models import make_executor
from ..subjects.subject import answer, build, result_hashes
from .child import answer_job
from .gpu_profile import describe_gpu, measure_gpu_profile
from .profile import measure_profile
from .timing import GPU_UNTIMED_S, Stepper, take_turns, warm_up
from .trace import measure_trace

FREQUENCY_S = 0.01  # duration of the frequency measurement after the timed runs
CHANGED = (
    "must return the same at each call, and later calls returned something else; let it compute from the same data "
    "each time, or do not compare what is returned"
)


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


def _check_libraries(libraries: Sequence[Mapping[str, Any]], spec, threads: int) -> None:
    """Raise where a library has more threads than it should: in blocks, or in a function of the user's."""
    if spec.model.is_call:
        if over := [library["name"] for library in libraries if library["threads"] > threads]:
            raise UsageError(
                f"a function must use the {threads} threads that are asked for, and {', '.join(over)} has more; leave "
                f"their number to the environment, or take it as the argument threads"
            )
        return
    busy_blas = [library["name"] for library in libraries if library["kind"] == "blas" and library["threads"] != 1]
    if busy_blas and not spec.is_peer:
        raise RuntimeError(f"BLAS must run on one thread inside blocks, {', '.join(busy_blas)} runs on more")


class Observed:
    """What the machine does in the turns of a process, summed over them; a context manager for each.

    Attributes
    ----------
    clocks_hz : list of float
        Of a GPU, at the end of each turn.
    """

    def __init__(self, counters: PerfCounters, gpu=None, cpus: Sequence[int] = ()):
        self._disturbance, self._energy, self._counters = Disturbance(), EnergyMeter(), counters
        self._gpu, self.clocks_hz = gpu, []
        self._cpus, self._core_clocks_hz = cpus, {}
        self._counts: dict[str, float | None] = dict.fromkeys(Disturbance.FIELDS, 0)
        self._used = {"timed_wall_s": 0.0, "timed_cpu_s": 0.0, "page_faults": 0}

    def __enter__(self) -> None:
        self._before, self._then = self._disturbance.read(), self._now()
        self._energy.__enter__()
        self._counters.start()

    def __exit__(self, *_) -> None:
        self._counters.stop()
        self._energy.__exit__()
        now = self._now()
        if self._gpu is not None and (clock_hz := self._gpu.clock_hz()):
            self.clocks_hz.append(clock_hz)
        self._used = {name: self._used[name] + now[name] - self._then[name] for name in now}
        for cpu, clock_hz in read_clocks_hz(self._cpus).items():
            self._core_clocks_hz.setdefault(cpu, []).append(clock_hz)
        for name, count in self._disturbance.since(self._before).items():
            before = self._counts[name]
            self._counts[name] = None if count is None or before is None else before + count

    def _now(self) -> dict[str, float]:
        usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        cpu_s = sum(usage.ru_utime + usage.ru_stime for usage in usages)
        page_faults = sum(usage.ru_minflt for usage in usages)
        return {"timed_wall_s": time.perf_counter(), "timed_cpu_s": cpu_s, "page_faults": page_faults}

    def part(self, steps: int) -> dict[str, Any]:
        """Return the part of the row on all turns, of `steps` steps together."""
        return {
            "num_steps": steps,
            "disturbance": self._counts,
            "temperature_c": read_temperature_c(),
            "core_clocks_hz": {cpu: median(clocks) for cpu, clocks in self._core_clocks_hz.items()},
            "energy": self._energy.result(steps),
            "counters": {**self._counters.read(), "error": self._counters.error},
            **self._used,
        }


def measure_sample(job: Mapping[str, Any], bound=None) -> Generator[dict[str, Any], Any, dict[str, Any]]:
    """Measure one configuration, interleaved with others. See the module's docstring for the steps. `bound`: used in
    place of the job's plan."""
    spec = job["model"]
    started, libraries_bytes = time.time(), resident_bytes()
    bound = build(job, spec) if bound is None else bound
    yield {}
    rtol = job.get("rtol", 0.0)  # of what a function returns; None: that is not compared
    compared, exact = rtol is not None, rtol == 0.0
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
        made = [(1, first_replay_s)]
        if check_passes > 1:
            made.append((check_passes - 1, stepper.run(check_passes - 1)))
        held = compared and executor.collect()
        hashes, answered = result_hashes(bound), answer(bound, stepper.iterations_done) if held else []
        _check_finite(hashes, stepper)
        trains = "parameters" in bound.plan.attributes and "learning_rates" in bound.arrays
        if trains and held and hashes["weights_hash"] == untrained:
            raise ArithmeticError(f"no weight changed in {stepper.iterations_done} iterations: nothing can be checked")
        warm = warm_up(stepper, job["warmup_s"], made=made)
        conduct = None if spec.is_gpu or spec.is_peer else asdict(executor.conduct())
        observed = Observed(counters, bound.device if spec.binds_on_gpu else None, job["cpus"] or ())
        untimed_s = GPU_UNTIMED_S if spec.is_gpu else 0.0
        if hasattr(executor, "clock"):
            stepper = replace(stepper, clock=executor.clock)
        steps = yield from take_turns(stepper, warm.pass_time_s, job["turn_s"], observed, untimed_s)
        if compared:
            executor.collect()
        last = result_hashes(bound)
        _check_finite(last, stepper)
        if exact and spec.model.is_call and last["weights_hash"] != hashes["weights_hash"]:
            raise UsageError(f"{label(spec)} {CHANGED}")
        seen = observed.part(steps)
    frequency_hz = machine_peaks.measure_frequency(FREQUENCY_S, job["cpus"][0] if job["cpus"] else None)
    libraries = loaded_libraries()
    _check_libraries(libraries, spec, job["threads"])
    instruction_set = spec.name if spec.is_peer else bound.instruction_set
    if spec.model.mixes_devices:
        instruction_set = f"{instruction_set}, {spec}"
    row = {
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
        "deterministic": bound.plan.deterministic and spec.model.reproducible and exact,
        "gpu": describe_gpu(bound, observed.clocks_hz) if spec.binds_on_gpu else None,
        "conduct": conduct,
        **seen,
        "pages": pages_of(job, None if spec.is_peer else bound),
        "max_resident_bytes": peak_resident_bytes(),
        "libraries_bytes": libraries_bytes,
        "graph_bytes": graph_bytes(bound.plan, spec.model.records),
        "frequency_hz": frequency_hz,
        "libraries": libraries,
        "instruction_set": instruction_set,
        "pid": os.getpid(),
        "started": started,
    }
    if not job.get("profile"):
        return row
    yield row  # which is kept, whatever happens to the profile
    return _profile(job, bound)


def _profile(job: Mapping[str, Any], bound=None) -> dict[str, Any]:
    """Profile a model of the CPU or of a GPU."""
    return measure_gpu_profile(job, bound) if job["model"].is_gpu else measure_profile(job, bound)


def measure(job: Mapping[str, Any]):
    """Measure a sample, a trace, or a profile."""
    return {"sample": measure_sample, "trace": measure_trace, "profile": _profile}[job["kind"]](job)


if __name__ == "__main__":
    code = answer_job(measure)
    sys.stderr.flush()
    os._exit(code)  # taking the interpreter apart lasts two turns
