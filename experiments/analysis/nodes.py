"""What differs between the nodes of a pooled sweep: their limits, their environments, and ratios of times on each."""

from __future__ import annotations

from typing import Any

from ..machine.environment import is_volatile
from ..results.nodes import leaves
from .sweep import Sweep, capacity_of, kept


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
