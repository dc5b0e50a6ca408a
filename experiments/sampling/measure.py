"""The only timing loop. One process measures one configuration once.

    python -P -m forktask.experiments.sampling.measure < job.json

reads a job (one JSON object) from standard input and writes one JSON object, a sample or a profile, to
standard output. A fresh process for each keeps what one model leaves behind (threads that still spin, a warm
heap, an OpenMP team) out of the others' times. Imports nothing heavy: NumPy and the extensions.

A job has the keys `model` (spec), `threads`, `cpus` (list or null), `plan` (keyword arguments of `lower`, or the
user's own function, see `scaling/subject.py`), `seed`, `check_iterations`, `target_s`, `warmup_s` and `kind`
("sample" or "profile"); a sample may have `slowdown`, the part by which each run is made longer.

What happens in a sample, in this order: plan, memory and data; record and close on their own (for models that
record a graph); `prepare`; the first replay; more iterations up to `check_iterations`, then a hash of all
parameters and of the losses so far, which must be the same for every model, thread count and schedule;
warm-up until stationary; timed runs; the clock frequency right after them, and the BLAS and OpenMP libraries
that were loaded.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import math
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ...cython_src.errors import UsageError
from ..machine import machine_peaks
from .environment import Disturbance, loaded_libraries, read_memory
from .memory import check_fits, parse_bytes
from .models import ModelSpec, bind_for, convolution_for, make_executor, parse_model

# Exit codes of the process; the reason is a JSON object with "failure" and "message" on standard output.
EXIT_FAILURE = 3

WARMUP_WINDOW = 8  # run times that the stationarity test looks at
WARMUP_CHUNK_S = 0.02  # shortest run that is timed during warm-up: 1000 times the clock's and the call's cost
FALLING_Z = 1.645  # one-sided 5 % of the normal distribution
MAX_ROUNDS = 3  # of timed runs, where the first ones gave no slope
FREQUENCY_S = 0.01  # how long the clock frequency is measured after the timed runs
MAX_PROFILE_EVENTS = 250_000  # 32 bytes each, for each worker
RUNTIME_COST_RUNS = 7
RUNTIME_COST_RUN_S = 0.01  # of each
EVENT_LOG_WARMUP = 3  # passes before the log counts


# --- timing
# ---------------------------------------------------------------------------------------------------------


class Stepper:
    """Runs an executor and counts the iterations done, so that each goes on where the last one ended.

    Parameters
    ----------
    executor
        Anything with `run(num_iterations, first_iteration)`.
    stride : int
        Iterations of one pass through the plan.
    clock : callable
        Seconds, monotonic.
    """

    def __init__(self, executor, stride: int = 1, clock: Callable[[], float] = time.perf_counter):
        self.executor = executor
        self.stride = stride
        self.clock = clock
        self.iterations_done = 0

    def run(self, passes: int) -> float:
        """Run `passes` passes through the plan and return how long they took, in seconds."""
        count = passes * self.stride
        start = self.clock()
        self.executor.run(count, self.iterations_done)
        elapsed = self.clock() - start
        self.iterations_done += count
        return elapsed


class Slowed:
    """An executor whose runs take a given part longer: a regression made to order, to see whether a test finds it.

    The calling thread spins at the end of each run, in proportion to how long the run took.

    Parameters
    ----------
    executor
    part : float
        0.1: a tenth longer.
    """

    def __init__(self, executor, part: float):
        self.executor = executor
        self.part = part

    def prepare(self, bound) -> None:
        self.executor.prepare(bound)

    def run(self, num_iterations: int, first_iteration: int = 0) -> None:
        start = time.perf_counter()
        self.executor.run(num_iterations, first_iteration)
        stop = time.perf_counter() + self.part * (time.perf_counter() - start)
        while time.perf_counter() < stop:
            pass

    def conduct(self):
        return self.executor.conduct()

    @property
    def num_cpu_swaps(self) -> int:
        return self.executor.num_cpu_swaps

    def __enter__(self) -> Slowed:
        return self

    def __exit__(self, *exception: object) -> None:
        self.executor.close()


def still_falling(times: Sequence[float]) -> bool:
    """Whether a series is still getting faster, by Mann and Kendall's test for a trend.

    S counts, over all pairs, those that rise minus those that fall. Without a trend S has mean 0 and variance
    n (n - 1) (2 n + 5) / 18, whatever the distribution; the series is falling if S lies below -1.645 standard
    deviations. Only order counts, so a single disturbed run does not decide.

    References
    ----------
    Mann, "Nonparametric tests against trend", Econometrica 13 (1945).
    """
    n = len(times)
    values = np.asarray(times)
    later, earlier = np.triu_indices(n, 1)[::-1]
    s = np.sign(values[later] - values[earlier]).sum()
    return bool(s < -FALLING_Z * math.sqrt(n * (n - 1) * (2 * n + 5) / 18))


@dataclass(frozen=True)
class WarmUp:
    """Runs before the timed ones.

    Attributes
    ----------
    passes : list of int
    times_s : list of float
        Of whole runs, of `passes` passes each.
    stationary : bool
        Whether the test was passed before time was up.
    """

    passes: list[int]
    times_s: list[float]
    stationary: bool

    @property
    def pass_time_s(self) -> float:
        """Time of one pass at the end of the warm-up: median of the last runs."""
        count = min(WARMUP_WINDOW, len(self.times_s))
        return float(np.median([t / n for t, n in zip(self.times_s[-count:], self.passes[-count:], strict=True)]))


def warm_up(stepper: Stepper, limit_s: float, chunk_s: float = WARMUP_CHUNK_S) -> WarmUp:
    """Run until the time of a pass no longer falls, for `limit_s` at most (two runs at least).

    The length of a run is doubled until it takes `chunk_s`; then runs of that length go on until the last
    `WARMUP_WINDOW` of them show no falling trend.
    """
    passes: list[int] = []
    times: list[float] = []
    length, spent, first_full = 1, 0.0, None
    while spent < limit_s or len(times) < 2:
        times.append(stepper.run(length))
        passes.append(length)
        spent += times[-1]
        if first_full is None:
            if times[-1] < chunk_s:
                length *= 2
                continue
            first_full = len(times) - 1
        window = times[first_full:][-WARMUP_WINDOW:]
        if len(window) == WARMUP_WINDOW and not still_falling(window):
            return WarmUp(passes, times, True)
    return WarmUp(passes, times, False)


@dataclass(frozen=True)
class Timed:
    """Timed runs of two lengths, alternating.

    Attributes
    ----------
    run_lengths : list of int
        Iterations (steps) of each run.
    run_times_s : list of float
    """

    run_lengths: list[int]
    run_times_s: list[float]

    @property
    def step_time_s(self) -> float:
        """Slope: what one more iteration costs.

        Median of (long - short) / (difference in length) over all pairs of a long and a short run (Hodges and
        Lehmann's shift estimate): a few disturbed runs do not move it.
        """
        lengths, times = np.array(self.run_lengths), np.array(self.run_times_s)
        short, long = lengths.min(), lengths.max()
        shift = np.median(np.subtract.outer(times[lengths == long], times[lengths == short]))
        return float(shift / (long - short))

    @property
    def fill_time_s(self) -> float:
        """Intercept: what a run costs whatever its length, the filling and draining of a pipeline included."""
        lengths, times = np.array(self.run_lengths), np.array(self.run_times_s)
        short = lengths.min()
        return float(np.median(times[lengths == short]) - short * self.step_time_s)


def run_lengths_for(pass_time_s: float, target_s: float, pairs: int | None = None) -> tuple[int, int, int]:
    """(short, long, pairs): run lengths in passes and how many of each, to last about `target_s` together.

    The long run is four times the short one where steps are short enough; at least three pairs, at most 15, unless
    `pairs` says how many.
    """
    budget = target_s / max(pass_time_s, 1e-9)  # passes
    pairs = int(min(max(budget / 15, 3), 15)) if pairs is None else pairs
    short = max(1, int(budget / pairs / 5))
    long = max(short + 1, min(4 * short, int(budget / pairs) - short))
    return short, long, pairs


def time_runs(stepper: Stepper, pass_time_s: float, target_s: float, pairs: int | None = None) -> Timed:
    """Alternate short and long runs as A B B A, so that a slow drift cancels.

    Where long runs did not take longer than short ones, disturbances were larger than what is measured: the same is
    done again and added, up to `MAX_ROUNDS` times in all.
    """
    short, long, pairs = run_lengths_for(pass_time_s, target_s, pairs)
    lengths: list[int] = []
    times: list[float] = []
    for _ in range(MAX_ROUNDS):
        for pair in range(pairs):
            for passes in (short, long) if pair % 2 == 0 else (long, short):
                times.append(stepper.run(passes))
                lengths.append(passes * stepper.stride)
        timed = Timed(lengths, times)
        if timed.step_time_s > 0:
            break
    return timed


# --- what is measured
# -----------------------------------------------------------------------------------------------


def hash_arrays(arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 over the bytes of arrays in the order of their names; shapes and dtypes count."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.shape} {array.dtype.str};".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


DATASET_BATCHES = 8  # different batches that take turns, as long as there are no more than DATASET_IMAGES images
DATASET_IMAGES = 4096
LEARNING_RATE = 1e-3


def fill_dataset(bound, seed: int) -> None:
    """Deterministic random images and labels, in batches that take turns: the answer does not matter for timing."""
    generator = np.random.default_rng(seed)
    arrays = bound.arrays
    images, labels, order = arrays["dataset.images"], arrays["dataset.labels"], arrays["batch_order"]
    generator.standard_normal(dtype=np.float32, out=images)
    labels[...] = generator.integers(0, 10, labels.shape)
    order[...] = np.arange(order.size).reshape(order.shape)
    if "learning_rates" in arrays:
        arrays["learning_rates"][...] = LEARNING_RATE


def build(job: Mapping[str, Any], model: ModelSpec | str = "serial"):
    """The job's plan, bound to new memory where `model` runs, with data and initial parameters; or what the user's
    function makes."""
    if "function" in job["plan"]:
        from ..scaling.subject import make_bound

        return make_bound(job["plan"])
    from ...cython_src.lowering.lower import initialise, lower

    batch = job["plan"]["batch"]
    batches = max(1, min(DATASET_BATCHES, DATASET_IMAGES // batch))
    conv = convolution_for(model, job["plan"].get("conv", "auto"))
    plan = lower(**{**job["plan"], "conv": conv}, num_images=batches * batch, num_batches=batches)
    # Asking first: the kernel grants more than there is, and later kills whom it likes.
    limit = parse_bytes(job["memory_limit"]) if job.get("memory_limit") else None
    check_fits(plan, job["plan"], limit, read_memory()["available_bytes"], job["threads"])
    bound = bind_for(model, plan)
    fill_dataset(bound, job["seed"])
    initialise(bound, job["seed"])
    return bound


def result_hashes(bound) -> dict[str, Any]:
    """Hashes of all parameters and of the losses (of the class probabilities, forward), and whether all are finite.

    A graph of the user's has no parameters: all its arrays count, and may hold what they like.
    """
    names = bound.plan.attributes.get("parameters")
    if names is None:
        return {"weights_hash": hash_arrays(bound.arrays), "losses_hash": hash_arrays({}), "finite": True}
    parameters = {name: bound.view(name) for name in names}
    answers = {name: bound.arrays[name] for name in ("losses", "probabilities") if name in bound.arrays}
    finite = all(bool(np.isfinite(array).all()) for array in (*parameters.values(), *answers.values()))
    return {"weights_hash": hash_arrays(parameters), "losses_hash": hash_arrays(answers), "finite": finite}


def answer(bound, num_iterations: int) -> list[float]:
    """What a peer must agree with within rounding: losses of the first steps, or probabilities of the first images."""
    if "parameters" not in bound.plan.attributes:
        return []
    if "losses" in bound.arrays:
        return [float(loss) for loss in bound.arrays["losses"][:num_iterations]]
    if "probabilities" in bound.arrays:
        return [float(p) for p in bound.arrays["probabilities"][:4].ravel()]
    return []


def record_costs(plan, model, clock=time.perf_counter) -> dict[str, float | None]:
    """Seconds for recording a plan's task graph and for closing it over iterations; None where the model does not.

    Closing registers the plan a second time, so its cost is the difference of both. Each is the shortest of
    up to three times: what is asked for is the work itself, not the first use of the memory allocator.
    """
    if not model.records:
        return {"record_s": None, "close_s": None}
    from ...cython_src.plan.dependences import record_graph

    def shortest(closed: bool) -> float:
        times: list[float] = []
        while not times or (len(times) < 3 and sum(times) < 0.1):
            start = clock()
            record_graph(plan.accesses, closed=closed)
            times.append(clock() - start)
        return min(times)

    record_s = shortest(False)
    return {"record_s": record_s, "close_s": max(shortest(True) - record_s, 0.0) if model.closes else None}


def measure_sample(job: Mapping[str, Any], bound=None, executor=None, clock=time.perf_counter) -> dict[str, Any]:
    """Measure one configuration once. See the module's docstring for the steps.

    Parameters
    ----------
    job : mapping
    bound, executor : optional
        To measure something else than the job's plan and model.
    """
    spec = parse_model(job["model"])
    started = time.time()
    bound = build(job, spec) if bound is None else bound
    stride = bound.iteration_stride
    costs = record_costs(bound.plan, spec.model, clock)
    executor = make_executor(spec, job["threads"], cpus=job["cpus"]) if executor is None else executor
    if job.get("slowdown"):
        executor = Slowed(executor, job["slowdown"])
    untrained = result_hashes(bound)["weights_hash"]
    with executor:
        start = clock()
        executor.prepare(bound)
        prepare_s = clock() - start
        stepper = Stepper(executor, stride, clock)
        first_replay_s = stepper.run(1)
        check_passes = -(-job["check_iterations"] // stride)
        if check_passes > 1:
            stepper.run(check_passes - 1)
        hashes, answered = result_hashes(bound), answer(bound, stepper.iterations_done)
        if not hashes["finite"]:
            raise ArithmeticError(f"weights or losses are not finite after {stepper.iterations_done} iterations")
        trains = "parameters" in bound.plan.attributes and "learning_rates" in bound.arrays
        if trains and hashes["weights_hash"] == untrained:
            raise ArithmeticError(f"no weight changed in {stepper.iterations_done} iterations: nothing can be checked")
        warm = warm_up(stepper, job["warmup_s"])
        pass_time_s = warm.pass_time_s
        conduct = asdict(executor.conduct()) if spec.model.device == "cpu" else None
        swaps = executor.num_cpu_swaps if conduct else 0
        disturbance = Disturbance()
        before, usage, wall = disturbance.read(), resource.getrusage(resource.RUSAGE_SELF), clock()
        timed = time_runs(stepper, pass_time_s, job["target_s"], job.get("pairs"))
        wall = clock() - wall
        usage_after = resource.getrusage(resource.RUSAGE_SELF)
        disturbed = disturbance.since(before)
        if conduct:
            conduct["cpu_swaps"] = executor.num_cpu_swaps - swaps  # of the timed runs
        if not result_hashes(bound)["finite"]:
            raise ArithmeticError(f"weights or losses are not finite after {stepper.iterations_done} iterations")
    frequency_hz = machine_peaks.measure_frequency(FREQUENCY_S, job["cpus"][0] if job["cpus"] else None)
    libraries = loaded_libraries()
    busy_blas = [library["name"] for library in libraries if library["kind"] == "blas" and library["threads"] != 1]
    if busy_blas:
        raise RuntimeError(f"BLAS must run on one thread inside blocks, {', '.join(busy_blas)} runs on more")
    return {
        "kind": "sample",
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
        "disturbance": disturbed,
        "timed_wall_s": wall,
        "timed_cpu_s": usage_after.ru_utime + usage_after.ru_stime - usage.ru_utime - usage.ru_stime,
        "page_faults": usage_after.ru_minflt - usage.ru_minflt,
        "max_resident_bytes": usage_after.ru_maxrss * 1024,
        "frequency_hz": frequency_hz,
        "libraries": libraries,
        "instruction_set": f"{bound.instruction_set}, {spec}" if spec.model.mixes_devices else bound.instruction_set,
        "pid": os.getpid(),
        "started": started,
    }


def describe_gpu(bound) -> dict[str, Any]:
    """The device of a plan bound to one, what happened once, and the copies so far: {"to_host", "to_device"} as
    [number, bytes]."""
    return {
        "name": bound.device.name,
        "architecture": bound.device.architecture,
        "peak_flops_per_s": bound.device.peak_flops_per_s,
        "costs_s": dict(bound.device.costs_s),
        "copies": {f"to_{place}": list(count) for place, count in bound.copies.items()},
    }


def block_times(events: np.ndarray, plan, num_passes: int, num_workers: int) -> dict[str, Any]:
    """What the event log says of blocks, loops and workers.

    Parameters
    ----------
    events : structured array as of `Workers.events`
    plan : Plan
    num_passes : int
        Passes through the plan that were logged.
    num_workers : int

    Returns
    -------
    dict
        block_time_s: {loop: seconds of each block, median over passes, so that one that was pushed off its
        CPU does not count}. Means over passes, which add up: block_mean_s, likewise; loop_time_s: {loop: busy seconds}; loop_wall_s:
        {loop: first start to last stop} (a wall time of its own only where the model has a barrier after each
        loop); worker_busy_s: [busy seconds of each worker].

    Raises
    ------
    RuntimeError
        A block was not run exactly once in each pass.
    """
    num_tasks = plan.num_tasks
    counts = np.bincount(events["task"], minlength=num_tasks)
    if len(counts) != num_tasks or (counts != num_passes).any():
        task = int(np.argmax(counts != num_passes))
        raise RuntimeError(
            f"{plan.task_name(task)} must run {num_passes} times in {num_passes} passes, ran {counts[task]} times"
        )
    duration = (events["stop_ns"] - events["start_ns"]) * 1e-9
    by_task = duration[np.argsort(events["task"], kind="stable")].reshape(num_tasks, num_passes)
    typical, mean = np.median(by_task, axis=1), by_task.mean(axis=1)
    busy = np.bincount(events["worker"], weights=duration, minlength=num_workers) / num_passes
    loop_of_event = plan.task_loop[events["task"]].astype(np.int64)
    group = events["iteration"] // plan.iteration_stride * len(plan.loops) + loop_of_event
    _, group = np.unique(group, return_inverse=True)
    num_groups = int(group.max()) + 1
    first = np.full(num_groups, np.iinfo(np.int64).max)
    last = np.zeros(num_groups, np.int64)
    loop_of_group = np.zeros(num_groups, np.int64)
    np.minimum.at(first, group, events["start_ns"])
    np.maximum.at(last, group, events["stop_ns"])
    loop_of_group[group] = loop_of_event
    wall = np.bincount(loop_of_group, weights=(last - first) * 1e-9, minlength=len(plan.loops)) / num_passes
    block_time_s: dict[str, list[float]] = {}
    block_mean_s: dict[str, list[float]] = {}
    loop_time_s: dict[str, float] = {}
    loop_wall_s: dict[str, float] = {}
    for k, loop in enumerate(plan.loops):  # a chain is several loops under one name
        tasks = slice(loop.first_task, loop.first_task + loop.num_blocks)
        block_time_s.setdefault(loop.name, []).extend(typical[tasks].tolist())
        block_mean_s.setdefault(loop.name, []).extend(mean[tasks].tolist())
        loop_time_s[loop.name] = loop_time_s.get(loop.name, 0.0) + float(mean[tasks].sum())
        loop_wall_s[loop.name] = loop_wall_s.get(loop.name, 0.0) + float(wall[k])
    return {
        "block_time_s": block_time_s,
        "block_mean_s": block_mean_s,
        "loop_time_s": loop_time_s,
        "loop_wall_s": loop_wall_s,
        "worker_busy_s": busy.tolist(),
    }


def measure_runtime_cost(job: Mapping[str, Any], plan, clock=time.perf_counter) -> float:
    """Seconds that a model takes for a pass through the plan's graph with empty kernels: its barriers or its tasks.

    The median of several runs; what a runtime does while others compute may cost more, or be hidden.
    """
    from ...cython_src.graphs.task_bench import replica

    bound = bind_for(job["model"], replica(plan, np.ones(plan.num_tasks), 0))
    with make_executor(job["model"], job["threads"], cpus=job["cpus"]) as executor:
        executor.prepare(bound)
        stepper = Stepper(executor, 1, clock)
        passes = 1
        while (elapsed := stepper.run(passes)) < RUNTIME_COST_RUN_S / 2 and passes < 1 << 20:
            passes *= 2
        passes = max(1, round(passes * RUNTIME_COST_RUN_S / elapsed))
        return float(np.median([stepper.run(passes) / passes for _ in range(RUNTIME_COST_RUNS)]))


def measure_profile(job: Mapping[str, Any], bound=None, clock=time.perf_counter) -> dict[str, Any]:
    """Run with the event log on: times of blocks, loops and workers, and the graph's bounds with these times.

    Never a source of step times: the log costs time. `floors` are those of this very run, from the means of its blocks:
    no pass takes less time than its own blocks allow, so `pass_time_s`, its mean time, is never below them. Then the
    same graph with empty kernels, for the runtime's cost.
    """
    from ..analysis.bounds import durations_by_loop, plan_bounds, predicted_times

    spec = parse_model(job["model"])
    if spec.model.device == "gpu":
        from .gpu_profile import measure_gpu_profile

        return measure_gpu_profile(job)
    started = time.time()
    bound = build(job) if bound is None else bound
    plan, stride = bound.plan, bound.iteration_stride
    capacity = max(MAX_PROFILE_EVENTS, EVENT_LOG_WARMUP * plan.num_tasks)
    with make_executor(spec, job["threads"], cpus=job["cpus"], event_capacity=capacity) as executor:
        executor.prepare(bound)
        stepper = Stepper(executor, stride, clock)
        pass_time_s = min(stepper.run(1) for _ in range(EVENT_LOG_WARMUP))
        passes = int(min(max(job["target_s"] / pass_time_s, 3), capacity // plan.num_tasks, 200))
        executor.workers.clear_events()
        wall = stepper.run(passes)
        times = block_times(executor.workers.events(), plan, passes, job["threads"])
    means = times.pop("block_mean_s")
    loops = durations_by_loop([(loop.name, loop.num_blocks) for loop in plan.loops], means)
    return {
        "kind": "profile",
        **times,
        "runtime_cost_s": measure_runtime_cost(job, plan, clock) if stride == 1 else None,
        "bounds": plan_bounds(plan, times["block_time_s"]).as_row(),
        "floors": predicted_times(loops, job["threads"], None, plan_bounds(plan, means)),
        "pass_time_s": wall / passes,
        "barrier": spec.barrier,
        "iterations": passes * stride,
        "step_time_s": wall / (passes * stride),
        "instruction_set": bound.instruction_set,
        "pid": os.getpid(),
        "started": started,
    }


# --- the process
# ----------------------------------------------------------------------------------------------------


def end_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies, so that nothing is left after a kill -9."""
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    except (OSError, AttributeError):
        return  # not Linux: the process ends by itself after its sample


def answer_job(measure_job: Callable[[Mapping[str, Any]], Mapping[str, Any]], usage_failure: str = "crash") -> int:
    """The whole life of a measuring process: read a job, measure it, write the row.

    Parameters
    ----------
    measure_job : callable
        Job -> row.
    usage_failure : str
        What a `UsageError` is called in the row: "usage" where whoever started the process tells the user.

    Returns
    -------
    int
        Exit code; `EXIT_FAILURE` where the object written has the keys "failure" and "message" in place of a row.
    """
    end_with_parent()
    job = json.load(sys.stdin)
    try:
        if job["cpus"] is not None:
            # Before memory is touched: pages belong to the socket of the thread that touches them first.
            os.sched_setaffinity(0, set(job["cpus"]))
        row = measure_job(job)
    except MemoryError as error:
        row = {"failure": "memory", "message": str(error) or "not enough memory; lower the batch"}
    except UsageError as error:
        row = {"failure": usage_failure, "message": str(error)}
    except Exception as error:
        traceback.print_exc()
        row = {"failure": "crash", "message": f"{type(error).__name__}: {error}"}
    print(json.dumps(row), flush=True)
    return EXIT_FAILURE if "failure" in row else 0


def main() -> int:
    """Measure a sample or a profile."""
    return answer_job(lambda job: measure_profile(job) if job["kind"] == "profile" else measure_sample(job))


if __name__ == "__main__":
    sys.exit(main())
