"""From samples to METG: medians and extremes over processes, as text and as rows."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...cython_src.lowering.options import format_value
from ...cython_src.typed_text import rounded
from ..results.disturbance import stopped_text
from ..results.folder import canonical_json
from ..results.rows import MetgFailureRow, MetgRow, OfGraph
from ..results.turns import cores_text, moved
from ..tables import USABLE, Column, count_column, text_column, text_table
from ..tables.numbers import moved_text
from .graphs import describe_graph, graph_name

if TYPE_CHECKING:
    import pandas as pd

HALF = 0.5
MUCH_PRESSURE = 0.1  # figures are doubtful above this part of time in which some thread waited for a CPU
DISTURBED = "disturbed"


def metg_s(work: Sequence[float], efficiency: Sequence[float], unit_s: float) -> float | None:
    """Return the shortest task that reaches half efficiency: wall time x threads / tasks, in seconds.

    Parameters
    ----------
    work : sequence of float
        Units of work of an average task, ascending.
    efficiency : sequence of float
        Efficiency at each work: work x unit_s / (wall time x threads / tasks).
    unit_s : float
        Time of a unit of work.

    Returns
    -------
    float or None
        None: no task reached it. Between two points the efficiency is taken as linear in the logarithm of the
        work; before the first one, in the work.
    """
    for i, value in enumerate(efficiency):
        if value < HALF:
            continue
        if i == 0:
            at = work[0] * HALF / value
        else:
            part = (HALF - efficiency[i - 1]) / (value - efficiency[i - 1])
            at = math.exp(math.log(work[i - 1]) + part * (math.log(work[i]) - math.log(work[i - 1])))
        return at * unit_s / HALF
    return None


def take_of(row) -> tuple[int, str]:
    """Return the take that a row, or what becomes one, is part of: generation, and graph with number of threads."""
    return row.repetition, canonical_json([dict(row.graph), row.threads])


def summarise(rows: Sequence[OfGraph]) -> dict[str, Any]:
    """Return medians and extremes over generations; of what was tried several times, the last attempt counts.

    Returns
    -------
    dict
        unit_s: {kernel: seconds of a unit of work, the denominator}; takes: how many repetitions of all graphs; moved:
        for each of them that is left out, since the host had moved the CPUs, seconds of a hand-over and the usual ones;
        results: one for each graph, model and thread count with metg_s, empty_task_s (wall time of an iteration /
        tasks), record_s, close_s, prepare_s (of a task) as {"median", "low", "high"} or None; pressure: part of the
        time in which some thread waited for a CPU; withheld: "quick", "disturbed" or "", why there is no estimate of
        METG; usable: whether others left it alone; curve: list of {work, task_s, granularity_s, efficiency,
        efficiency_low, efficiency_high}; failures: list of messages.
    """
    last = {(take_of(row), row.model): row for row in rows}
    takes = {take: row for (take, _), row in last.items()}
    elsewhere = moved({take: statistics.median(row.handover_s) for (take, _), row in last.items() if row.handover_s})
    rows = [row for (take, _), row in last.items() if take not in elsewhere]
    good = [row for row in rows if isinstance(row, MetgRow)]
    kernels = dict.fromkeys(row.graph["kernel"] for row in good)
    unit_s = {kernel: min(row.unit_s for row in good if row.graph["kernel"] == kernel) for kernel in kernels}
    groups: dict[tuple, list[OfGraph]] = {}
    for row in rows:
        groups.setdefault((take_of(row)[1], row.model), []).append(row)
    results = []
    for group in groups.values():
        measured = [row for row in group if isinstance(row, MetgRow)]
        entry: dict[str, Any] = {
            **{name: getattr(group[0], name) for name in ("graph", "model", "threads")},
            "failures": [f"{row.reason}: {row.message}" for row in group if isinstance(row, MetgFailureRow)],
            "repeats": len(measured),
        }
        results.append(entry | (_summarise_group(measured, unit_s[measured[0].graph["kernel"]]) if measured else {}))
    results.sort(key=lambda e: (graph_name(e["graph"]), e["threads"], e["model"]))
    return {
        "unit_s": unit_s,
        "takes": len(takes),
        "moved": [*elsewhere.values()],
        "stopped": stopped_text(row.disturbance for row in good),
        "cores": cores_text((row for take, row in takes.items() if take not in elsewhere), "Cores were"),
        "results": results,
    }


def _summarise_group(group: Sequence[MetgRow], unit_s: float) -> dict[str, Any]:
    first = group[0]
    metgs, efficiencies = [], {}
    for row in group:
        works = [p.mean_work for p in row.points]
        walls = [min(p.iteration_times_s) / p.num_tasks for p in row.points]
        values = [work * unit_s / (wall * first.parallel) for work, wall in zip(works, walls, strict=True)]
        metgs.append(metg_s(works, values, unit_s))
        for work, value in zip(works, values, strict=True):
            efficiencies.setdefault(work, []).append(value)
    tasks = first.empty.num_tasks
    curve = [
        {
            "work": work,
            "task_s": work * unit_s,
            "granularity_s": work * unit_s / statistics.median(values),
            "efficiency": statistics.median(values),
            "efficiency_low": min(values),
            "efficiency_high": max(values),
        }
        for work, values in sorted(efficiencies.items())
    ]

    def spread(values):
        if None in values:
            return None
        return {"median": statistics.median(values), "low": min(values), "high": max(values)}

    metg = spread(metgs)
    pressure = statistics.median((row.disturbance.get("pressure_some_us") or 0) * 1e-6 / row.wall_s for row in group)
    asked_for = len({*first.cpus}) < len(first.cpus)  # more threads than CPUs
    usable = asked_for or pressure <= MUCH_PRESSURE
    withheld = "quick" if first.quick else "" if usable else DISTURBED
    # The value is that of the drawn curve of medians, so that its mark lies on the curve.
    middle = metg_s([p["work"] for p in curve], [p["efficiency"] for p in curve], unit_s)
    if metg is not None:
        metg = None if middle is None else {**metg, "median": min(max(middle, metg["low"]), metg["high"])}
    return {
        "pressure": pressure,
        "usable": usable,
        "withheld": withheld,
        "metg_s": None if withheld else metg,
        "empty_task_s": spread([min(r.empty.iteration_times_s) / tasks for r in group]),
        "record_s": spread([r.record_s and r.record_s / tasks for r in group]),
        "close_s": spread([None if r.close_s is None else r.close_s / tasks for r in group]),
        "prepare_s": spread([r.empty.prepare_s / tasks for r in group]),
        "curve": curve,
    }


def format_table(table: Mapping[str, Any]) -> str:
    """Format the results as text."""
    lines = [
        f"kernel {kernel} alone: {rounded(unit * 1e9)} ns per unit of work; efficiencies are against this "
        "times the threads"
        for kernel, unit in table["unit_s"].items()
    ]
    lines += [text for text in (table["stopped"], table["cores"]) if text]
    if pressed := [e["pressure"] for e in table["results"] if e.get("pressure", 0.0) > MUCH_PRESSURE]:
        lines.append(
            f"disturbed: threads waited for a CPU in up to {max(pressed):.0%} of the time (other programs, competing "
            f"processes or more threads than CPUs); figures on a quiet machine are lower"
        )
    if table["moved"]:
        lines.append(moved_text(table["moved"], len(table["moved"]), table["takes"]))
    if any(e.get("withheld") == "quick" for e in table["results"]):
        lines.append("--quick is a check that it works: METG is withheld; leave --quick out to estimate it")
    if any(e.get("withheld") == DISTURBED for e in table["results"]):
        lines.append("METG of disturbed runs is withheld: measure again on a quiet machine, in a new folder")
    for _, group in itertools.groupby(table["results"], lambda entry: entry["graph"]):
        entries = list(group)
        measured = [entry for entry in entries if entry["repeats"]]
        lines += ["", describe_graph(entries[0]["graph"])]
        lines += text_table(COLUMNS, measured) if measured else []
        lines += [
            f"{entry['model']} on {entry['threads']}: {entry['failures'][0].splitlines()[0]}"
            for entry in entries
            if not entry["repeats"]
        ]
    return "\n".join(lines)


def _range(entry: Mapping[str, Any]) -> str:
    metg = entry["metg_s"]
    return "" if metg is None else f"{rounded(metg['low'] * 1e9)}-{rounded(metg['high'] * 1e9)}"


def metg_text(entry: Mapping[str, Any]) -> str:
    """Write METG(50 %) of an entry in nanoseconds, or why there is none."""
    metg = entry["metg_s"]
    return entry.get("withheld") or "not reached" if metg is None else rounded(metg["median"] * 1e9)


def _ns(name: str, heading: str) -> Column:
    return Column(heading, lambda e: "" if e[name] is None else rounded(e[name]["median"] * 1e9), True)


COLUMNS = (
    text_column("model"),
    count_column("threads"),
    Column("METG(50 %), ns", metg_text, True),
    Column("range, ns", _range, True),
    _ns("empty_task_s", "ns per task: empty"),
    *(_ns(f"{name}_s", name) for name in ("record", "close", "prepare")),
    USABLE,
)


def as_frame(table: Mapping[str, Any]) -> pd.DataFrame:
    """Return the results as rows: first the columns that identify graph, model and threads, then numbers."""
    import pandas as pd

    rows = []
    for entry in table["results"]:
        row = {name: format_value(value) for name, value in entry["graph"].items()}
        row |= {name: entry[name] for name in ("model", "threads", "repeats")}
        for name in ("metg_s", "empty_task_s", "record_s", "close_s", "prepare_s"):
            values = entry.get(name) or dict.fromkeys(("median", "low", "high"), math.nan)
            row |= {name: values["median"], f"{name}_low": values["low"], f"{name}_high": values["high"]}
        row |= {name: entry.get(name, "") for name in ("usable", "withheld")}
        rows.append({**row, "failures": "; ".join(entry["failures"])})
    return pd.DataFrame(rows)
