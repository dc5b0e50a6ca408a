"""Figure `factorial`: step time of every cell of creation x barrier x placement, and what each switch contributes."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ...analysis.estimates import EQUIVALENCE_BAND
from ...analysis.factorial import BARRIERS, effect_table, factorial_table
from ...analysis.speeds import row_is_usable
from ...analysis.sweep import Sweep
from ..words import blocks_text
from .axes import band_handle, cross_out, equivalence_band, ratio_axis, series
from .heading import header
from .style import COLORS, LINES, ModelStyle, add_legend, new_figure, panel_title

RANK, ONE_FOR = 6, "plan"


def missing(sweep: Sweep, plan_id: str) -> str:
    """Return why the figure cannot be drawn."""
    cells = factorial_table(sweep)
    if len(cells) and plan_id in set(cells["plan_id"]):
        return ""
    return "a factorial needs every cell of creation x barrier x placement, got less; run replay_ladder.toml"


def draw(sweep: Sweep, plan_id: str, column: str) -> Figure:
    """Draw the step time of every cell of creation x barrier x placement, and each switch's contribution."""
    cells, effects = (t[t["plan_id"] == plan_id] for t in (factorial_table(sweep), effect_table(sweep)))
    threads = int(cells["threads"].max())
    cells = cells[(cells["threads"] == threads) & (cells["note"] == "")]
    effects = effects[(effects["threads"] == threads) & (effects["kind"] == "attribution")]
    figure, (times, parts) = new_figure(column, 2, 2.1, (1.0, 1.0))
    kinds = list(dict.fromkeys(zip(cells["creation"], cells["placement"], strict=True)))
    handles = []
    for number, (creation, placement) in enumerate(kinds):
        own = cells[(cells["creation"] == creation) & (cells["placement"] == placement)]
        style = ModelStyle(COLORS[number], "os^"[number], LINES[number])
        x = np.arange(len(own)) + 0.08 * (number - 1)
        columns = (1e3 * own[name] for name in ("time_s", "low_s", "high_s"))
        usable = [row_is_usable(sweep, row) for row in own.to_dict("records")]
        series(times, x, *columns, style, usable=usable)
        handles.append(
            Line2D(
                [], [], color=style.color, marker=style.marker, linestyle=style.line, label=f"{creation}, {placement}"
            )
        )
    times.set_xticks(range(len(BARRIERS)), BARRIERS)
    times.set_xlabel("barrier")
    times.set_ylabel("step time (ms)")
    panel_title(times, "all cells")
    equivalence_band(parts)
    for x, row in enumerate(effects.to_dict("records")):
        color = "0.2" if row["effect"] == "all three" else COLORS[7]
        parts.plot([x, x], [row["low"], row["high"]], color=color, linewidth=0.9, zorder=4)
        parts.plot([x], [row["ratio"]], marker="o", color=color, zorder=5)
        if not row["usable"]:
            cross_out(parts, [x], [row["ratio"]])
        parts.annotate(
            f"{row['ratio']:.3f}", (x, row["ratio"]), (5, 0), textcoords="offset points", va="center", fontsize=6.5
        )
    parts.set_xticks(range(len(effects)), effects["effect"])
    parts.set_xlim(-0.4, len(effects) - 0.3)
    ratio_axis(parts, effects[["ratio", "low", "high"]].to_numpy(dtype=float).ravel())
    parts.set_ylabel("time after / before")
    panel_title(parts, "attribution")
    handles.append(band_handle())
    add_legend(figure, column, handles)
    header(
        figure, sweep, [sweep.problem_name(plan_id), blocks_text(sweep.plans[plan_id]), f"{threads} threads"], column
    )
    return figure


def caption(sweep: Sweep, plan_id: str) -> list[str]:
    """Return the caption's sentences."""
    return [
        "(a) Step time by creation, barrier and placement of tasks; eager tasks cannot be partitioned. (b) Effect of "
        "each switch, its geometric mean over all orders of switching; the three multiply up to the whole.",
        f"Bars: 95 % intervals; grey: ± {EQUIVALENCE_BAND:.0%}.",
    ]
