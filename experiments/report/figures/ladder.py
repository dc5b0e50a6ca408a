"""What waits cost: figure `ladder` has rungs from fork-join to tasks, their ratios to fork-join and to the rung above,
and simulated; figure `factorial` step times of every cell of creation x barrier x placement x order, and what each
switch contributes."""

from __future__ import annotations

import math
import textwrap
from typing import Any

import pandas as pd

from ...analysis.comparisons import ladder_table, no_ladder
from ...analysis.estimates import EQUIVALENCE_BAND
from ...analysis.factorial import WHOLE, effect_table, factorial_table
from ...analysis.speeds import with_usable
from ...analysis.sweep import Sweep, kept
from ...simulate.predict import error_text, prediction_table
from ...subjects.models import ModelSpec
from ...tables.numbers import time
from ..words import blocks_text
from .chart import Chart, Lacking, Panel, figure, reference_rows, value_rows
from .speedup import not_simulated
from .style import COLORS, GREY, ModelStyle, mark_handle, model_styles

SIMULATED_THREADS = (8, 64)
SWITCH = "a switch"


@kept
def ladder_rows(sweep: Sweep, plan_id: str) -> list[dict[str, Any]]:
    """Return the rows of `ladder_table`, with simulated_8 and simulated_64: simulated time over that of the better
    fork-join form on 8 and 64 threads; NaN for a model that is not simulated, or without the machine's latencies."""
    if no_ladder(sweep, plan_id):
        return []
    rows = ladder_table(sweep, plan_id).to_dict("records")
    times: dict[int, dict[ModelSpec, float]] = {threads: {} for threads in SIMULATED_THREADS}
    if not not_simulated(sweep, plan_id):
        for row in prediction_table(sweep, plan_id, SIMULATED_THREADS).to_dict("records"):
            times[row["threads"]][row["model"]] = row["step_s"]
    for threads, of_all in times.items():
        best = min((seconds for model, seconds in of_all.items() if model.name == "forkjoin"), default=math.nan)
        rows = [{**row, f"simulated_{threads}": of_all.get(row["model"], math.nan) / best} for row in rows]
    return rows


@figure(0.2)
def ladder(sweep: Sweep, plan_id: str) -> Chart:
    """Return a row for each rung in the order of the file, and a panel for each ratio."""
    if reason := no_ladder(sweep, plan_id):
        raise Lacking(reason)
    table = pd.DataFrame(ladder_rows(sweep, plan_id))
    names = [
        f"{textwrap.fill(row['takes'], 60)}\n{sweep.label(row['model'])}, {time(row['time_s'])}"
        for row in table.to_dict("records")
    ]
    x = pd.Series(names, table.index)
    both = table["usable"] & table["usable"].shift(fill_value=True)
    panels = [
        Panel(value_rows(table.assign(ratio=table["ratio"].fillna(1.0)), "ratio", x), "time / fork-join", "", "ratio"),
        Panel(value_rows(table.assign(usable=both), "above", x), "time / rung above", "", "ratio"),
    ]
    handles = []
    if table[f"simulated_{SIMULATED_THREADS[0]}"].notna().any():
        rows = [
            reference_rows(table["model"], x, table[f"simulated_{threads}"]).assign(hollow=not number)
            for number, threads in enumerate(SIMULATED_THREADS)
        ]
        panels.append(Panel(pd.concat(rows), "simulated / fork-join", "", "ratio"))
        faces = zip(SIMULATED_THREADS, ("white", GREY), strict=True)
        handles = [mark_handle("o", GREY, f"simulated, {n} threads", markerfacecolor=face) for n, face in faces]
    facts = [sweep.problem_name(plan_id), f"measured on {table['threads'].iloc[0]} threads"]
    styles = model_styles(sweep.samples["model"], sweep.rank)
    text = "Each rung removes (−) or adds (+) a wait. Ratios of times with 95 % intervals, to the better "
    text += f"fork-join form and to the rung above; grey: ± {EQUIVALENCE_BAND:.0%}."
    reason = not_simulated(sweep, plan_id)
    measured = () if reason else prediction_table(sweep, plan_id, sorted({*table["threads"]}))
    caption = [text, f"Not simulated: {reason}." if reason else error_text(measured)]
    look = {"hollow_unknown": False, "height": 0.45 + 0.31 * len(table)}
    return Chart(panels, facts, styles, handles=handles, caption=caption, **look)


@figure(6)
def factorial(sweep: Sweep, plan_id: str) -> Chart:
    """Return the step time of every cell of the factorial, and each switch's contribution."""
    cells, effects = factorial_table(sweep), effect_table(sweep)
    if not len(cells) or plan_id not in set(cells["plan_id"]):
        raise Lacking(
            "a factorial needs every cell of creation x barrier x placement, got less; run replay_ladder.toml"
        )
    cells, effects = (table[table["plan_id"] == plan_id] for table in (cells, effects))
    threads = int(cells["threads"].max())
    cells, effects = (table[table["threads"] == threads] for table in (cells, effects))
    kinds = cells["creation"] + ", " + cells["placement"]
    kinds += cells["order"].where(cells["placement"] != "stealing", "").map(lambda order: order and f", {order}")
    cells = with_usable(sweep, cells).assign(model=kinds)
    styles = {kind: ModelStyle(COLORS[i], "os^v"[i], "none") for i, kind in enumerate(dict.fromkeys(kinds))}
    styles |= {SWITCH: ModelStyle(COLORS[7], "o", "none"), WHOLE: ModelStyle("0.2", "o", "none")}
    named = effects.assign(model=effects["effect"].where(effects["effect"] == WHOLE, SWITCH)).rename(
        columns={"low": "ratio_low", "high": "ratio_high"}
    )
    panels = [
        Panel(value_rows(cells, "time_s", "barrier", 1e3), "step time (ms)", "all variants, by barrier"),
        Panel(value_rows(named, "ratio", "effect"), "time after / before", "attribution", "ratio"),
    ]
    caption = [
        "(a) Step time by creation, barrier, placement and order of tasks; eager tasks cannot be partitioned. (b) "
        "Effect of each switch, its geometric mean over all orders of switching; they multiply up to the whole.",
        f"Bars: 95 % intervals; grey: ± {EQUIVALENCE_BAND:.0%}.",
    ]
    facts = [sweep.problem_name(plan_id), blocks_text(sweep.plans[plan_id]), f"{threads} threads"]
    return Chart(panels, facts, styles, caption=caption)
