"""Random graphs under every task executor, for as long as asked: `make stress`.

    python -P tests/stress/stress_graphs.py --seconds 60 --seed 0
"""

import argparse
import os
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tasking import hash_kernels, random_plans, test_executor as check  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "little"))
    arguments = parser.parse_args()
    hash_kernels.register_hash_kernels()
    print(f"seed {arguments.seed}", flush=True)
    executors = {(name, n): make(n, watchdog_s=5.0) for name, make in check.EXECUTORS.items() for n in (1, 2, 3, 4, 16)}
    rng = np.random.default_rng(arguments.seed)
    end = time.monotonic() + arguments.seconds
    graphs = 0
    while time.monotonic() < end:
        seed = int(rng.integers(2**40))
        runs = int(rng.integers(1, 30))
        plan = random_plans.random_plan(seed, phases=("forward", "backward"), work=int(rng.choice([0, 0, 100, 3000])))
        if seed % 4 == 0:
            plan = random_plans.shared_plan(seed)
        elif seed % 4 == 1:
            plan = random_plans.kinds_plan(seed, work=int(rng.choice([0, 200])))
        expected = check.serial_content(plan, [(runs,)])
        for key, executor in executors.items():
            if rng.random() < 0.5:
                continue
            bound = check.bind(plan)
            executor.prepare(bound)
            executor.run(runs)
            try:
                check.assert_same(check.content(bound, executor), expected)
            except AssertionError as error:
                raise SystemExit(f"plan {plan.name}, {runs} iterations, {key}: wrong result\n{error}") from None
            graphs += 1
    for executor in executors.values():
        executor.close()
    print(f"{graphs} graphs, all as in serial order")


if __name__ == "__main__":
    main()
