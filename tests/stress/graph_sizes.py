"""What a task costs in graphs of 10^3 to 10^6 tasks: recording, closing, preparing, memory and running.

    python -P tests/stress/graph_sizes.py --pattern stencil_1d --placement partitioned

Recording and closing are CPU time, best of several; running is wall time of the fastest run x threads / tasks, on two threads, beside
the same for serial execution: kernels' arguments leave the caches too, whatever the runtime.
"""

import argparse
import os
import time

from forktask.cython_src.dependences import record_graph
from forktask.cython_src.program import bind
from forktask.cython_src.task_bench import task_bench
from forktask.experiments.models import make_executor


def cpu_ns(function, tries):
    """Best CPU time of several calls, in ns."""
    times = []
    for _ in range(tries):
        start = time.process_time_ns()
        function()
        times.append(time.process_time_ns() - start)
    return min(times)


def fastest_ns(executor, count, tries):
    """Fastest of several runs of `count` iterations, in ns for one."""
    executor.run(count)
    times = []
    for _ in range(tries):
        start = time.perf_counter_ns()
        executor.run(count)
        times.append(time.perf_counter_ns() - start)
    return min(times) / count


def graph_bytes(graph):
    """(bytes a task, bytes an edge) of the arrays of a recorded graph, which holds no kinds of edges for replay."""
    per_node = [graph.successor_offsets, graph.successor_split, graph.num_intra, graph.num_cross]
    return sum(a.nbytes for a in per_node) / graph.num_tasks, graph.successors.nbytes / max(1, graph.num_edges)


def measure(pattern, width, num_tasks, placement, threads):
    """One row of the table, in ns and bytes a task."""
    plan = task_bench(pattern, width, max(2, num_tasks // width), kernel="empty", check=False)
    bound, n = bind(plan), plan.num_tasks
    tries = 5 if n < 200_000 else 2
    row = {"tasks": n, "record": cpu_ns(lambda: record_graph(plan.accesses, closed=False), tries) / n}
    row["close"] = cpu_ns(lambda: record_graph(plan.accesses, closed=True), tries) / n - row["record"]
    count = max(1, 1_000_000 // n)  # as many tasks in each run: starting one costs tens of microseconds
    cpus = sorted(os.sched_getaffinity(0))[:threads]
    with make_executor(f"taskiter:placement={placement}", threads, cpus=cpus if len(cpus) == threads else None) as executor:
        graph = executor.record(bound)
        row["prepare"] = cpu_ns(lambda: executor.prepare(bound, graph), 1) / n
        row["run"] = fastest_ns(executor, count, 30) * threads / n
    with make_executor("serial", 1) as executor:
        executor.prepare(bound)
        row["serial"] = fastest_ns(executor, count, 10) / n
    row["edges"] = graph.num_edges / n
    row["B/task"], row["B/edge"] = graph_bytes(graph)
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pattern", default="stencil_1d")
    parser.add_argument("--placement", default="partitioned", choices=("partitioned", "stealing"))
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--largest", type=int, default=1_000_000)
    arguments = parser.parse_args()
    size = 1000
    while size <= arguments.largest:
        row = measure(arguments.pattern, arguments.width, size, arguments.placement, arguments.threads)
        if size == 1000:
            print("".join(f"{name:>10}" for name in row), flush=True)
        print("".join(f"{value:10.0f}" if name in ("tasks", "record", "close", "prepare") else f"{value:10.1f}"
                      for name, value in row.items()), flush=True)
        size *= 10


if __name__ == "__main__":
    main()
