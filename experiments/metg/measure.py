"""Measuring process for the cost of a runtime on Task Bench graphs, one for each (model, generation).

It takes turns with those of other models (`sampling/generation.py`); a turn is one amount of work. A job has the keys
`model` (spec), `threads`, `cpus` (list or null), `runs` and `target_s` (timed runs of a graph, and how long one lasts),
`budget_s` (of its own turns: no longer graphs are begun after it), and `graph`: keyword arguments of `task_bench`
without `work`; or those of `lower`, then with `durations_s` of its blocks.

First the kernel alone, without any runtime: the time of a unit of work, which is the denominator of all efficiencies.
Then the graph with an empty kernel. Then the same graph with more and more work in each task, from an eighth of what
an empty task costs until four fifths of the time is work.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Generator, Iterator, Mapping
from typing import Any

from ...cython_src.graphs.task_bench import replica, task_bench
from ...cython_src.kernels.bench.bench import TASK_BENCH_KERNELS, time_work
from ...cython_src.lowering.lower import lower
from ..machine.disturbance import Disturbance
from ..machine.numa import pages_of
from ..sampling.child import answer_job
from ..sampling.hogs import UNIT_WORK
from ..sampling.measure import record_costs
from ..sampling.timing import Stepper
from ..subjects.models import bind_for, make_executor, storage_for
from ..subjects.subject import homes_of

UNIT_TRIES = 15
ENOUGH_EFFICIENCY = 0.8


def unit_time_s(kernel: str) -> float:
    """Measure the seconds of one unit of work on the calling thread, without any runtime: the best of several."""
    if kernel == "busy_wait":
        return 1e-9
    number = TASK_BENCH_KERNELS.index("compute" if kernel == "load_imbalance" else kernel)
    return min(time_work(number, UNIT_WORK, 10) for _ in range(UNIT_TRIES)) / (10 * UNIT_WORK)


def make_plan(job: Mapping[str, Any], work: int):
    """Make the job's graph with `work` units in a task (of a network: in the average task); 0: an empty kernel."""
    graph = job["graph"]
    if "network" in graph:
        return replica(lower(**{k: v for k, v in graph.items() if k != "kernel"}), job["durations_s"], work)
    return task_bench(**{**graph, "work": work, "kernel": graph["kernel"] if work else "empty"})


def work_ladder(start: float) -> Iterator[int]:
    """Yield 1, 2, 3, 4, 6, 8, 12, ...: whole numbers from `start` on, in steps of about the square root of two."""
    power = 1
    while True:
        yield from (work for work in sorted({power, power + power // 2}) if work >= start)
        power *= 2


def time_graph(job: Mapping[str, Any], work: int) -> dict[str, Any]:
    """Time the graph with some work: seconds of an iteration in each of several runs, and of preparing."""
    plan = make_plan(job, work)
    bound = bind_for(job["model"], plan, storage_for(job["model"], homes_of(job)))
    with make_executor(job["model"], job["threads"], cpus=job["cpus"]) as executor:
        start = time.perf_counter()
        executor.prepare(bound)
        prepare_s = time.perf_counter() - start
        stepper = Stepper(executor)
        stepper.run(1)
        _, *times = stepper.pass_times(job["target_s"], 1 + job["runs"])
    sizes = {"work": work, "mean_work": plan.attributes["mean_work"], "num_tasks": plan.num_tasks}
    return {**sizes, "iteration_times_s": times, "prepare_s": prepare_s}


def measure(job: Mapping[str, Any]) -> Generator[dict[str, bool], Any, dict[str, Any]]:
    """Measure one model once, a turn for each request; yield whether there is more, and return the row."""
    yield {"more": True}
    kernel, threads = job["graph"]["kernel"], job["threads"]
    disturbance = Disturbance()
    before, wall = disturbance.read(), time.perf_counter()
    unit_s = unit_time_s(kernel)
    empty = time_graph(job, 0)
    plan = make_plan(job, 0)
    costs = [record_costs(plan, job["model"].model) for _ in range(3)]
    cost_of_empty_s = min(empty["iteration_times_s"]) * threads / empty["num_tasks"]
    yield {"more": True}
    points, spent_s, more = [], 0.0, True
    ladder = work_ladder(cost_of_empty_s / unit_s / 8)
    while more:
        begun = time.perf_counter()
        points.append(time_graph(job, next(ladder)))
        spent_s += time.perf_counter() - begun
        task_s = points[-1]["mean_work"] * unit_s
        granularity_s = min(points[-1]["iteration_times_s"]) * threads / points[-1]["num_tasks"]
        more = task_s / granularity_s <= ENOUGH_EFFICIENCY and spent_s <= job["budget_s"]
        yield {"more": more}
    unit_s = min(unit_s, unit_time_s(kernel))
    best = {name: None if costs[0][name] is None else min(c[name] for c in costs) for name in costs[0]}
    return {
        "parallel": threads,
        "unit_s": unit_s,
        "empty": empty,
        "points": points,
        **best,
        "disturbance": disturbance.since(before),
        "pages": pages_of(job),
        "wall_s": time.perf_counter() - wall,
    }


if __name__ == "__main__":
    sys.exit(answer_job(measure))
