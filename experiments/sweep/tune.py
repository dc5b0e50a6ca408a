"""Search the granularity at which each execution model is fastest, with the same budget for each.

Every model gets the same candidates, which take turns: all of them in one generation of processes, then the fastest few
in several. The best ones are kept in a file that `forktask compare --tuned FILE` reads; the runs of the search are
never reported as results.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from ...cython_src.errors import UsageError
from ...cython_src.lowering.lower import lower
from ...cython_src.lowering.options import PlanOptions
from ...cython_src.networks.registry import get_network
from ..analysis.estimates import Estimates
from ..plan_check.checking import check_plans
from ..results.files import check_writable
from ..results.turns import GroupTurns, Turn, quiet_times
from ..sampling.generation import Contestant, Generation, contestant_of, measure_generation
from ..sampling.schedule import Job, Schedule
from ..subjects.memory import check_some_fit
from ..subjects.models import ModelSpec
from ..tables import Column, text_table
from ..tables.columns import count_column, text_column, time_column
from ..tables.numbers import format_time, plural
from .configuration import Configuration
from .tuned import keep_tuned, read_tuned

MOST_TASKS = 50_000  # Candidates with more tasks are left out.
FINALISTS = 3
FINAL_REPEATS = 3
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
# Sizes of a block to draw from; 0: not cut.
CHOICES = {"channels": (0, 4, 8, 16, 32, 64), "rows": (0, 0, 0, 2, 4, 8, 16)}
CHOICES_OF_TOKENS = {
    "channels": (0, 32, 64, 128, 256, 512, 1024),
    "rows": (0, 0, 16, 32, 64, 128, 256),
    "heads": (0, 1, 2, 4),
}


def candidates(network: str, options: PlanOptions, budget: int, seed: int) -> list[str]:
    """Return granularities to try: "auto" first, then random ones that the network can be cut by, none twice.

    Parameters
    ----------
    options : PlanOptions
        Options of the plan; their granularity has no effect.
    budget : int
        Largest number of granularities.
    """
    generator = random.Random(seed)
    batch, choices = options.batch, CHOICES_OF_TOKENS if get_network(network).tokens else CHOICES
    found, plans = ["auto"], {_shape(lower(network, options, granularity="auto"))}
    for _ in range(20 * budget):
        if len(found) >= budget:
            break
        parts = {"images": generator.choice([n for n in SIZES if n <= batch] + [0])}
        parts |= {name: generator.choice(sizes) for name, sizes in choices.items()}
        text = ",".join(f"{name}={size}" for name, size in parts.items() if size)
        if not text or text in found:
            continue
        try:
            plan = lower(network, options, granularity=text)
        except UsageError:
            continue
        if plan.num_tasks <= MOST_TASKS and _shape(plan) not in plans:
            plans.add(_shape(plan))
            found.append(text)
    return found


def _shape(plan) -> tuple:
    """Return a key that tells two cuts of one network apart."""
    return tuple((loop.name, loop.num_blocks, loop.blocks[0].bounds) for loop in plan.loops)


Times = dict[tuple[ModelSpec, int], dict[str, dict[Turn, float]]]  # seconds of a contestant's granularities, by turn


def search(
    contestants: Sequence[tuple[ModelSpec, int]],
    found: Sequence[str],
    measure: Callable[[tuple[ModelSpec, int], Sequence[str], int], Iterable[GroupTurns]],
    groups: Sequence[GroupTurns],
) -> Iterator[Job]:
    """Yield what is measured to find the best granularity of each contestant: all, then the fastest several times.

    Parameters
    ----------
    contestants : sequence of (model, threads)
    found : sequence of str
        Candidates, the same for all.
    measure : callable
        (contestant, granularities, repetition) -> the groups that took turns; points are (contestant, granularity).
    groups : sequence of GroupTurns
        Those so far.
    """
    for contestant in contestants:
        chosen = [*found]
        for repetition in range(1 + FINAL_REPEATS):
            if repetition == 1:
                first = times_of(groups).get(contestant, {})
                estimates = Estimates(first)
                fastest = sorted(first, key=lambda granularity: estimates.time(granularity).value)
                finalists = dict.fromkeys(["auto", *fastest[:FINALISTS]])
                chosen = [granularity for granularity in finalists if granularity in first]
            if not chosen:
                break
            said = f"{contestant[0]} on {contestant[1]}, {plural(len(chosen), 'granularity', 'granularities')}"
            yield Job("tuning", said, partial(measure, contestant, chosen, repetition))


def times_of(groups: Iterable[GroupTurns]) -> Times:
    """Return the quiet times of each contestant's granularities."""
    times: Times = {}
    for (contestant, granularity), turns in quiet_times(groups).times.items():
        times.setdefault(contestant, {})[granularity] = turns
    return times


def best_of(groups: Sequence[GroupTurns]) -> list[dict[str, Any]]:
    """Return model, threads, granularity, step_time_s, auto_time_s and times of each contestant that finished.

    The best granularity is one of those that were measured in most generations: the finalists, unless these failed.
    """
    rows = []
    for contestant, times in times_of(groups).items():
        estimates = Estimates(times)
        most = max(map(estimates.generations, times))
        finished = [granularity for granularity in times if estimates.generations(granularity) == most]
        best = estimates.fastest(finished)
        rows.append(
            {
                "model": contestant[0],
                "threads": contestant[1],
                "granularity": best,
                "step_time_s": estimates.time(best).value,
                "auto_time_s": estimates.time("auto").value if "auto" in finished else None,
                "times": {granularity: [*estimates.times(granularity).values()] for granularity in times},
            }
        )
    return rows


def tune(configuration: Configuration, budget: int, out: str) -> dict[str, Any]:
    """Search, keep the result in the file `out`, and return it: {"plan", "candidates", "rows"}.

    Parameters
    ----------
    configuration : Configuration
        Of one network and set of options; its models and threads are the contestants.
    budget : int
        Largest number of candidates, from 2 on.

    Raises
    ------
    UsageError
        A model that this machine cannot run, a file that another program wrote, or an unsound plan.
    """
    configuration.check_machine()
    check_some_fit(configuration.plans())
    settings = configuration.measure
    contestants = [(point.model, point.threads) for point in configuration.points()]
    ((network, options),) = configuration.plans()
    check_writable(out)  # this and the next raise before anything is measured
    if os.path.exists(out):
        read_tuned(out)
    found = candidates(network, options, budget, settings.seed)
    plans = {g: {"network": network, **options.with_changes(granularity=g).as_dict()} for g in found}
    passed = check_plans([(plan, contestants) for plan in plans.values()], settings.check)
    checks = dict(zip(found, passed, strict=True))

    def as_contestant(model: ModelSpec, count: int, granularity: str) -> Contestant:
        return contestant_of(
            granularity,
            model,
            count,
            plan=plans[granularity],
            planned_bytes=sum(lower(**plans[granularity]).memory_bytes().values()),
            limit_s=settings.time_limit_s,
            seed=settings.seed,
            check_iterations=settings.check_iterations,
            warmup_s=settings.warmup_s,
            cpus=settings.cpus(count),
            memory_policy=settings.memory_policy,
        )

    def measure(
        contestant: tuple[ModelSpec, int], granularities: Sequence[str], repetition: int
    ) -> Iterator[GroupTurns]:
        processes = [as_contestant(*contestant, granularity) for granularity in granularities]
        seed = f"{settings.seed}/{contestant}/{repetition}"
        measured = measure_generation(Generation(processes, "auto", settings.target_s, settings.least_rounds, seed))
        for number, group in enumerate(measured):
            turns = {(contestant, granularity): own for granularity, own in group.turns().items()}
            yield GroupTurns(repetition, (contestant, number), group.rounds, turns)

    groups: list[GroupTurns] = []
    jobs = search(contestants, found, measure, groups)
    Schedule("tuning", groups.append).run(jobs, len(contestants) * (1 + FINAL_REPEATS))
    rows = best_of(groups)
    plan = {"network": network, **options.as_dict()}
    del plan["granularity"]
    rows = [{**row, "seconds": settings.target_s, "check": checks[row["granularity"]]} for row in rows]
    problem = {"plan": plan, "candidates": found, "rows": rows}
    if rows:
        keep_tuned(out, problem)
    return problem


_COLUMNS = (
    text_column("model"),
    count_column("threads"),
    Column("at auto", lambda r: format_time(r["auto_time_s"]) if r["auto_time_s"] else "failed", True),
    time_column("step_time_s", "at best"),
    text_column("granularity", "best granularity"),
)


def as_text(problem: Mapping[str, Any], out: str) -> str:
    """Format the result of `tune` for a terminal."""
    plan = problem["plan"]
    tried = f"{len(problem['candidates'])} granularities for each model"
    lines = [f"{plan['network']}, batch {plan['batch']}, {plan['phase']}: {tried}"]
    if not problem["rows"]:
        return "\n".join([*lines, f"no model could be measured; {out} stays as it was"])
    lines += text_table(_COLUMNS, problem["rows"])
    lines.append(
        f"kept in {out}; compare with: "
        f"forktask compare --network {plan['network']} --batch {plan['batch']} --tuned {out}"
    )
    return "\n".join(lines)
