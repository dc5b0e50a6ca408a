"""Two results folders side by side: two machines, two commits, or processor and GPU, in one figure and one table."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
from matplotlib.lines import Line2D

from ...cython_src.errors import UsageError
from ..analysis.limits import bound_table
from ..analysis.load import load
from ..analysis.names import INTERFERENCE, model_label, model_rank
from ..analysis.speeds import main_plan, speed_table
from ..analysis.sweep import Sweep
from ..tables import Column, text_table
from ..tables.columns import USABLE, count_column, number_column, time_column
from .figures import style
from .figures.bound_lines import bound_rows
from .figures.chart import Chart, Panel, drawn, value_rows
from .figures.style import GREY, LINES, model_styles
from .words import describe_machine, plan_title

GREYS = (GREY, "0.7")
NOT_IN_TURN = "The folders were not interleaved, so their ratios have no interval and no verdict."


def matching_plan(first: Sweep, second: Sweep) -> tuple[str, str]:
    """Return the main plan of one sweep and the plan of another one with the same options, or with the fewest that
    differ; network, batch and phase must be the same.

    Raises
    ------
    UsageError
        The other sweep has no plan of this network, batch and phase.
    """
    plan_id = main_plan(first)
    record = first.records[plan_id]
    work = ("network", "batch", "phase", INTERFERENCE)
    result = [p for p in second.plan_ids() if all(second.records[p].get(k) == record.get(k) for k in work)]
    if not result:
        known = "; ".join(second.problem_name(p) for p in second.plan_ids())
        raise UsageError(
            f"both folders must hold the same network, batch and phase, got {first.problem_name(plan_id)} and {known}"
        )
    return plan_id, min(result, key=lambda p: len(differing(record, second.records[p])))


def differing(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Return the options in which two plans differ."""
    return [name for name in {**first, **second} if first.get(name) != second.get(name)]


def compare_folders(first: str | os.PathLike, second: str | os.PathLike, out: str | None = None) -> dict[str, Any]:
    """Compare two folders and draw them in one figure.

    Parameters
    ----------
    first, second : path
        Results folders of the same network, batch and phase.
    out : str, optional
        Path of the figure; default: against.svg in the first folder's `figures`.

    Returns
    -------
    dict
        "titles", "machines": of both; "differing": options in which the plans differ; "rows": model, threads,
        first_s, second_s, ratio (second / first), usable (both are); "figure".

    Raises
    ------
    UsageError
        Different work, or a figure that cannot be written.
    """
    sweeps = [load(first), load(second)]
    plans = matching_plan(*sweeps)
    tables, limits = (
        [table[table["plan_id"] == plan_id] for table, plan_id in zip(map(table_of, sweeps), plans, strict=True)]
        for table_of in (speed_table, bound_table)
    )
    path = style.figure_path(first, "against", "double", "svg", out)
    most = [int(table["threads"].max()) for table in tables]
    machines = [
        describe_machine(sweep.environment, sweep.machine, n, sweep.capacity(n))
        for sweep, n in zip(sweeps, most, strict=True)
    ]
    folders = [str(first), str(second)]
    facts = [sweeps[0].problem_name(plans[0]), *map(": ".join, zip(folders, machines, strict=True))]
    with style.in_style():
        figure = drawn(_chart(tables, limits, folders, facts))
        style.save_asked(figure, path, _caption(sweeps[0].problem_name(plans[0]), first, second))
    result = [{(r["model"], r["threads"]): r for r in table.to_dict("records")} for table in tables]
    points = sorted({*result[0], *result[1]}, key=lambda p: (model_rank(p[0]), p[1]))
    rows = []
    for point in points:
        own = [rows_of[point] for rows_of in result if point in rows_of]
        a, b = (rows_of[point]["time_s"] if point in rows_of else None for rows_of in result)
        rows.append(
            {
                "model": point[0],
                "threads": int(point[1]),
                "first_s": a,
                "second_s": b,
                "ratio": b / a if a and b and math.isfinite(b / a) else None,
                "usable": all(row["usable"] for row in own),
            }
        )
    return {
        "titles": [plan_title(sweep, plan_id) for sweep, plan_id in zip(sweeps, plans, strict=True)],
        "machines": machines,
        "differing": differing(sweeps[0].records[plans[0]], sweeps[1].records[plans[1]]),
        "rows": rows,
        "figure": str(path),
    }


def _caption(problem: str, first: str | os.PathLike, second: str | os.PathLike) -> str:
    return (
        f"{problem}: time of a step, and speedup over each folder's own best serial run. Solid lines, full markers: "
        f"{first}; dashed, hollow: {second}; grey: area bounds. {NOT_IN_TURN} Crossed out: not usable.\n"
    )


def _chart(tables: Sequence, limits: Sequence, folders: Sequence[str], facts: Sequence[str]) -> Chart:
    """Return time and speedup over threads: colours are models, solid with full markers is the first folder, dashed
    with hollow ones the second; the area bound, which holds for all models, is dark grey for the first folder and light
    for the second."""
    models = sorted({m for table in tables for m in table["model"]}, key=model_rank)
    looks, styles = model_styles(models), {}
    rows: dict[str, list[pd.DataFrame]] = {"time_s": [], "speedup": []}
    names = {}
    for number, (table, limit, folder) in enumerate(zip(tables, limits, folders, strict=True)):
        for model in models:
            key = f"{model_label(model)}, {folder}"
            styles[key] = replace(looks[model], line=LINES[number])
            names[key] = "" if number else model_label(model)
        named = table.assign(model=[f"{model_label(m)}, {folder}" for m in table["model"]], hollow=bool(number))
        for name, kind, scale in (("time_s", "s", 1e3), ("speedup", "speedup", 1.0)):
            own = value_rows(named, name, scale=scale).assign(low=math.nan, high=math.nan)
            bounds, result = bound_rows(limit, (), kind)
            bounds = bounds.assign(model=bounds["model"] + f", {folder}", low=math.nan, high=math.nan)
            bounds["value"] *= scale
            rows[name] += [own, bounds]
            styles |= {f"{key}, {folder}": replace(look, color=GREYS[number]) for key, look in result.items()}
    panels = [
        Panel(pd.concat(rows["time_s"]), "time of a step (ms)", "lower is faster"),
        Panel(pd.concat(rows["speedup"]), "speedup", "over each folder's own best serial run"),
    ]
    handles = [
        Line2D([], [], color="0.3", linestyle=line, marker="o", fillstyle=fill, label=folder)
        for folder, line, fill in zip(folders, LINES, ("full", "none"), strict=False)
    ]
    return Chart(panels, facts, styles, "threads", names, height=2.4, handles=handles)


_COLUMNS = (
    Column("model", lambda r: model_label(r["model"])),
    count_column("threads"),
    time_column("first_s", "first"),
    time_column("second_s", "second"),
    number_column("ratio", "second / first", 3),
    USABLE,
)


def format_comparison(result: Mapping[str, Any]) -> str:
    """Return the comparison as text."""
    about = zip(("first", "second"), result["titles"], result["machines"], strict=True)
    text = [
        *(f"{which}: {title}; {machine}" for which, title, machine in about),
        "",
        *text_table(_COLUMNS, result["rows"]),
        "",
        NOT_IN_TURN,
    ]
    if result["differing"]:
        text.append(f"The plans differ in: {', '.join(result['differing'])}.")
    return "\n".join([*text, f"figure: {result['figure']}"])
