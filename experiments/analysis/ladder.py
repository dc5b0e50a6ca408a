"""The ladder from fork-join to tasks: models in the order of their file, and the wait that each removes."""

from __future__ import annotations

import pandas as pd

from ...cython_src.plan.barriers import BARRIERS
from ..subjects.models import ModelSpec
from .speeds import compared, interval_columns, on_most_threads, speed_table
from .sweep import Point, Sweep, kept

START, CREATION = "start of threads", "creation of tasks"
# A model that waits at one of `BARRIERS` waits at all that follow it too.
WAITS = {"loop": "waits after loops", "phase": "waits after phases", "iteration": "waits after steps"}


def waits_of(spec: ModelSpec) -> list[str]:
    """Return the costs of a model of the CPU that another rung may remove, in the order of the ladder."""
    result = [START] if spec.model.joins_loops and spec.option("region") != "persistent" else []
    result += [WAITS[kind] for kind in BARRIERS[BARRIERS.index(spec.barrier) :] if kind in WAITS]
    creates = spec.model.runs_tasks and not spec.model.records
    return [*result, *([CREATION] if creates else [])]


def missing(sweep: Sweep, plan_id: str) -> str:
    """Return why a plan's models are no ladder."""
    if len(rungs(sweep, plan_id)) > 2 and any(m.barrier == "phase" for m in rungs(sweep, plan_id)):
        return ""
    return (
        "a ladder needs a fork-join form, and below it tasks that wait after phases (tasks:taskwait=phase, "
        "taskgraph:barrier=phase) and tasks that do not; run gpt2_ladder"
    )


def rungs(sweep: Sweep, plan_id: str) -> list[ModelSpec]:
    """Return the measured models of the CPU from the first fork-join form on, in the order of the file, or in which
    they were chosen."""
    measured = {model for model, _ in sweep.points_of(plan_id)}
    requested = sweep.shown or sweep.asked_models
    specs = [s for s in requested if s in measured and s.model.max_threads is None and not s.is_gpu]
    first = next((place for place, spec in enumerate(specs) if spec.model.joins_loops), len(specs))
    return specs[first:]


@kept
def ladder_table(sweep: Sweep, plan_id: str) -> pd.DataFrame:
    """Return a row for each rung on most threads, in the order of the file.

    Columns: model, threads, takes (the waits that the rung removes from the one above and those that it adds), time_s,
    low_s, high_s, usable, above (time over that of the rung above), above_low, above_high, above_verdict, ratio (time
    over that of the better fork-join form), ratio_low, ratio_high, verdict. NaN and "" where there is nothing to
    compare with.
    """
    speeds, threads = on_most_threads(speed_table(sweep)[lambda table: table["plan_id"] == plan_id])
    own = {row["model"]: row for row in speeds.to_dict("records")}
    rows, above = [], None
    for model in (model for model in rungs(sweep, plan_id) if model in own):
        point, *rung_above = (Point(plan_id, one, threads) for one in (model, above) if one)
        over = compared(sweep, point, rung_above)
        row = own[model]
        rows.append(
            {
                **{name: row[name] for name in ("model", "threads", "time_s", "low_s", "high_s", "usable")},
                "takes": _takes(above, model),
                **interval_columns("above", over.ratio),
                "above_verdict": over.verdict,
                **{name: row[name] for name in ("ratio", "ratio_low", "ratio_high", "verdict", "lacks")},
            }
        )
        above = model
    return pd.DataFrame(rows)


def _takes(above: ModelSpec | None, spec: ModelSpec) -> str:
    """Name the waits that a rung removes from the one above, and those that it adds."""
    own, steps = waits_of(spec), spec.option("unroll", 1)
    before = waits_of(above) if above else own
    taken, added = ([w for w in a if w not in b] for a, b in ((before, own), (own, before)))
    parts = [f"{sign} {', '.join(words)}" for sign, words in (("−", taken), ("+", added)) if words]
    if not above:
        parts = [f"all: {', '.join(own)}"]
    return "; ".join([*parts, *([f"holds {steps} steps"] if steps > 1 else [])]) or "the same waits"
