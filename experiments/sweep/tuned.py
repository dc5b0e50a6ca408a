"""The best granularity of each model, from a folder of `forktask tune` or of any sweep over granularities."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

from ...cython_src.errors import UsageError
from ...cython_src.lowering.options import PlanOptions, plan_options
from ...cython_src.records import about
from ...cython_src.typed_text import MOST_SECONDS
from ..machine.placement import Check, Placement
from ..results.folder import short_id
from ..subjects.models import ModelSpec

if TYPE_CHECKING:
    from ..analysis.sweep import Sweep


MODELS = ("forkjoin", "forkjoin:region=persistent", "taskgraph", "taskiter")  # of a search, by default


class SearchSettings(Placement, frozen=True):
    """Options of a search, beside those of the plan."""

    budget: Annotated[int, about("candidates", least=2, below=10_001)] = 12
    seconds: Annotated[float, about("timed for each", above=0, below=MOST_SECONDS)] = 0.3
    seed: Annotated[int, about("of the candidates", least=0)] = 0
    check: Check = True


def problem_id(network: str, options: PlanOptions) -> str:
    """Return the identity of a plan's options without the granularity."""
    return short_id({"network": network, **options.with_changes(granularity="auto").as_dict()})


def best_rows(sweep: Sweep) -> list[dict[str, Any]]:
    """Return problem, model, threads, granularity, step_time_s and auto_time_s of each model on each number of threads,
    at the granularity at which it is fastest."""
    result: dict[tuple, dict[str, float]] = {}
    for point in sweep.points():
        plan = sweep.plans[point.plan_id]
        if not plan.interference:
            key = problem_id(plan.network, plan_options(plan.options)), point.model, point.threads
            result.setdefault(key, {})[plan.granularity] = sweep.times.time(point).value
    return [
        {
            **dict(zip(("problem", "model", "threads"), key, strict=True)),
            "granularity": (best := min(times, key=times.__getitem__)),
            "step_time_s": times[best],
            "auto_time_s": times.get("auto"),
        }
        for key, times in result.items()
    ]


def read_tuned(folder: str | os.PathLike) -> dict[tuple[str, ModelSpec, int], str]:
    """Read the granularities at which models are fastest, by (problem, model, threads). Raises `UsageError`: no such
    folder, or one that holds something else."""
    from ..analysis.load import load

    try:
        return {(row["problem"], row["model"], row["threads"]): row["granularity"] for row in best_rows(load(folder))}
    except UsageError as error:
        raise UsageError(f"tuned must be a folder of forktask tune, got {str(folder)!r}: {error}") from None
