"""Random graphs under the task executors, for as long as asked: `make stress`.

    PYTHONPATH=tests python -P tests/stress/stress_graphs.py --seconds 60 --seed 0
    PYTHONPATH=tests python -P tests/stress/stress_graphs.py --graphs 100000

Each graph is new; it runs under several executors, chosen at random with their number of threads, and each result is
compared with serial order. One in sixteen is recorded through `UserGraph`, with tasks in Python, and runs under models.
"""

import argparse
import os
import time

import numpy as np
from tasking.test_random_graphs import SPECS

from forktask.experiments.subjects.models import MODELS
from tasking import hash_kernels, random_graphs, random_plans
from tasking import test_executor as check


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument(
        "--graphs", type=int, default=0, help="stop after so many graphs instead, however long it takes"
    )
    parser.add_argument("--executors", type=int, default=3, help="that run each graph")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "little"))
    arguments = parser.parse_args()
    hash_kernels.register_hash_kernels()
    print(f"seed {arguments.seed}", flush=True)
    executors = {(name, n): make(n, watchdog_s=5.0) for name, make in check.EXECUTORS.items() for n in (1, 2, 3, 4, 16)}
    rng = np.random.default_rng(arguments.seed)
    end = time.monotonic() + arguments.seconds
    keys = list(executors)
    graphs = runs_checked = 0
    while graphs < arguments.graphs if arguments.graphs else time.monotonic() < end:
        seed = int(rng.integers(2**40))
        if seed % 16 == 5:
            chosen = [str(model) for model in rng.choice(SPECS, min(arguments.executors, len(SPECS)), replace=False)]
            most = {model: MODELS[model.partition(":")[0]].max_threads or 4 for model in chosen}
            random_graphs.check(random_graphs.draw(seed), [(m, int(rng.integers(1, n + 1))) for m, n in most.items()])
            graphs, runs_checked = graphs + 1, runs_checked + len(chosen)
            continue
        runs = int(rng.integers(1, 30))
        plan = random_plans.random_plan(seed, phases=("forward", "backward"), work=int(rng.choice([0, 0, 100, 3000])))
        if seed % 4 == 0:
            plan = random_plans.shared_plan(seed)
        elif seed % 4 == 1:
            plan = random_plans.kinds_plan(seed, work=int(rng.choice([0, 200])))
        expected = check.serial_content(plan, [(runs,)])
        for chosen in rng.choice(len(keys), min(arguments.executors, len(keys)), replace=False):
            key, executor = keys[chosen], executors[keys[chosen]]
            bound = check.bind(plan)
            executor.prepare(bound)
            executor.run(runs)
            try:
                check.assert_same(check.content(bound, executor), expected)
            except AssertionError as error:
                raise SystemExit(f"plan {plan.name}, {runs} iterations, {key}: wrong result\n{error}") from None
            runs_checked += 1
        graphs += 1
        if graphs % 10_000 == 0:
            print(f"{graphs} graphs", flush=True)
    for executor in executors.values():
        executor.close()
    print(f"{graphs} graphs, {runs_checked} times run by {len(executors)} executors, all as in serial order")


if __name__ == "__main__":
    main()
