"""Figure `interference`: loss of each model beside other processes."""

from __future__ import annotations

from matplotlib.figure import Figure

from ...analysis.interference import interference_table, label_with_preemption
from ...analysis.names import INTERFERENCE
from ...analysis.speeds import row_is_usable
from ...analysis.sweep import Sweep
from ..words import blocks_text
from .axes import model_lines
from .heading import header
from .style import GREY, add_legend, model_handles, model_styles, new_figure, panel_title

RANK, ONE_FOR = 7, "plan"


def missing(sweep: Sweep, plan_id: str) -> str:
    """Return why the figure cannot be drawn."""
    table = interference_table(sweep)
    if len(table) and plan_id in set(table["plan_id"]):
        return ""
    return "a figure over hogs needs points with and without them, got one kind; run interference.toml"


def draw(sweep: Sweep, plan_id: str, column: str) -> Figure:
    """Draw step time beside hogs over that without, and the part that the hogs' CPU time does not explain."""
    table = interference_table(sweep)
    table = table[table["plan_id"] == plan_id]
    threads = int(table["threads"].max())
    table = table[table["threads"] == threads]
    table = table.assign(usable=[row_is_usable(sweep, row) for row in table.to_dict("records")])
    models = list(dict.fromkeys(table["model"]))
    styles = model_styles(models)
    figure, (times, losses) = new_figure(column, 2, 2.1, (1.0, 1.0))
    for axis, name, scale in ((times, "slowdown", 1), (losses, "loss", 100)):
        model_lines(axis, table, models, styles, "hogs", name, scale, places=sweep.config.get(INTERFERENCE, ()))
    left = table.groupby("hogs")["capacity"].first()
    times.plot(left.index, 1 / left, color=GREY, linewidth=0.9, linestyle=":", zorder=3)
    times.set_ylabel("step time / without hogs")
    panel_title(times, "Slowdown (dotted: capacity taken)")
    losses.axhspan(0, 10, color="0.9", linewidth=0, zorder=0)
    losses.axhline(0, color=GREY, linewidth=0.7, zorder=1)
    losses.set_ylabel("loss beyond the capacity taken (%)")
    panel_title(losses, "Loss (grey: up to 10 %)")
    for axis in (times, losses):
        axis.set_xticks(sorted(set(table["hogs"])))
        axis.set_xlabel("spinning processes")
    add_legend(figure, column, model_handles(styles, models, label_with_preemption))
    header(
        figure, sweep, [sweep.problem_name(plan_id), blocks_text(sweep.plans[plan_id]), f"{threads} threads"], column
    )
    return figure


def caption(sweep: Sweep, plan_id: str) -> list[str]:
    """Return the caption's sentences."""
    return [
        "(a) Step time beside spinning processes over that without; dotted: what the CPU time taken explains. (b) "
        "Slowdown times the capacity left, less one: CPU time that was there and not used. stay: threads keep their "
        "CPU; swap: waiting workers exchange CPUs with preempted ones. Bars: 95 % intervals."
    ]
