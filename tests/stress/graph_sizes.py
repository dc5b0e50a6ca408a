"""What a task costs in graphs of 10^3 to 10^6 tasks: recording, closing, preparing, memory and running.

    python -P tests/stress/graph_sizes.py --pattern stencil_1d --rounds 15

Recording and closing are CPU time, best of several; running is wall time x threads / tasks of runs of some two million
tasks each, so that starting a run does not count. All sizes and placements take turns within each round, since the
clock of a machine changes from one second to the next. Serial execution stands beside: kernels' arguments leave the
caches too, whatever the runtime.
"""

import argparse
import os
import statistics
import time
from functools import partial

from forktask.cython_src.binding.bind import bind
from forktask.cython_src.graphs.task_bench import task_bench
from forktask.cython_src.plan.dependences import record_graph
from forktask.experiments.sampling.models import make_executor


def cpu_ns(function, tries):
    """Best CPU time of several calls, in ns."""
    times = []
    for _ in range(tries):
        start = time.process_time_ns()
        function()
        times.append(time.process_time_ns() - start)
    return min(times)


def run_ns(executor, count):
    """Wall time of one run of `count` iterations, in ns."""
    start = time.perf_counter_ns()
    executor.run(count)
    return time.perf_counter_ns() - start


def ratio(times, others):
    """Median of the ratios of times measured in the same rounds."""
    return statistics.median(a / b for a, b in zip(times, others, strict=True))


def graph_bytes(graph):
    """(bytes a task, bytes an edge) of the arrays of a recorded graph, which holds no kinds of edges for replay."""
    per_node = [graph.successor_offsets, graph.successor_split, graph.num_intra, graph.num_cross]
    return sum(a.nbytes for a in per_node) / graph.num_tasks, graph.successors.nbytes / max(1, graph.num_edges)


def prepare(pattern, width, num_tasks, placements, threads):
    """Executors of one size, prepared, by name; and a row with what recording costs, in ns and bytes a task."""
    plan = task_bench(pattern, width, max(2, num_tasks // width), kernel="empty", check=False)
    bound, n = bind(plan), plan.num_tasks
    tries = 5 if n < 200_000 else 2
    row = {"tasks": n, "record": cpu_ns(lambda: record_graph(plan.accesses, closed=False), tries) / n}
    row["close"] = cpu_ns(lambda: record_graph(plan.accesses, closed=True), tries) / n - row["record"]
    cpus = sorted(os.sched_getaffinity(0))[:threads]
    executors = {"serial": make_executor("serial", 1)}
    executors["serial"].prepare(bound)
    for placement in placements:
        executor = executors[placement] = make_executor(
            f"taskiter:placement={placement}", threads, cpus=cpus if len(cpus) == threads else None
        )
        graph = executor.record(bound)
        row[f"prepare {placement}"] = cpu_ns(partial(executor.prepare, bound, graph), 1) / n
    row["edges"] = graph.num_edges / n
    row["B/task"], row["B/edge"] = graph_bytes(graph)
    return executors, row


def table(title, rows):
    """Print rows of equal keys."""
    print(title)
    for row in [{name: name for name in rows[0]}, *rows]:
        print(
            "".join(
                f"{value:>20}"
                if isinstance(value, str)
                else f"{value:20.{0 if value >= 100 else 1 if value >= 10 else 2}f}"
                for value in row.values()
            ),
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pattern", default="stencil_1d")
    parser.add_argument("--placements", default="partitioned,stealing")
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--largest", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    placements, threads = arguments.placements.split(","), arguments.threads
    sizes = [size for size in (1000, 10_000, 100_000, 1_000_000) if size <= arguments.largest]
    made = [prepare(arguments.pattern, arguments.width, size, placements, threads) for size in sizes]
    table("once, ns and bytes a task", [row for _, row in made])
    times = {(name, k): [] for name in made[0][0] for k in range(len(made))}
    for repetition in range(-1, arguments.rounds):  # the first one warms up
        for name in made[0][0]:
            for k in range(len(made)):
                which = (k + repetition) % len(made)
                executors, row = made[which]
                count = max(2, round(2_000_000 / row["tasks"]))
                cores = 1 if name == "serial" else threads
                value = run_ns(executors[name], count) * cores / count / row["tasks"]
                if repetition >= 0:
                    times[name, which].append(value)
    rows = []
    for name in made[0][0]:
        medians = [statistics.median(times[name, k]) for k in range(len(made))]
        rows.append(
            {
                "run": name,
                **{str(made[k][1]["tasks"]): medians[k] for k in range(len(made))},
                "largest / least": max(medians) / min(medians),
            }
        )
    table(f"run, core-ns a task, median of {arguments.rounds} rounds", rows)
    rows = [
        {
            "run": f"{name} / serial",
            **{str(made[k][1]["tasks"]): ratio(times[name, k], times["serial", k]) for k in range(len(made))},
        }
        for name in placements
    ]
    table("in the same round", rows)


if __name__ == "__main__":
    main()
