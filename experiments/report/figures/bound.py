"""Figure `bound`: over the plans of a sweep, how much of the serial step arithmetic bounds, and how much memory."""

from __future__ import annotations

import textwrap

from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from ...analysis.names import GRANULARITY, NETWORK, axis_label, value_text
from ...analysis.roofline import floors_by_phase, memory_share
from ...analysis.speeds import is_usable
from ...analysis.sweep import Sweep
from ...subjects.models import SERIAL
from .heading import header
from .roofline import BOUND_COLORS
from .style import add_legend, marked, new_figure, panel_title

NAMED = 2  # in the caption
RANK, ONE_FOR = 3.5, "sweep"
PHASES = ("forward", "backward", "update")
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


def draw(sweep: Sweep, plan_id: str, column: str) -> Figure:
    """Draw a bar for each plan: its floor by bound and phase, over the time of its serial step."""
    plans = _plans(sweep)
    figure, (shares, phases) = new_figure(column, 2, max(1.6, 0.17 * len(plans) + 0.4), widths=(1.3, 1))
    for place, each in enumerate(plans):
        step_s = sweep.typical_time((each, SERIAL, 1)).value
        floors = floors_by_phase(sweep, each, 1)
        left = 0.0
        for index, color in enumerate(BOUND_COLORS.values()):
            part = sum(both[index] for both in floors.values()) / step_s
            shares.barh(place, part, left=left, height=0.75, color=color)
            left += part
        shares.barh(place, max(1 - left, 0), left=left, height=0.75, color="0.9")
        for offset, phase in enumerate(PHASES):
            both = floors.get(phase)
            if both:
                own = place + 0.25 * (offset - 1)  # beside each other where two phases have the same part
                phases.plot(both[1] / sum(both), own, "oD^"[offset], color="0.2", markersize=3, clip_on=False, zorder=3)
    labels = [marked(_label(sweep, each), is_usable(sweep, (each, SERIAL, 1))) for each in plans]
    for axis in (shares, phases):
        axis.set_ylim(len(plans) - 0.4, -0.6)
        axis.tick_params(axis="y", length=0)
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
    if column == "single":
        labels = ["\n".join(textwrap.wrap(label, 30)) for label in labels]
    shares.set_yticks(range(len(plans)), labels, linespacing=0.9)
    beside = column == "double"  # in a single one the second panel stands below and has names of its own
    phases.set_yticks(range(len(plans)), [""] * len(plans) if beside else labels, linespacing=0.9)
    phases.set_xlim(0, 1)
    phases.grid(axis="y")
    shares.set_xlabel("share of the serial step")
    phases.set_xlabel("of the phase's floor")
    panel_title(shares, "roofline floor in the step")
    panel_title(phases, "bound by memory")
    handles = [Patch(color=color, label=f"floor, bound by {bound}") for bound, color in BOUND_COLORS.items()]
    handles.append(Patch(color="0.9", label="above the floor"))
    handles += [
        phases.plot([], [], "oD^"[offset], color="0.2", markersize=3.5, label=phase)[0]
        for offset, phase in enumerate(PHASES)
        if any(phase in floors_by_phase(sweep, each, 1) for each in plans)
    ]
    add_legend(figure, column, handles)
    header(figure, sweep, [f"{len(plans)} plans, one thread"], column)
    return figure


def caption(sweep: Sweep, plan_id: str) -> list[str]:
    """Return the caption's sentences: the answers first."""
    said = []
    for each in _plans(sweep)[:NAMED]:
        step = sweep.typical_time((each, SERIAL, 1)).value / sum(map(sum, floors_by_phase(sweep, each, 1).values()))
        said.append(f"{_label(sweep, each)} {memory_share(sweep, each):.0%}, step {step:.2f} times the floor")
    return [
        f"Share of the roofline floor in loops bound by memory, one thread: {'; '.join(said)}.",
        "(a) Floor over serial step, (b) that share by phase. Above 1: data stayed in caches, or Winograd, whose "
        "operations count as direct.",
    ]
