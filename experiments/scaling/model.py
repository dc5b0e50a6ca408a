"""Model tier: predictions from the graph and durations stored in a baseline. It reads no clock.

The baseline is a small JSON file in git, `scaling_baseline.json` beside the tests: for each test and subject
the graph's counts, the nanoseconds of each block, and what follows from both: work, span, cycle mean, and the
fork-join bound and speedups on each number of threads. The graph of today with the *stored* durations must
give the stored predictions. So only a change of the graph changes them, and the counts of each loop show which.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

from msgspec import Meta

from ...cython_src.binding.bind import BoundPlan
from ...cython_src.reading import Amount, Count, Digits, Name, Number, read_json
from ...tasking.executor import expected_cost_ns
from ..bounds.bounds import durations_by_loop, plan_bounds, predicted_times, record_graph
from ..results.files import write_atomically
from ..sampling.profile import measure_profile
from ..subjects.models import SERIAL

BASELINE = "scaling_baseline.json"
SCHEMA_VERSION = 1
PROFILE_S = 0.3
DIGITS = 6  # significant digits of predictions in the file; the comparison allows for their rounding
TOLERANCE = 5e-6
Nanoseconds = Annotated[int, Meta(gt=0, lt=10**15)] | Annotated[float, Meta(gt=0, lt=1e15)]


class LoopCounts(TypedDict):
    """Facts of the loops of one name: blocks, and edges into them."""

    blocks: Number
    edges: Count


class GraphCounts(TypedDict):
    """Facts of a graph; edges within an iteration, and to the next one."""

    tasks: Number
    edges: Count
    cross_edges: Count
    joins: Count
    loops: dict[Name, LoopCounts]


class Predictions(TypedDict):
    """Predictions for one number of threads."""

    forkjoin_us: Amount
    speedup: dict[Name, Amount]


class Predicted(TypedDict):
    """Bounds, and the speedups that they allow."""

    work_us: Amount
    span_us: Amount
    cycle_mean_us: Amount
    threads: dict[Digits, Predictions]


class BaselineEntry(TypedDict):
    """Entry of a subject."""

    graph: GraphCounts
    block_ns: dict[Name, Annotated[list[Nanoseconds], Meta(min_length=1)]]
    predicted: Predicted


class BaselineFile(TypedDict):
    """Content of a baseline: entries by test and subject."""

    schema_version: Literal[1]
    tests: dict[Name, dict[Name, BaselineEntry]]


def graph_facts(plan) -> GraphCounts:
    """Count tasks, edges and joins of the closed graph, and for each loop its blocks and the edges into them."""
    import numpy as np

    graph = record_graph(plan.accesses, closed=True)
    _, target, token = graph.edges()
    into = np.bincount(target, minlength=graph.num_nodes)
    loops: dict[str, LoopCounts] = {}
    for loop in plan.loops:
        facts = loops.setdefault(loop.name, {"blocks": 0, "edges": 0})
        facts["blocks"] += loop.num_blocks
        facts["edges"] += int(into[loop.first_task : loop.first_task + loop.num_blocks].sum())
    return {
        "tasks": graph.num_tasks,
        "edges": int((token == 0).sum()),
        "cross_edges": int((token == 1).sum()),
        "joins": graph.num_joins,
        "loops": loops,
    }


def graph_differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Describe the counts that differ, in a line, and the loops that differ, a line each."""
    counts = [
        f"{name.replace('_', ' ')} {before.get(name)} -> {now.get(name)}"
        for name in ("tasks", "edges", "cross_edges", "joins")
        if before.get(name) != now.get(name)
    ]
    lines = [", ".join(counts)] if counts else []
    old, new = before["loops"], now["loops"]
    for name in [*old, *(n for n in new if n not in old)]:
        if name not in new:
            lines.append(f"loop {name} is gone")
        elif name not in old:
            lines.append(f"loop {name} is new ({new[name]['blocks']} blocks)")
        elif old[name] != new[name]:
            changed = [w for w in ("blocks", "edges") if old[name][w] != new[name][w]]
            lines.append(f"loop {name}: {', '.join(f'{w} {old[name][w]} -> {new[name][w]}' for w in changed)}")
    return lines


def make_entry(bound: BoundPlan, job: Mapping[str, Any]) -> dict[str, Any]:
    """Return graph, durations and predictions of a plan.

    Durations come from the stored entry where a loop has as many blocks as there; from a profile of a serial
    run where `update` asks for it; else, for this one comparison, a loop cut anew keeps its stored work in
    equal blocks, and a new loop costs per flop and byte what the stored ones do. "assumed" names such loops.

    `job`: of the process; `predict` has "stored" (an entry or None), "update" and "thread_counts".
    """
    plan, stored, update = bound.plan, job["predict"]["stored"], job["predict"]["update"]
    graph = graph_facts(plan)
    names = list(graph["loops"])
    known = {
        name: stored["block_ns"][name]
        for name in names
        if stored and len(stored["block_ns"].get(name, ())) == graph["loops"][name]["blocks"]
    }
    missing = [name for name in names if name not in known]
    if missing and update:
        row = measure_profile({**job, "model": SERIAL, "cpus": None, "target_s": PROFILE_S}, bound)
        known |= {name: [max(1, round(t * 1e9)) for t in row["block_time_s"][name]] for name in missing}
        missing = []
    elif missing:
        known.update(_assumed(plan, stored, missing))
    block_ns = {name: known[name] for name in names}
    return {
        "graph": graph,
        "block_ns": block_ns,
        "predicted": predictions(plan, block_ns, job["predict"]["thread_counts"]),
        "assumed": missing,
    }


def _assumed(plan, stored: Mapping[str, Any], missing: Sequence[str]) -> dict[str, list[int]]:
    cost = expected_cost_ns(plan)
    expected: dict[str, list[float]] = {}
    for loop in plan.loops:
        expected.setdefault(loop.name, []).extend(cost[loop.first_task : loop.first_task + loop.num_blocks])
    both = [name for name in expected if name in stored["block_ns"]]
    rate = sum(sum(stored["block_ns"][n]) for n in both) / sum(sum(expected[n]) for n in both) if both else 1.0
    result = {}
    for name in missing:
        if name in stored["block_ns"]:
            total, count = sum(stored["block_ns"][name]), len(expected[name])
            result[name] = [total / count] * count
        else:
            result[name] = [t * rate for t in expected[name]]
    return result


def predictions(plan, block_ns: Mapping[str, Sequence[float]], threads: Sequence[int]) -> Predicted:
    """Return bounds, in microseconds, and the speedups that they allow "forkjoin", "taskgraph" and "taskiter".
    Undisturbed threads, no cost of the runtime: upper bounds of speedup."""
    seconds = {name: [t * 1e-9 for t in times] for name, times in block_ns.items()}
    loop_times = durations_by_loop(plan.loops, seconds)
    graph = plan_bounds(plan, seconds)
    counts = {}
    for n in threads:
        floors = predicted_times(loop_times, n, graph=graph)
        counts[str(n)] = {
            "forkjoin_us": _rounded(floors["forkjoin"] * 1e6),
            "speedup": {
                model: _rounded(graph.work_s / floors[model]) for model in ("forkjoin", "taskgraph", "taskiter")
            },
        }
    return {
        "work_us": _rounded(graph.work_s * 1e6),
        "span_us": _rounded(graph.span_s * 1e6),
        "cycle_mean_us": _rounded(graph.cycle_mean_s * 1e6),
        "threads": counts,
    }


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def differences(stored: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """List what differs between two entries' predictions, a line each, then the loops that changed."""
    lines = []
    before, after = _flat(stored["predicted"]), _flat(now["predicted"])
    for name in [*before, *(n for n in after if n not in before)]:
        old, new = before.get(name), after.get(name)
        if old == new:
            continue
        if not old or new is None:
            lines.append(f"{name}: {_said(old)} -> {_said(new)}")
        elif abs(new - old) > TOLERANCE * abs(old):
            lines.append(f"{name}: {_said(old)} -> {_said(new)} ({new / old - 1:+.2%})")
    if lines:
        lines += graph_differences(stored["graph"], now["graph"])
    if now["assumed"] and lines:
        lines.append(f"durations assumed, not measured: {', '.join(now['assumed'])}")
    return lines


def _flat(predicted: Mapping[str, Any]) -> dict[str, float]:
    flat = {
        f"{n.removesuffix('_us').replace('_', ' ')} (µs)": predicted[n] for n in ("work_us", "span_us", "cycle_mean_us")
    }
    for count, values in predicted["threads"].items():
        flat[f"fork-join bound on {count} (µs)"] = values["forkjoin_us"]
        flat.update({f"predicted speedup of {m} on {count}": s for m, s in values["speedup"].items()})
    return flat


def _said(value: float | None) -> str:
    return "none" if value is None else f"{value:g}"


class Baselines:
    """The baseline files of a test session, read once and written at its end. `update`: entries may be replaced."""

    def __init__(self, update: bool):
        self.update = update
        self._entries: dict[Path, dict[str, Any]] = {}
        self._changed: set[Path] = set()

    def entry(self, folder: Path, test: str, subject: str) -> dict[str, Any] | None:
        """Return the stored entry of a subject, or None."""
        return self._read(folder / BASELINE).get(test, {}).get(subject)

    def subjects(self, folder: Path, test: str) -> list[str]:
        """Names of the subjects of a test that have entries."""
        return list(self._read(folder / BASELINE).get(test, {}))

    def put(self, folder: Path, test: str, subject: str, entry: Mapping[str, Any]) -> None:
        """Replace an entry; `write` writes it."""
        path = folder / BASELINE
        kept = {key: entry[key] for key in ("graph", "block_ns", "predicted")}
        entries = self._read(path).setdefault(test, {})
        if entries.get(subject) != kept:
            entries[subject] = kept
            self._changed.add(path)

    def _read(self, path: Path) -> dict[str, Any]:
        if path not in self._entries:
            self._entries[path] = {}
            if path.exists():
                title = f"baseline of schema version {SCHEMA_VERSION}"
                remedy = "restore it from git, or delete it and run pytest --scaling-update-baseline"
                self._entries[path] = read_json(path, title, BaselineFile, remedy)["tests"]
        return self._entries[path]

    def write(self) -> list[Path]:
        """Write the files that changed and return them."""
        for path in sorted(self._changed):
            content = {"schema_version": SCHEMA_VERSION, "tests": self._entries[path]}
            text = json.dumps(content, indent=1, sort_keys=True)
            text = re.sub(r"\[\s+([\d.,\s]+?)\s+\]", lambda m: f"[{', '.join(m[1].split(','))}]", text)
            write_atomically(path, re.sub(r",\s+(?=[\d.]+[,\]])", ", ", text) + "\n")
        written, self._changed = sorted(self._changed), set()
        return written
