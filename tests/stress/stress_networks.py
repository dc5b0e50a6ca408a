"""Random networks through every layout and model, as many as asked: part of `make stress`.

    PYTHONPATH=tests python -P tests/stress/stress_networks.py --networks 10000 --seed 1 --processes 2

Each is refused in a sentence or passes `random_networks.check`. Child processes check some hundred each, so that one
that crashes is a finding like any other. What fails is shrunk and printed as code; the exit code is then 1.
"""

import argparse
import os
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # idle threads shall not take the CPU from other processes

from random_networks.cases import Case, case_from, draw
from random_networks.check import Deviation, check
from random_networks.shrink import shrink

OF_A_PROCESS = 100
MOST_SHRUNK = 5
TIME_LIMIT_S = 600


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", type=int, default=1000)
    parser.add_argument(
        "--seed", type=int, default=int.from_bytes(os.urandom(4), "little"), help="of the first network"
    )
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--check", nargs=2, type=int, metavar=("FIRST", "STOP"), help=argparse.SUPPRESS)
    parser.add_argument("--code", action="store_true", help="check the case whose code comes in on standard input")
    arguments = parser.parse_args()
    if arguments.check:
        for seed in range(*arguments.check):
            print("begin", seed, flush=True)
            print(outcome(draw(seed)), flush=True)
    elif arguments.code:
        print(outcome(case_from(sys.stdin.read())))
    else:
        raise SystemExit(run(arguments.networks, arguments.seed, arguments.processes))


def outcome(case: Case) -> str:
    """Return accepted, refused, or what failed, on a line."""
    try:
        return "accepted" if check(case) else "refused"
    except Deviation as error:
        return " ".join(f"failed {error}".split())
    except Exception as error:
        return " ".join(f"failed {type(error).__name__}: {error!r}".split())


def run(networks: int, first: int, processes: int) -> int:
    """Check networks in child processes, print what came out, and return the exit code."""
    print(f"networks {first} to {first + networks - 1}", flush=True)
    starts = range(first, first + networks, OF_A_PROCESS)
    parts = [(start, min(start + OF_A_PROCESS, first + networks)) for start in starts]
    counts, failures = Counter(), {}
    with ThreadPoolExecutor(processes) as pool:
        for number, results in enumerate(pool.map(lambda part: checked(*part), parts), 1):
            for seed, result in results.items():
                counts[result.split()[0]] += 1
                if result.startswith("failed"):
                    failures[seed] = result
                    print(f"network {seed}: {result}", flush=True)
            if number % 10 == 0:
                print(f"{sum(counts.values())} networks: {dict(counts)}", flush=True)
    for seed, result in list(failures.items())[:MOST_SHRUNK]:
        kind = result.split(":")[0]
        smallest = shrink(draw(seed), lambda case, kind=kind: in_child(case).split(":")[0] == kind)
        print(f"\n# network {seed}: {in_child(smallest)}\n{smallest.code}", flush=True)
    print(
        f"{networks} networks from seed {first}: {counts['accepted']} accepted, {counts['refused']} refused, "
        f"{counts['failed']} failed"
    )
    return 1 if failures else 0


def checked(first: int, stop: int) -> dict[int, str]:
    """Return the outcome of each seed; a child that dies is started again behind the network that killed it."""
    results: dict[int, str] = {}
    while first < stop:
        command = [sys.executable, "-P", __file__, "--check", str(first), str(stop)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for line in child.stdout:
            if line.startswith("begin"):
                first = int(line.split()[1]) + 1
            else:
                results[first - 1] = line.strip()
        if child.wait() == 0:
            break
        results.setdefault(first - 1, f"failed crash: the process ended with {child.returncode}")
    return results


def in_child(case: Case) -> str:
    """Return the outcome of a case that may crash."""
    command = [sys.executable, "-P", __file__, "--code"]
    done = subprocess.run(command, input=case.code, capture_output=True, text=True, timeout=TIME_LIMIT_S)
    return done.stdout.strip() or f"failed crash: the process ended with {done.returncode}"


if __name__ == "__main__":
    main()
