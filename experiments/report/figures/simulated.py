"""Figure `simulated`: speedup and efficiency by simulation, on more threads than were measured, beside the measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from ....cython_src.errors import UsageError
from ...analysis.names import model_label
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
from ...subjects.models import ModelSpec
from .bound_lines import bound_rows
from .chart import REFERENCES, Chart, Panel, ideal_rows, reference_rows, value_rows
from .heading import plan_facts
from .speedup import SLOWEST
from .style import model_styles

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


def chart(
    sweep: Sweep,
    plan_id: str,
    threads: Sequence[int] = (),
    machine: MachineModel | None = None,
    models: Sequence[ModelSpec] | None = None,
    seed: int = 0,
) -> Chart:
    """Return simulated speedup and efficiency, by default of the sweep's models on up to four times the measured
    threads of its machine; what was measured is marked."""
    threads = threads or thread_counts(sweep, plan_id)
    models = list(models or simulated_models(sweep, plan_id))
    table = prediction_table(sweep, plan_id, threads, machine, models, seed)
    bounds, looks = bound_rows(simulated_bounds(sweep, plan_id, threads, machine), models)
    measured = speed_table(sweep)
    of_models = measured["model"].isin(models) if machine is None else False
    measured = measured[(measured["plan_id"] == plan_id) & of_models]
    own = model_styles([*sweep.samples["model"], *models])
    styles = {f"{m}, simulated": replace(own[m], marker="") for m in models}
    styles |= {m: replace(own[m], line="none") for m in models} | REFERENCES | looks
    panels = []
    for name, scale, title in (("speedup", "log", "over best serial"), ("efficiency", "share", "speedup / threads")):
        lines = reference_rows(table["model"].map("{}, simulated".format), table["threads"], table[name])
        high = table["speedup_high"] / (table["threads"] if name == "efficiency" else 1)
        lines = lines.assign(low=lines["value"], high=high.clip(lower=lines["value"]))
        shares = bounds
        if name == "efficiency":
            shares = bounds.assign(
                **{end: bounds[end] / bounds["x"] for end in ("value", "low", "high") if end in bounds}
            )
        rows = [ideal_rows(threads, name == "efficiency"), shares, lines, value_rows(measured, name)]
        panels.append(
            Panel(pd.concat(rows), name, title, scale, (SLOWEST, math.inf) if scale == "log" else (0, math.inf))
        )
    far = table.loc[~table["far"], "threads"].max() if table["far"].any() else 0
    names = {f"{m}, simulated": "" if machine is None else model_label(m) for m in models}
    facts = [*plan_facts(sweep, plan_id), *([] if machine is None else [f"simulated, {machine.name}"])]
    return Chart(panels, facts, styles, "threads", names, marks={far: f"{FAR} x measured"} if far else {})


def caption(
    sweep: Sweep,
    plan_id: str,
    threads: Sequence[int] = (),
    machine: MachineModel | None = None,
    models: Sequence[ModelSpec] | None = None,
    seed: int = 0,
) -> list[str]:
    """Return the caption's sentences; arguments as for `draw`."""
    table = prediction_table(sweep, plan_id, threads or thread_counts(sweep, plan_id), machine, models, seed)
    on = "this machine, its curves continued" if machine is None else machine.name
    return [
        f"Lines: simulated from serial block durations on {on}; nothing is fitted to measured speedups.",
        "Upper end of bands: with bandwidth in proportion to the threads, and barriers that are trees."
        if (table["speedup_high"] > table["speedup"]).any()
        else "",
        "Markers: measured, with 95 % intervals." if machine is None else "",
        error_text(table) if machine is None else "",
        f"Right of the thin line: beyond {FAR} times the measured threads."
        if machine is None and table["far"].any()
        else "",
    ]
