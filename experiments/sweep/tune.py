"""`forktask tune`: search the granularity at which each execution model is fastest, with the same budget for each.

Every model gets the same candidates, in two rounds: all of them once, then the fastest few again. What is found is
kept in a file that `forktask compare --tuned FILE` reads; the runs of the search are never reported as results.
"""

from __future__ import annotations

import json
import os
import random
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from ...cython_src.errors import UsageError
from ..sampling.progress import ProgressBar
from .results import short_id

FORMAT_VERSION = 1
MOST_TASKS = 50_000  # of a plan that is tried
FINALISTS = 3
FINAL_REPEATS = 3
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def problem_id(plan: Mapping[str, Any]) -> str:
    """Identity of a plan's options without the granularity."""
    return short_id({name: value for name, value in plan.items() if name != "granularity"})


def candidates(options: Mapping[str, Any], budget: int, seed: int) -> list[str]:
    """Granularities to try: "auto" first, then random ones that the network can be cut by, none twice.

    Parameters
    ----------
    options : mapping
        Arguments of `lower` but the granularity.
    budget : int
        How many, at most.
    """
    from ...cython_src.lowering.lower import lower

    generator = random.Random(seed)
    batch = options["batch"]
    found, plans = ["auto"], {_shape(lower(**options, granularity="auto"))}
    for _ in range(20 * budget):
        if len(found) >= budget:
            break
        parts = {
            "images": generator.choice([n for n in SIZES if n <= batch] + [0]),
            "channels": generator.choice([0, 4, 8, 16, 32, 64]),
            "rows": generator.choice([0, 0, 0, 2, 4, 8, 16]),
        }
        text = ",".join(f"{name}={size}" for name, size in parts.items() if size)
        if not text or text in found:
            continue
        try:
            plan = lower(**options, granularity=text)
        except UsageError:
            continue
        if plan.num_tasks <= MOST_TASKS and _shape(plan) not in plans:
            plans.add(_shape(plan))
            found.append(text)
    return found


def _shape(plan) -> tuple:
    """What distinguishes two cuts of one network."""
    return tuple((loop.name, loop.num_blocks, loop.blocks[0].bounds) for loop in plan.loops)


def search(
    contestants: Sequence[tuple[str, int]],
    found: Sequence[str],
    measure: Callable[[str, int, str], float | None],
    seed: int,
    show: Callable[[int, str], None] = lambda number, text: None,
) -> list[dict[str, Any]]:
    """The best granularity of each contestant.

    Parameters
    ----------
    contestants : sequence of (model, threads)
    found : sequence of str
        Candidates, the same for all.
    measure : callable
        (model, threads, granularity) -> seconds a step, or None where it failed.

    Returns
    -------
    list of dict
        model, threads, granularity, step_time_s, auto_time_s, and times: {granularity: [seconds, ...]}.
    """
    generator = random.Random(seed)
    times: dict[tuple[str, int], dict[str, list[float]]] = {c: {} for c in contestants}
    done = 0

    def one_round(pairs) -> None:
        nonlocal done
        for contestant, granularity in generator.sample(pairs, len(pairs)):
            show(done, f"{contestant[0]} on {contestant[1]}, {granularity}")
            seconds = measure(*contestant, granularity)
            if seconds is not None:
                times[contestant].setdefault(granularity, []).append(seconds)
            done += 1

    one_round([(c, g) for c in contestants for g in found])
    for _ in range(FINAL_REPEATS):
        finals = []
        for contestant in contestants:
            known = times[contestant]
            first = sorted(known, key=lambda g, known=known: known[g][0])[:FINALISTS]
            finals += [(contestant, g) for g in dict.fromkeys(["auto", *first]) if g in known]
        one_round(finals)
    rows = []
    for (model, threads), known in times.items():
        finished = {g: median(values) for g, values in known.items() if len(values) > FINAL_REPEATS}
        if not finished:
            continue
        best = min(finished, key=finished.get)
        rows.append(
            {
                "model": model,
                "threads": threads,
                "granularity": best,
                "step_time_s": finished[best],
                "auto_time_s": finished.get("auto"),
                "times": known,
            }
        )
    return rows


def read_tuned(path: str | os.PathLike) -> dict[tuple[str, str, int], str]:
    """What `forktask tune` found: (problem, model, threads) -> granularity.

    Raises
    ------
    UsageError
        No such file, or another one.
    """
    try:
        content = json.loads(Path(path).read_text())
        if content["format_version"] != FORMAT_VERSION:
            raise ValueError(f"format version {content['format_version']}")
        return {
            (problem_id(problem["plan"]), row["model"], row["threads"]): row["granularity"]
            for problem in content["problems"]
            for row in problem["rows"]
        }
    except OSError as error:
        raise UsageError(
            f"tuned must be a file of forktask tune, got {str(path)!r}: {error.strerror}; run it first"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"tuned must be a file of forktask tune, got {str(path)!r}: {error!r}; run it again") from None


def add_parser(subparsers) -> None:
    """Add `tune`."""
    parser = subparsers.add_parser(
        "tune",
        help="search the best block sizes of each execution model",
        description="Search the granularity at which each execution model is fastest, with the same candidates and the "
        "same time for each, and keep what is found for `forktask compare --tuned FILE`.",
    )
    parser.add_argument("--network", default="cifar10_cnn", help="default: %(default)s")
    parser.add_argument("--batch", type=int, default=64, metavar="B", help="default: %(default)s")
    parser.add_argument("--phase", choices=("train", "forward"), default="train", help="default: %(default)s")
    parser.add_argument(
        "--models",
        default="forkjoin,forkjoin:region=persistent,taskgraph,taskiter",
        metavar="M[,M...]",
        help="default: %(default)s",
    )
    parser.add_argument("--threads", default="cores", metavar="N[,N...]", help="default: the cores of this process")
    parser.add_argument("--budget", type=int, default=12, metavar="N", help="candidates; default: %(default)s")
    parser.add_argument("--seconds", type=float, default=0.3, metavar="S", help="timed for each; default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    parser.add_argument(
        "--out",
        default="tuned.json",
        metavar="FILE",
        help="where it is kept, beside what the file holds; default: %(default)s",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run_tune)


def run_tune(arguments: Namespace) -> int:
    """`forktask tune`."""
    from ..sampling.environment import available_cpus, cpu_order
    from ..sampling.models import parse_model, process_environment
    from ..training.safetensors import write_atomically
    from .configuration import Configuration, Grid, Measure
    from .run import clean_environment, parse_numbers, run_sample, sample_environment

    if arguments.budget < 2 or arguments.seconds <= 0:
        raise UsageError(
            f"budget must be at least 2 and seconds positive, got {arguments.budget} and {arguments.seconds}"
        )
    cpus = available_cpus()
    threads = (len(cpus),) if arguments.threads == "cores" else parse_numbers(arguments.threads, "--threads")
    grid = Grid(
        network=(arguments.network,),
        batch=(arguments.batch,),
        phase=(arguments.phase,),
        models=tuple(part for part in arguments.models.split(",") if part),
        threads=threads,
    )
    settings = Measure(target_s=arguments.seconds, warmup_s=min(1.0, arguments.seconds), check_iterations=1)
    configuration = Configuration(grid=grid, measure=settings)
    configuration.check_machine()
    contestants = [(point.model, point.threads) for point in configuration.points()]
    plan = {name: value for name, value in configuration.plans()[0].items() if name != "granularity"}
    found = candidates(plan, arguments.budget, arguments.seed)
    out = Path(arguments.out)
    problems = json.loads(out.read_text())["problems"] if out.exists() and read_tuned(out) is not None else []

    def measure(model: str, count: int, granularity: str) -> float | None:
        job = {
            "kind": "sample",
            "model": model,
            "threads": count,
            "cpus": cpu_order(count, cpus),
            "plan": {**plan, "granularity": granularity},
            "seed": arguments.seed,
            "check_iterations": 1,
            "target_s": settings.target_s,
            "warmup_s": settings.warmup_s,
        }
        variables = {**sample_environment(settings, count, 0, len(cpus)), **process_environment(parse_model(model))}
        row = run_sample(job, clean_environment(os.environ, variables), settings.time_limit_s)
        return None if "failure" in row else row["step_time_s"]

    total = len(contestants) * (len(found) + FINAL_REPEATS * (FINALISTS + 1))
    with ProgressBar(total, "tuning", sys.stderr) as bar:
        rows = search(contestants, found, measure, arguments.seed, bar.show)
    problems = [problem for problem in problems if problem_id(problem["plan"]) != problem_id(plan)]
    problems.append({"plan": plan, "candidates": found, "seconds": arguments.seconds, "rows": rows})
    content = {"format_version": FORMAT_VERSION, "problems": problems}
    write_atomically(out, (json.dumps(content, indent=1) + "\n").encode())
    print(json.dumps(problems[-1], indent=1) if arguments.json else as_text(problems[-1], out))
    return 0 if rows else 1


def as_text(problem: Mapping[str, Any], out: Path) -> str:
    """The table for a terminal."""
    plan = problem["plan"]
    lines = [
        f"{plan['network']}, batch {plan['batch']}, {plan['phase']}: {len(problem['candidates'])} granularities for each model",
        f"{'model':32} {'threads':>7} {'ms at auto':>11} {'ms at best':>11}  best granularity",
    ]
    for row in problem["rows"]:
        auto = f"{row['auto_time_s'] * 1e3:.3f}" if row["auto_time_s"] else "failed"
        lines.append(
            f"{row['model']:32} {row['threads']:7} {auto:>11} {row['step_time_s'] * 1e3:11.3f}  {row['granularity']}"
        )
    lines.append(
        f"kept in {out}; compare with: forktask compare --network {plan['network']} --batch {plan['batch']} --tuned {out}"
    )
    return "\n".join(lines)
