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
from ..analysis.load import load
from ..analysis.names import INTERFERENCE, model_label, model_rank
from ..analysis.speeds import main_plan, speed_table
from ..analysis.sweep import Sweep
from ..tables import Column, text_table
from ..tables.columns import USABLE, count_column, number_column, time_column
from .figures import style
from .figures.chart import Chart, Panel, drawn, value_rows
from .figures.style import LINES, model_styles
from .words import describe_machine, plan_title

NOT_IN_TURN = "The folders were not interleaved, so their ratios have no interval and no verdict."


def matching_plan(first: Sweep, second: Sweep) -> tuple[str, str]:
    """Return the main plan of one sweep and the plan of another one with the same options, or with the fewest that
    differ; network, batch and phase must be the same. Raises `UsageError`: the other sweep has no plan of this network,
    batch and phase."""
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
    """Compare two folders of the same work and draw them in one figure, by default against.svg in the first folder's
    `figures`.

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
    both, folders = [*zip(sweeps, plans, strict=True)], [str(first), str(second)]
    tables = [speed_table(sweep)[lambda table, plan_id=plan_id: table["plan_id"] == plan_id] for sweep, plan_id in both]
    path = style.figure_path(first, "against", "double", "svg", out)
    machines = [
        describe_machine(sweep, int(table["threads"].max())) for sweep, table in zip(sweeps, tables, strict=True)
    ]
    problem = sweeps[0].problem_name(plans[0])
    with style.in_style():
        chart = _chart(tables, folders, [problem, *map(": ".join, zip(folders, machines, strict=True))])
        style.save_asked(drawn(chart), path, f"{problem}: {chart.text}\n")
    own = [{(row["model"], row["threads"]): row for row in table.to_dict("records")} for table in tables]
    rows = []
    for point in sorted({*own[0], *own[1]}, key=lambda p: (model_rank(p[0]), p[1])):
        a, b = (rows_of[point]["time_s"] if point in rows_of else None for rows_of in own)
        rows.append(
            {
                "model": point[0],
                "threads": int(point[1]),
                "first_s": a,
                "second_s": b,
                "ratio": b / a if a and b and math.isfinite(b / a) else None,
                "usable": all(rows_of[point]["usable"] for rows_of in own if point in rows_of),
            }
        )
    return {
        "titles": [plan_title(sweep, plan_id) for sweep, plan_id in both],
        "machines": machines,
        "differing": differing(*(sweep.records[plan_id] for sweep, plan_id in both)),
        "rows": rows,
        "figure": str(path),
    }


def _chart(tables: Sequence[pd.DataFrame], folders: Sequence[str], facts: Sequence[str]) -> Chart:
    """Return time and speedup over threads: colours are models, solid with full markers is the first folder, dashed
    with hollow ones the second."""
    models = sorted({m for table in tables for m in table["model"]}, key=model_rank)
    looks, styles, names, named = model_styles(models), {}, {}, []
    for number, (table, folder) in enumerate(zip(tables, folders, strict=True)):
        for model in models:
            key = f"{model_label(model)}, {folder}"
            styles[key] = replace(looks[model], line=LINES[number])
            names[key] = "" if number else model_label(model)
        keys = [f"{model_label(m)}, {folder}" for m in table["model"]]
        named.append(table.assign(model=keys, hollow=bool(number)))
    times, speedups = (
        pd.concat([value_rows(table, name, scale=scale).assign(low=math.nan, high=math.nan) for table in named])
        for name, scale in (("time_s", 1e3), ("speedup", 1.0))
    )
    panels = [
        Panel(times, "time of a step (ms)", "lower is faster"),
        Panel(speedups, "speedup", "over each folder's own best serial run"),
    ]
    handles = [
        Line2D([], [], color="0.3", linestyle=line, marker="o", fillstyle=fill, label=folder)
        for folder, line, fill in zip(folders, LINES, ("full", "none"), strict=False)
    ]
    caption = (
        "time of a step, and speedup over each folder's own best serial run. Solid lines, full markers: "
        f"{folders[0]}; dashed, hollow: {folders[1]}. {NOT_IN_TURN} Crossed out: not usable."
    )
    return Chart(panels, facts, styles, "threads", names, height=2.4, handles=handles, caption=[caption])


_COLUMNS = (
    Column("model", lambda r: model_label(r["model"])),
    count_column("threads"),
    *(time_column(f"{which}_s") for which in ("first", "second")),
    number_column("ratio", "second / first", 3),
    USABLE,
)


def format_comparison(result: Mapping[str, Any]) -> str:
    """Return the comparison as text."""
    about = zip(("first", "second"), result["titles"], result["machines"], strict=True)
    text = [f"{which}: {title}; {machine}" for which, title, machine in about]
    text += ["", *text_table(_COLUMNS, result["rows"]), "", NOT_IN_TURN]
    if result["differing"]:
        text.append(f"The plans differ in: {', '.join(result['differing'])}.")
    return "\n".join([*text, f"figure: {result['figure']}"])
