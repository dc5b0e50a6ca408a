"""Figure `when`: time of `taskiter` over fork-join, over the share of the time in which fork-join keeps its cores busy,
drawn over the published points. Those come with the package; docs/update_figures.py writes them from results/."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd

from ...analysis.comparisons import recovered_table
from ...analysis.estimates import NOT_USABLE
from ...analysis.names import value_text
from ...analysis.sweep import Sweep
from ...subjects.models import TASKITER
from ...tables.numbers import plural
from .chart import Chart, Lacking, Panel, figure
from .style import COLORS, GREY, ModelStyle, mark_handle

PUBLISHED = Path(__file__).with_name("published_points.csv")
FEWEST_POINTS = 3  # plans of which the figure shows anything
SHARES = (0.25, 0.5, 0.75, 1.0)  # recovered, that lines show
MACHINES = {"epyc_2_cores": "o", "xeon_2_cores": "s"}
OWN, PUBLISHED_NAME = "this run", "taskiter, published"
BUSY, RATIO = "E: share of the time that fork-join's cores are busy", "time of taskiter / fork-join"


def points(sweep: Sweep, threads: int = 0) -> pd.DataFrame:
    """Return the usable rows of `recovered_table` for `taskiter` on `threads`, 0: the most, with a column
    network; those without intervals are left out."""
    table = recovered_table(sweep)
    if not len(table):
        return table
    table = table[(table["model"] == TASKITER) & (table["verdict"] != NOT_USABLE)]
    table = table[(table["threads"] == (threads or table["threads"].max())) & table["busy_low"].notna()]
    return table.assign(network=[value_text(sweep.records[plan]["network"]) for plan in table["plan_id"]])


def gains_chart(published: pd.DataFrame, own: pd.DataFrame | None = None) -> Chart:
    """Return published points in the colours of their networks; below a run's own points they are grey."""
    shown = published if own is None else own
    colors = dict(zip(dict.fromkeys(shown["network"]), COLORS, strict=False))
    tables = [published] if own is None else [published, own.assign(machine=OWN)]
    marks, table = {**MACHINES, OWN: "D"}, pd.concat(tables, ignore_index=True)
    least = {name: min(floor, table[f"{name}_low"].min() - 0.02) for name, floor in (("busy", 0.45), ("ratio", 0.62))}
    ends = np.array([least["busy"], max(1.03, table["busy_high"].max() + 0.01)])
    top = max(1.06, table["ratio_high"].max() + 0.01)

    def paint(axis, column: str) -> None:
        axis.fill_between(ends, ends, min(least.values()), color="0.92", lw=0, zorder=0)
        below = {"color": GREY, "ha": "right", "fontsize": 8 if column == "double" else 6.5}
        axis.text(ends[1] - 0.01, least["ratio"] + 0.02, "less than the same\nblocks can take", **below)
        for share in SHARES:
            axis.plot(ends, 1 - share * (1 - ends), color="0.75" if share < 1 else "0.3", lw=0.8, zorder=1)
            left = max(ends[0] + 0.005, 1 - (0.98 - least["ratio"]) / share)  # where the line enters the panel
            along = {"rotation": math.degrees(math.atan(share)), "transform_rotates_text": True}
            look = {"fontsize": 6.5, "color": "0.35", "va": "top", "rotation_mode": "anchor", **along}
            axis.text(left + 0.006, 0.996 - share * (1 - left), f" {share:.0%} recovered", **look)
        axis.axhline(1, color="0.3", lw=0.8)
        for row in table.to_dict("records"):
            bars = [[[row[what] - row[f"{what}_low"]], [row[f"{what}_high"] - row[what]]] for what in ("busy", "ratio")]
            over = row["machine"] == OWN
            color, alpha = ("0.7", 0.7) if own is not None and not over else (colors[row["network"]], 0.8 + 0.2 * over)
            look = {"marker": marks[row["machine"]], "color": color, "ms": 5 if over else 4, "lw": 1.0 if over else 0.6}
            axis.errorbar(row["busy"], row["ratio"], *bars[::-1], ls="", alpha=alpha, zorder=2 + over, **look)
        axis.set(xlim=ends, ylim=(least["ratio"], top), xlabel=BUSY, ylabel=RATIO)

    handles = [mark_handle("o" if own is None else "D", color, network) for network, color in colors.items()]
    about = "" if own is None else "published, "
    handles += [mark_handle(mark, "0.4", about + name.replace("_", " ")) for name, mark in MACHINES.items()]
    ratios = {"value": "ratio", "low": "ratio_low", "high": "ratio_high"}
    rows = pd.DataFrame(
        {
            "model": [TASKITER if machine == OWN else PUBLISHED_NAME for machine in table["machine"]],
            "x": table["busy"],
            **{end: table[column] for end, column in ratios.items()},
            **{f"x_{end}": table[f"busy_{end}"] for end in ("low", "high")},
            "network": table["network"],
            "group": table["machine"],
        }
    )
    styles = {PUBLISHED_NAME: ModelStyle(GREY, "", "none"), TASKITER: ModelStyle(GREY, "D", "none")}
    panel = Panel(rows, "time / better fork-join", paint=paint)
    return Chart([panel], styles=styles, x=BUSY, height=3.2, handles=handles)


@figure(4.1, "sweep")
def when(sweep: Sweep, plan_id: str) -> Chart:
    """Return the plans' times of `taskiter` over fork-join, over how busy fork-join keeps its cores, on the published
    ones."""
    own = points(sweep)
    if len(own) < FEWEST_POINTS:
        raise Lacking(
            f"a figure of when tasks pay needs {FEWEST_POINTS} plans with intervals of `serial`, fork-join and "
            f"`taskiter` on two or more threads, got {len(own)}; `forktask run when` measures a dozen"
        )
    chart, threads = gains_chart(pd.read_csv(PUBLISHED), own), own["threads"].iloc[0]
    caption = (
        f"Time of taskiter over the better fork-join form on {plural(threads, 'thread')}, over E: serial time / "
        f"(threads x fork-join). Black line: tasks recover all that fork-join loses. Grey: published plans, two "
        f"threads. Bars: 95 % intervals."
    )
    facts = [f"{len(own)} plans, {plural(threads, 'thread')}"]
    return Chart(**{**vars(chart), "facts": facts, "caption": [caption]})
