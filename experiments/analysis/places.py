"""Where the generations of a sweep were measured, on which node and on CPUs near to each other or far apart: what
differs between nodes, and ratios of times in each place."""

from __future__ import annotations

from statistics import median
from typing import Any

from ..machine.environment import is_volatile
from ..results.nodes import leaves
from .speeds import speed_table
from .sweep import Sweep, capacity_of, kept

NEAR, FAR = "near", "far"


@kept
def sweep_on(sweep: Sweep, node: str) -> Sweep:
    """Return a sweep with the times of one node's generations alone."""
    return sweep.with_turns(
        {
            point: {turn: seconds for turn, seconds in own.items() if sweep.node_of[turn[0]] == node}
            for point, own in sweep.turns.items()
        }
    )


def node_limits(sweep: Sweep) -> list[dict[str, Any]]:
    """Return a row for each node: node, host, generations, peak_flops_per_s, bandwidth_bytes_per_s and capacity, those
    of most threads."""
    result = []
    for name in sweep.nodes:
        machines = [row for row in sweep.machines if row.node.name == name]
        last = machines[-1] if machines else sweep.machine
        threads = max(map(int, last.capacity), default=1)
        capacities = [row for row in sweep.capacities if row.node.name == name]
        result.append(
            {
                "node": name,
                "host": last.node.host,
                "generations": sum(node == name for node in sweep.node_of.values()),
                "peak_flops_per_s": last.peak_flops_per_s_1thread,
                "bandwidth_bytes_per_s": last.bandwidth_bytes_per_s.get(str(threads)),
                "capacity": capacity_of([*machines, *capacities], threads).value,
            }
        )
    return result


def node_differences(sweep: Sweep) -> list[dict[str, str]]:
    """Return a row for each entry of the environment that differs, and each of its values: entry, value, nodes."""
    environments = {name: dict(leaves(run.environment)) for name, run in sweep.nodes.items()}
    entries = dict.fromkeys(entry for own in environments.values() for entry in own)
    result = []
    for entry in entries:
        nodes: dict[str, list[str]] = {}
        for name, own in environments.items():
            nodes.setdefault(own.get(entry, ""), []).append(name)
        if len(nodes) > 1 and not is_volatile(entry):
            result += [{"entry": entry, "value": value, "nodes": ", ".join(on)} for value, on in nodes.items()]
    return result


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
