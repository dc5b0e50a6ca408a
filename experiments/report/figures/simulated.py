"""Figure `simulated`: speedup and efficiency by simulation, on more threads than were measured, beside the measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from ....cython_src.errors import UsageError
from ...analysis.speeds import speed_table
from ...analysis.sweep import Sweep
from ...simulate.machine_model import MachineModel
from ...simulate.predict import (
    FAR,
    error_text,
    knows_machine,
    machine_of_sweep,
    prediction_table,
    simulated_bounds,
    simulated_models,
    subject_of,
    thread_counts,
)
from ...simulate.predict import missing as missing_for_simulation
from .axes import log2_axis, model_lines, power_ticks, x_axis
from .bound_lines import bound_handles, bound_lines, draw_bound
from .heading import plan_header
from .style import add_legend, model_handles, model_styles, new_figure, panel_title

RANK, ONE_FOR = 3, "plan"


def missing(sweep: Sweep, plan_id: str) -> str:
    """Return why the figure cannot be drawn."""
    if not knows_machine(sweep):
        return "a simulation needs the machine's latencies and overheads; give `forktask simulate DIR` once"
    if reason := missing_for_simulation(sweep, plan_id):
        return reason
    machine = machine_of_sweep(sweep)
    try:
        subject_of(sweep, plan_id, machine)
    except UsageError as error:
        return str(error)
    return ""


def draw(
    sweep: Sweep,
    plan_id: str,
    column: str,
    threads: Sequence[int] = (),
    machine: MachineModel | None = None,
    models: Sequence[str] | None = None,
    seed: int = 0,
) -> Figure:
    """Draw simulated speedup and efficiency, by default of the sweep's models on up to four times the measured
    threads of its machine."""
    threads = threads or thread_counts(sweep, plan_id)
    models = list(models or simulated_models(sweep, plan_id))
    table = prediction_table(sweep, plan_id, threads, machine, models, seed)
    styles = model_styles([*sweep.samples["model"], *models])
    figure, axes = new_figure(column, 2, panel_height=2.4)
    x = np.array(threads, dtype=float)
    lines = bound_lines(simulated_bounds(sweep, plan_id, threads, machine), models)
    measured = speed_table(sweep)
    measured = measured[measured["plan_id"] == plan_id]
    marks = {model: replace(look, line="none") for model, look in styles.items()}
    for axis, name, divide in zip(axes, ("speedup", "efficiency"), (np.ones(len(x)), x), strict=True):
        axis.plot(x, x / divide, color="0.2", linewidth=0.8, zorder=1)
        for line in lines:
            draw_bound(axis, line, divide)
        for model in models:
            own = table[table["model"] == model]
            look = {"color": styles[model].color, "linestyle": styles[model].line}
            axis.plot(own["threads"], own[name], zorder=2, **look)
        if machine is None:
            model_lines(axis, measured, models, marks, "threads", name, size=4.5)
        x_axis(axis, list(threads), "threads")
        _hatch_far(axis, table)
    top = max(table["speedup"].max(), 2.0) * 1.3
    drawn = measured.loc[measured["model"].isin(models), "speedup"].dropna() if machine is None else ()
    low = min(0.5, 0.8 * min([*table["speedup"], *drawn]))
    log2_axis(axes[0], "y", power_ticks(low, top), low, top)
    axes[0].set_ylabel("speedup")
    panel_title(axes[0], "lines: simulated; markers: measured" if machine is None else f"simulated, {machine.name}")
    axes[1].set_ylim(0, max(1.1, table["efficiency"].max() * 1.05))
    axes[1].yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    axes[1].set_ylabel("efficiency")
    panel_title(axes[1], "speedup / threads")
    handles = model_handles(styles, models)
    handles.append(Line2D([], [], color="0.2", linewidth=0.8, label="ideal"))
    handles += bound_handles(lines)
    if table["far"].any():
        handles.append(Patch(facecolor="none", edgecolor="0.8", hatch="///", label="far beyond what was measured"))
    add_legend(figure, column, handles)
    plan_header(figure, sweep, plan_id, column)
    return figure


def _hatch_far(axis, table) -> None:
    """Hatch the threads beyond four times the measured ones: the simulation's error is not known there."""
    if not table["far"].any():
        return
    near = table.loc[~table["far"], "threads"].max()
    axis.axvspan(near, axis.get_xlim()[1], facecolor="none", edgecolor="0.85", hatch="///", linewidth=0, zorder=0)


def caption(
    sweep: Sweep,
    plan_id: str,
    threads: Sequence[int] = (),
    machine: MachineModel | None = None,
    models: Sequence[str] | None = None,
    seed: int = 0,
) -> list[str]:
    """Return the caption's sentences; arguments as for `draw`."""
    table = prediction_table(sweep, plan_id, threads or thread_counts(sweep, plan_id), machine, models, seed)
    on = "this machine, bandwidth and capacity continued in proportion" if machine is None else machine.name
    return [
        f"Lines: simulated from serial block durations on {on}; nothing is fitted to measured speedups.",
        "Markers: measured, with 95 % intervals." if machine is None else "",
        error_text(table) if machine is None else "",
        f"Hatched: beyond {FAR} times the measured threads." if machine is None and table["far"].any() else "",
    ]
