"""Figures `speedup` and `simulated`: speedup and efficiency over threads, measured with the ratio of each task model to
the better fork-join form, or by simulation on more threads than were measured; bounds as thin grey lines with their
intervals, for all figures that show time, speedup or efficiency."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from ....cython_src.errors import UsageError
from ...analysis.estimates import EQUIVALENCE_BAND, NOT_USABLE
from ...analysis.limits import BOUND_NAMES, bound_of, bound_table
from ...analysis.speeds import best_serial, speed_table
from ...analysis.sweep import Sweep
from ...simulate import predict
from ...simulate.machine_model import MachineModel
from ...subjects.models import ModelSpec
from ..words import plan_facts
from .chart import IDEAL, REFERENCES, Chart, Lacking, Panel, figure, over_threads, reference_rows, value_rows
from .style import GREY, ModelStyle, model_styles

SLOWEST = 0.4  # of a speedup's axis
ALIKE = 0.005  # bounds that differ by less at every number of threads are one line with two names
_DASHES = {"area": (4, 2), "forkjoin": (1, 1.2), "taskgraph": (6, 1.5, 1, 1.5), "taskiter": (8, 1.5), "brent": (2, 3)}
_SHORT = {"area": "area", "forkjoin": "fork-join", "taskgraph": "span", "taskiter": "cycle mean", "brent": "Brent"}
_NONE = pd.DataFrame({name: pd.Series(dtype=object if name == "model" else float) for name in ("model", "x", "value")})


@figure(0)
def speedup(sweep: Sweep, plan_id: str) -> Chart:
    """Return speedup, efficiency, and the ratio of each task model to the better fork-join form."""
    if not best_serial(sweep, plan_id):
        raise Lacking("a speedup needs serial runs of the same network and batch, got none; measure `serial` too")
    speeds = speed_table(sweep)
    table = speeds[(speeds["plan_id"] == plan_id) & ~speeds["model"].map(lambda model: model.is_serial).astype(bool)]
    # A model of a GPU stands across, at its best number of workers on the host.
    gpu = table["model"].map(lambda model: model.is_gpu).astype(bool)
    best = table[gpu].sort_values("speedup").drop_duplicates("model", keep="last").assign(threads=math.nan)
    table = pd.concat([table[~gpu], best])
    limits = bound_table(sweep)
    limits = limits[limits["plan_id"] == plan_id] if len(limits) else limits
    bounds, looks = bound_lines(limits, {*table["model"]})
    counts = sorted({1, *table["threads"].dropna().astype(int)})
    reference = sweep.reference_call
    other = sweep.label(reference) if reference else "gpu_forkjoin" if gpu.all() and len(gpu) else "better fork-join"
    ratio = f"time / {other}"
    panels = [
        _speedups("reference" if reference else "best serial", counts, bounds, value_rows(table, "speedup")),
        _efficiencies(counts, bounds, value_rows(table[table["threads"].notna()], "efficiency")),
        Panel(ratio_rows(table), ratio, "below 1: faster", "ratio"),
    ]
    serial, against = "the fastest serial run", "the better fork-join form"
    if reference:
        serial, against = "the reference on one thread", other
    caption = [
        f"Speedup over {serial}, on several numbers of threads also over threads, and time over that of {against}. "
        f"Bars and bands: 95 % intervals; grey: ± {EQUIVALENCE_BAND:.0%}. Arrows: below.",
        "Lines across: models of a GPU, ratios over gpu_forkjoin."
        if any(model.is_gpu for model in sweep.samples["model"])
        else "",
    ]
    styles, places = model_styles(sweep.samples["model"], sweep.rank) | REFERENCES | looks, sweep.asked_threads(plan_id)
    return over_threads(sweep, Chart(panels, plan_facts(sweep, plan_id), styles, places=places, caption=caption))


def bound_lines(limits: pd.DataFrame, models: Iterable[ModelSpec], kind: str = "speedup", x: str = "threads"):
    """Return rows of a panel with the bounds that hold for some of the models, and the look of each: those that
    coincide are one line, which has all their names. `limits` has rows like those of `bound_table`, one for each value
    of column `x`; `kind` is "speedup" or "s", as its columns end."""
    held = {bound_of(model) for model in models if not (model.is_gpu or model.is_peer)}
    area = {"area"} if held else set()
    wanted = [n for n in _DASHES if n in {*area, *held} or (n == "brent" and "taskgraph" in held)]
    limits = limits.sort_values(x) if len(limits) else limits
    lines: list[tuple[list[str], pd.DataFrame]] = []
    for name in wanted:
        if f"{name}_{kind}" not in limits or not np.isfinite(limits[f"{name}_{kind}"].astype(float)).all():
            continue  # of a phase alone, or without a serial profile
        ends = {end or "_value": limits[f"{name}_{kind}{end}"].astype(float) for end in ("", "_low", "_high")}
        rows = pd.DataFrame({"x": limits[x], **{end[1:]: values for end, values in ends.items()}})
        same = [names for names, other in lines if np.allclose(rows["value"], other["value"], rtol=ALIKE, atol=0)]
        same[0].append(name) if same else lines.append(([name], rows))
    styles = {_name_of_bounds(names): ModelStyle(GREY, "", (0, _DASHES[names[0]])) for names, _ in lines}
    return pd.concat([_NONE, *(rows.assign(model=_name_of_bounds(names)) for names, rows in lines)]), styles


def _name_of_bounds(names: list[str]) -> str:
    """Return the entry of the legend."""
    if len(names) == 1:
        return BOUND_NAMES[names[0]]
    return textwrap.fill(f"bounds: {', '.join(_SHORT[name] for name in names)}", 26)


def _speedups(over: str, counts: Sequence[int], *rows: pd.DataFrame) -> Panel:
    rows = (reference_rows(IDEAL, counts, counts), *rows)
    return Panel(pd.concat(rows), "speedup", f"over {over}", limits=(SLOWEST, math.inf))


def _efficiencies(counts: Sequence[int], bounds: pd.DataFrame, *rows: pd.DataFrame) -> Panel:
    """Return a panel with the ideal, and with the efficiencies that bounds of speedups leave."""
    shares = bounds.assign(**{end: bounds[end] / bounds["x"] for end in ("value", "low", "high") if end in bounds})
    rows = (reference_rows(IDEAL, counts, 1.0), shares, *rows)
    return Panel(pd.concat(rows), "efficiency", "speedup / threads", "share")


def ratio_rows(table: pd.DataFrame, x: str = "threads") -> pd.DataFrame:
    """Return the ratio of each task model and each model of a GPU to its device's better fork-join form; what it is
    compared with must be usable too."""
    part = table[
        table["model"].map(lambda m: m.takes_tasks or m.is_gpu or m.model.is_call).astype(bool) & table["ratio"].notna()
    ]
    return value_rows(part.assign(usable=part["usable"] & (part["verdict"] != NOT_USABLE)), "ratio", x)


def not_simulated(sweep: Sweep, plan_id: str) -> str:
    """Return why a plan cannot be simulated on the machine that measured it; empty: it can."""
    if not predict.knows_machine(sweep):
        return "a simulation needs the machine's latencies and overheads; give `forktask simulate DIR` once"
    if reason := predict.missing(sweep, plan_id):
        return reason
    machine = predict.machine_of_sweep(sweep)
    try:
        predict.subject_of(sweep, plan_id, machine)
    except UsageError as error:
        return str(error)
    return ""


@figure(3)
def simulated(sweep: Sweep, plan_id: str) -> Chart:
    """Return speedup and efficiency of the sweep's models on up to four times the measured threads."""
    if reason := not_simulated(sweep, plan_id):
        raise Lacking(reason)
    return simulation(sweep, plan_id, predict.thread_counts(sweep, plan_id))


def simulation(
    sweep: Sweep,
    plan_id: str,
    threads: Sequence[int],
    machine: MachineModel | None = None,
    models: Sequence[ModelSpec] | None = None,
    seed: int = 0,
) -> Chart:
    """Return simulated speedup and efficiency, by default of the sweep's models on its machine, where what was measured
    is marked."""
    models = list(models or predict.simulated_models(sweep, plan_id))
    table = predict.prediction_table(sweep, plan_id, threads, machine, models, seed)
    bounds, looks = bound_lines(predict.simulated_bounds(sweep, plan_id, threads, machine), models)
    measured = speed_table(sweep)
    of_models = measured["model"].isin(models) if machine is None else False
    measured = measured[(measured["plan_id"] == plan_id) & of_models]
    own = model_styles([*sweep.samples["model"], *models], sweep.rank)
    styles = {f"{m}, simulated": replace(own[m], marker="") for m in models}
    styles |= {m: replace(own[m], line="none") for m in models} | REFERENCES | looks

    def lines(name: str, threads: pd.Series | int) -> pd.DataFrame:
        rows = reference_rows(table["model"].map("{}, simulated".format), table["threads"], table[name])
        return rows.assign(low=rows["value"], high=(table["speedup_high"] / threads).clip(lower=rows["value"]))

    panels = [
        _speedups("best serial", threads, bounds, lines("speedup", 1), value_rows(measured, "speedup")),
        _efficiencies(threads, bounds, lines("efficiency", table["threads"]), value_rows(measured, "efficiency")),
    ]
    here, far = machine is None, table.loc[~table["far"], "threads"].max() if table["far"].any() else 0
    names = {f"{m}, simulated": "" if here else sweep.label(m) for m in models}
    facts = [*plan_facts(sweep, plan_id), *([] if machine is None else [f"simulated, {machine.name}"])]
    on = "this machine, its curves continued" if machine is None else machine.name
    caption = [
        f"Lines: simulated from serial block durations on {on}; nothing is fitted to measured speedups.",
        "Upper end of bands: with bandwidth in proportion to the threads, and barriers that are trees."
        if (table["speedup_high"] > table["speedup"]).any()
        else "",
        "Markers: measured, with 95 % intervals." if here else "",
        predict.error_text(table) if here else "",
        f"Right of the thin line: beyond {predict.FAR} times the measured threads." if here and far else "",
    ]
    marks = {far: f"{predict.FAR} x measured"} if far else {}
    return Chart(panels, facts, styles, "threads", names, marks=marks, caption=caption)
