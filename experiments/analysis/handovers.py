"""Ratios of the generations that found the CPUs in another place than most did."""

from __future__ import annotations

from statistics import median
from typing import Any

from .speeds import speed_table
from .sweep import Sweep, kept

NEAR, FAR = "near", "far"


@kept
def sweep_elsewhere(sweep: Sweep, place: str) -> Sweep:
    """Return a sweep with the times of the generations that are left out since their CPUs lay nearer to each other, or
    farther apart, than most: the same estimates for another state of the host."""
    keys = {key for key, (seconds, usual) in sweep.quiet.moved.items() if (seconds > usual) == (place == FAR)}
    return sweep.with_turns(
        {
            (plan_id, model, threads): {turn: seconds for turn, seconds in own.items() if turn[:2] in keys}
            for (plan_id, _, model, threads), own in sweep.quiet.elsewhere.items()
        }
    )


@kept
def handover_table(sweep: Sweep) -> list[dict[str, Any]]:
    """Return a row for each class of hand-overs, plan and model on most threads: place ("near" or "far"), handover_s
    (median), and the columns of `speed_table`; none where all generations had their CPUs alike."""
    moved = sweep.quiet.moved
    places = sorted({FAR if seconds > usual else NEAR for seconds, usual in moved.values()})
    if not places:
        return []
    usual_s = next(usual for _, usual in moved.values())
    views = {NEAR if places == [FAR] else FAR if places == [NEAR] else "between": (usual_s, sweep)}
    for place in places:
        seconds = [one for one, usual in moved.values() if (one > usual) == (place == FAR)]
        views[place] = median(seconds), sweep_elsewhere(sweep, place)
    threads = {plan_id: max(count for _, count in sweep.points_of(plan_id)) for plan_id in sweep.plan_ids()}
    return [
        {"place": place, "handover_s": handover_s, **row}
        for place, (handover_s, view) in sorted(views.items(), key=lambda view: view[1][0])
        for row in speed_table(view).to_dict("records")
        if row["reference"] and row["threads"] == threads[row["plan_id"]]
    ]
