"""Search the granularity at which each execution model is fastest: a sweep of candidates, the same for each model.

Its folder is one of any sweep; `forktask compare --tuned FOLDER` takes the best granularities from it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...cython_src.errors import UsageError
from ...cython_src.lowering.lower import lower
from ...cython_src.lowering.options import AUTO_THREADS, PlanOptions
from ...cython_src.networks.registry import get_network
from ..analysis.load import load
from ..subjects.memory import check_some_fit
from ..tables import Column, text_table
from ..tables.columns import count_column, text_column, time_column
from ..tables.numbers import format_time
from .configuration import Configuration, Grid, Measure
from .tuned import SearchSettings, best_rows

MOST_TASKS = 50_000  # Candidates with more tasks are left out.
REPEATS = 3
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
# Sizes of a block to draw from; 0: not cut.
CHOICES = {"channels": (0, 4, 8, 16, 32, 64), "rows": (0, 0, 0, 2, 4, 8, 16)}
CHOICES_OF_TOKENS = {
    "channels": (0, 32, 64, 128, 256, 512, 1024),
    "rows": (0, 0, 16, 32, 64, 128, 256),
    "heads": (0, 1, 2, 4),
}


def candidates(network: str, options: PlanOptions, budget: int, seed: int, threads: int = 1) -> list[str]:
    """Return granularities to try: "auto" first and what is cut for more threads, up to so many, then random ones that
    the network can be cut by, none twice. `options`: options of the plan; their granularity has no effect; `budget`:
    largest number of granularities."""
    generator = random.Random(seed)
    batch, choices = options.batch, CHOICES_OF_TOKENS if get_network(network).tokens else CHOICES
    doubled = (AUTO_THREADS << power for power in range(1, threads.bit_length()))
    known = ["auto", *(f"threads={count}" for count in doubled if count < 2 * threads)]
    result, plans = [], set()
    for number in range(20 * budget):
        if len(result) >= budget:
            break
        parts = {"images": generator.choice([n for n in SIZES if n <= batch] + [0])}
        parts |= {name: generator.choice(sizes) for name, sizes in choices.items()}
        text = ",".join(f"{name}={size}" for name, size in parts.items() if size)
        text = known[number] if number < len(known) else text
        if not text or text in result:
            continue
        try:
            plan = lower(network, options, granularity=text)
        except UsageError:
            continue
        if plan.num_tasks <= MOST_TASKS and _shape(plan) not in plans:
            plans.add(_shape(plan))
            result.append(text)
    return result


def _shape(plan) -> tuple:
    """Return a key that tells two cuts of one network apart."""
    return tuple((loop.name, loop.num_blocks, loop.blocks[0].bounds) for loop in plan.loops)


def search_of(grid: Grid, requested: SearchSettings) -> Configuration:
    """Return the sweep that searches granularities of one network and set of options."""
    further = requested.as_dict()
    budget, seconds = further.pop("budget"), further.pop("seconds")
    settings = Measure(
        repeats=REPEATS, target_s=seconds, warmup_s=min(1.0, seconds), check_iterations=1, profile=False, **further
    )
    plans = Configuration(grid=grid, measure=settings).plans()
    check_some_fit(plans, settings.memory_limit)  # candidates of a plan that does not would take minutes
    ((network, options),) = plans
    result = candidates(network, options, budget, settings.seed, max(grid.threads))
    return Configuration(grid=replace(grid, granularity=tuple(result)), measure=settings)


_COLUMNS = (
    text_column("model"),
    count_column("threads"),
    Column("at auto", lambda r: format_time(r["auto_time_s"]) if r["auto_time_s"] else "failed", True),
    time_column("step_time_s", "at best"),
    text_column("granularity", "best granularity"),
)


def search_result(folder: str | Path) -> dict[str, Any]:
    """Return what a folder of `forktask tune` says: plan (network and options), candidates, and rows as `best_rows`."""
    sweep = load(folder)
    plan = dict(next(iter(sweep.plans.values())).options)
    candidates = sweep.config["granularity"]
    del plan["granularity"]
    return {"plan": plan, "candidates": candidates, "rows": best_rows(sweep)}


def as_text(result: Mapping[str, Any], folder: str) -> str:
    """Format what `search_result` returns for a terminal."""
    plan = result["plan"]
    tried = f"{len(result['candidates'])} granularities for each model"
    lines = [f"{plan['network']}, batch {plan['batch']}, {plan['phase']}: {tried}"]
    lines += text_table(_COLUMNS, result["rows"])
    lines.append(
        f"kept in {folder}; compare with: "
        f"forktask compare --network {plan['network']} --batch {plan['batch']} --tuned {folder}"
    )
    return "\n".join(lines)
