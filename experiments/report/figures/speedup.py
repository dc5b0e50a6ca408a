"""Figure `speedup`: speedup, efficiency, and the ratio of each task model to the better fork-join form."""

from __future__ import annotations

import math

import pandas as pd

from ...analysis.estimates import EQUIVALENCE_BAND, NOT_USABLE
from ...analysis.limits import bound_table
from ...analysis.speeds import best_serial, speed_table
from ...analysis.sweep import Sweep
from .bound_lines import bound_rows
from .chart import REFERENCES, Chart, Panel, ideal_rows, over_threads, value_rows
from .heading import plan_facts
from .style import model_styles

RANK, ONE_FOR = 0, "plan"
SLOWEST = 0.4  # of a speedup's axis


def missing(sweep: Sweep, plan_id: str) -> str:
    """Return why the figure cannot be drawn."""
    if best_serial(sweep, plan_id):
        return ""
    return "a speedup needs serial runs of the same network and batch, got none; measure `serial` too"


def chart(sweep: Sweep, plan_id: str) -> Chart:
    """Return speedup, efficiency, and the ratio of each task model to the better fork-join form."""
    speeds = speed_table(sweep)
    table = speeds[(speeds["plan_id"] == plan_id) & ~speeds["model"].map(lambda model: model.is_serial).astype(bool)]
    # A model of a GPU stands across, at its best number of workers on the host.
    gpu = table["model"].map(lambda model: model.is_gpu).astype(bool)
    best = table[gpu].sort_values("speedup").drop_duplicates("model", keep="last").assign(threads=math.nan)
    table = pd.concat([table[~gpu], best])
    limits = bound_table(sweep)
    limits = limits[limits["plan_id"] == plan_id] if len(limits) else limits
    bounds, looks = bound_rows(limits, {*table["model"]})
    counts = sorted({1, *table["threads"].dropna().astype(int)})
    shares = bounds.assign(**{end: bounds[end] / bounds["x"] for end in ("value", "low", "high") if end in bounds})
    rest = f"time / {'gpu_forkjoin' if gpu.all() and len(gpu) else 'better fork-join'}"
    panels = [
        Panel(
            pd.concat([ideal_rows(counts), bounds, value_rows(table, "speedup")]),
            "speedup",
            "over best serial",
            limits=(SLOWEST, math.inf),
        ),
        Panel(
            pd.concat(
                [ideal_rows(counts, divide=True), shares, value_rows(table[table["threads"].notna()], "efficiency")]
            ),
            "efficiency",
            "speedup / threads",
            "share",
        ),
        Panel(ratio_rows(table), rest, "below 1: faster", "ratio"),
    ]
    styles = {**model_styles(sweep.samples["model"]), **REFERENCES, **looks}
    return over_threads(sweep, Chart(panels, plan_facts(sweep, plan_id), styles, places=sweep.asked_threads(plan_id)))


def ratio_rows(table: pd.DataFrame, x: str = "threads") -> pd.DataFrame:
    """Return the ratio of each task model and each model of a GPU to its device's better fork-join form; what it is
    compared with must be usable too."""
    part = table[table["model"].map(lambda m: m.takes_tasks or m.is_gpu).astype(bool) & table["ratio"].notna()]
    return value_rows(part.assign(usable=part["usable"] & (part["verdict"] != NOT_USABLE)), "ratio", x)


def caption(sweep: Sweep, plan_id: str) -> list[str]:
    """Return the caption's sentences."""
    gpu = any(model.is_gpu for model in sweep.samples["model"])
    return [
        "Speedup over the fastest serial run, on several numbers of threads also over threads, and time over that of "
        f"the better fork-join form. Bars and bands: 95 % intervals; grey: ± {EQUIVALENCE_BAND:.0%}. Arrows: below.",
        "Lines across: models of a GPU, ratios over gpu_forkjoin." if gpu else "",
    ]
