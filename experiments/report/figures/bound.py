"""Figure `bound`: over the plans of a sweep, how much of the serial step arithmetic bounds, and how much memory."""

from __future__ import annotations

import math
import textwrap

import pandas as pd
from matplotlib.patches import Patch
from matplotlib.ticker import PercentFormatter

from ...analysis.names import GRANULARITY, NETWORK, axis_label, value_text
from ...analysis.roofline import floors_by_phase, memory_share
from ...analysis.speeds import is_usable
from ...analysis.sweep import Sweep
from ...subjects.models import SERIAL
from .axes import rows_of_bars
from .chart import Chart, Panel
from .roofline import BOUND_COLORS
from .style import marked

NAMED = 2  # in the caption
RANK, ONE_FOR = 3.5, "sweep"
MOST_PLANS = 24


def _plans(sweep: Sweep) -> list[str]:
    """Plans with a serial time and floors, in the order of the sweep."""
    return [
        plan_id
        for plan_id in sweep.plan_ids()
        if (plan_id, SERIAL, 1) in sweep.turns and floors_by_phase(sweep, plan_id, 1)
    ]


def missing(sweep: Sweep, plan_id: str) -> str:
    """Return why the figure cannot be drawn."""
    count = len(_plans(sweep))
    if not 1 < count <= MOST_PLANS:
        return (
            f"a figure of what bounds several plans needs 2 to {MOST_PLANS} of them with serial runs, and the "
            f"machine's peak and bandwidth, got {count}; run a sweep with several"
        )
    return ""


def _label(sweep: Sweep, plan_id: str) -> str:
    """Return what tells a plan from the others; networks and granularities need no word before them."""
    record = sweep.named[plan_id]
    words = {axis: "" if axis in (NETWORK, GRANULARITY) else f"{axis_label(axis)} " for axis in sweep.axes}
    return ", ".join(f"{word}{value_text(record[axis])}" for axis, word in words.items()) or plan_id


def chart(sweep: Sweep, plan_id: str) -> Chart:
    """Return a bar for each plan: its floor by bound, over the time of its serial step."""
    rows = []
    for each in _plans(sweep):
        step_s = sweep.typical_time((each, SERIAL, 1)).value
        floors = floors_by_phase(sweep, each, 1).values()
        name = marked(_label(sweep, each), is_usable(sweep, (each, SERIAL, 1)))
        for index, bound in enumerate(BOUND_COLORS):
            rows.append({"model": bound, "x": name, "value": sum(both[index] for both in floors) / step_s})
    table = pd.DataFrame(rows).assign(low=math.nan, high=math.nan)
    names = list(dict.fromkeys(table["x"]))

    def paint(axis, column: str) -> None:
        parts = [table[table["model"] == bound]["value"].to_numpy() for bound in BOUND_COLORS]
        for number, color in enumerate(BOUND_COLORS.values()):
            axis.barh(range(len(names)), parts[number], left=sum(parts[:number]), height=0.75, color=color)
        axis.barh(range(len(names)), 1 - sum(parts), left=sum(parts), height=0.75, color="0.9")
        for place, share in enumerate(parts[1] / sum(parts)):
            axis.text(1.01, place, f"{share:.0%} by memory", va="center", fontsize=6.5)
        wrapped = names if column == "double" else ["\n".join(textwrap.wrap(name, 26)) for name in names]
        axis.set(xlim=(0, 1.2), xticks=[0, 0.25, 0.5, 0.75, 1.0])
        axis.xaxis.set_major_formatter(PercentFormatter(1.0))
        rows_of_bars(axis, wrapped, "share of the serial step")

    handles = [Patch(color=color, label=f"floor, bound by {bound}") for bound, color in BOUND_COLORS.items()]
    handles.append(Patch(color="0.9", label="above the floor"))
    panel = Panel(table, "share of the serial step", paint=paint)
    facts = [f"{len(names)} plans, one thread"]
    return Chart([panel], facts, height=max(1.2, 0.19 * len(names) + 0.4), handles=handles)


def caption(sweep: Sweep, plan_id: str) -> list[str]:
    """Return the caption's sentences: the answers first."""
    texts = []
    for each in _plans(sweep)[:NAMED]:
        step = sweep.typical_time((each, SERIAL, 1)).value / sum(map(sum, floors_by_phase(sweep, each, 1).values()))
        texts.append(f"{_label(sweep, each)} {memory_share(sweep, each):.0%}, step {step:.2f} times the floor")
    return [
        f"Share of the roofline floor in loops bound by memory, one thread: {'; '.join(texts)}.",
        "Bars: floor over serial step. Above 1: data stayed in caches, or Winograd, whose operations count as direct.",
    ]
