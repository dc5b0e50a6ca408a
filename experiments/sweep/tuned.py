"""The best granularity of each model, from a folder of a sweep over granularities."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ...cython_src.errors import UsageError
from ...cython_src.lowering.options import PlanOptions, plan_options
from ..results.folder import short_id
from ..subjects.models import ModelSpec

if TYPE_CHECKING:
    from ..analysis.sweep import Sweep


def problem_id(network: str, options: PlanOptions) -> str:
    """Return the identity of a plan's options without the granularity."""
    return short_id({"network": network, **options.with_changes(granularity="auto").as_dict()})


def best_granularities(sweep: Sweep) -> dict[tuple[str, ModelSpec, int], str]:
    """Return the granularity at which a model is fastest on a number of threads, by (problem, model, threads)."""
    result: dict[tuple[str, ModelSpec, int], dict[str, float]] = {}
    for point in sweep.points():
        plan = sweep.plans[point.plan_id]
        if not plan.interference:
            key = problem_id(plan.network, plan_options(plan.options)), point.model, point.threads
            result.setdefault(key, {})[plan.granularity] = sweep.times.time(point).value
    return {key: min(times, key=times.__getitem__) for key, times in result.items()}


def read_tuned(folder: str | os.PathLike) -> dict[tuple[str, ModelSpec, int], str]:
    """Return the `best_granularities` of a folder. Raises `UsageError`: no such folder, or one that holds something
    else."""
    from ..analysis.load import load

    try:
        return best_granularities(load(folder))
    except UsageError as error:
        raise UsageError(f"tuned must be a folder of forktask compare or run, got {str(folder)!r}: {error}") from None
