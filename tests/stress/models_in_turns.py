"""Step times of models in one process, each round all in turns: ratios hold where the clock of a machine does not.

    python -P tests/stress/models_in_turns.py --batch 16 --models taskiter,taskiter:unroll=2,taskiter:priority=path
    python -P tests/stress/models_in_turns.py --graph chain --models taskgraph,taskgraph:priority=path
    python -P tests/stress/models_in_turns.py --batch 16 --ladder

`forktask compare` and `run` are stricter: a fresh process for every sample. On a machine that has seconds of half its
speed, this program tells differences of a few percent apart in a minute. Models of OpenMP do not belong here: their
idle threads would spin beside the others.
"""

import argparse
import os
import random
import statistics
import time

import numpy as np

from forktask.cython_src.binding.bind import bind
from forktask.cython_src.graphs.task_bench import replica
from forktask.cython_src.lowering.lower import initialise, lower
from forktask.cython_src.plan.builder import PlanBuilder
from forktask.cython_src.plan.model import Block, update
from forktask.experiments.analysis.estimates import Estimates
from forktask.experiments.sampling.models import make_executor

LADDER = ["tasks:taskwait=loop", "tasks:taskwait=iteration", "tasks:taskwait=none"] + [
    f"{model}:placement={placement}"
    for model in ("taskgraph:barrier=loop", "taskgraph:barrier=iteration", "taskiter")
    for placement in ("stealing", "partitioned")
]


def chain_beside_others(length=40, others=40, work=5000):
    """A chain of tasks, which stands last in plan order, beside as many that depend on nothing: 10 us each or so."""
    builder = PlanBuilder("chain")
    builder.buffer("cells", (others + 1,), "uint64", role="statistic")
    for name, cells in [("others", range(others)), *((f"chain{k}", [others]) for k in range(length))]:
        builder.loop(
            name,
            "hash_chain",
            {"out": "cells", "in": "cells"},
            [Block((0, 0, 0), (update("cells", (cell, cell + 1)),)) for cell in cells],
            attributes={"work": 0, "fail_iteration": -1, "fail_index": -1},
        )
    return replica(builder.build(), np.ones(length + others), work)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", default="cifar10_cnn", help="a network, or chain")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--models", default="taskiter,taskiter:placement=stealing", help="ratios are to the first")
    parser.add_argument("--ladder", action="store_true", help="all combinations of creation, barrier and placement")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=40)
    arguments = parser.parse_args()
    models = LADDER if arguments.ladder else arguments.models.split(",")
    is_chain = arguments.graph == "chain"
    plan = chain_beside_others() if is_chain else lower(arguments.graph, batch=arguments.batch, phase="train")
    cpus = sorted(os.sched_getaffinity(0))[: arguments.threads]
    executors, times = {}, {name: {} for name in models}
    for name in models:
        bound = bind(plan)
        if not is_chain:
            initialise(bound, 1)
        executors[name] = make_executor(name, arguments.threads, cpus=cpus if len(cpus) == arguments.threads else None)
        executors[name].prepare(bound)
        executors[name].run(8)
    start = time.perf_counter()
    executors[models[0]].run(8)
    count = max(1, round(0.2 / (time.perf_counter() - start))) * 4  # 0.1 s a run, a multiple of usual unrollings
    for repetition in range(arguments.rounds):
        for name in random.sample(models, len(models)):
            start = time.perf_counter()
            executors[name].run(count)
            times[name][repetition] = (time.perf_counter() - start) / count
    size = f"{plan.name}, {plan.num_tasks} tasks"
    print(f"{size}, {arguments.rounds} rounds of {count} steps on {arguments.threads} threads")

    estimates = Estimates({name: {(r, 0, 0): time for r, time in of.items()} for name, of in times.items()})

    def ratio(a, b):
        found = estimates.ratio(a, b)
        return f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}]"

    for name in models:
        print(f"{name:60}{statistics.median(times[name].values()) * 1e6:10.1f} us  {ratio(name, models[0])}")
    if arguments.ladder:
        eager, replayed = LADDER[:3], [LADDER[3:5], LADDER[5:7], LADDER[7:9]]
        for barrier, old, new in zip(("loop", "iteration", "none"), eager, replayed, strict=True):
            print(f"barrier {barrier:9}  creation {ratio(new[0], old)}  placement {ratio(new[1], new[0])}")
        for name, cells in (
            ("eager", eager),
            ("stealing", [r[0] for r in replayed]),
            ("partitioned", [r[1] for r in replayed]),
        ):
            loop_to_iteration, iteration_to_none = ratio(cells[1], cells[0]), ratio(cells[2], cells[1])
            print(f"{name:11}  barrier, loop to iteration {loop_to_iteration}  iteration to none {iteration_to_none}")


if __name__ == "__main__":
    main()
