"""Figure `turns`: the ratio to fork-join of every turn, session by session and generation by generation: drift, and
states of the host, that an interval alone does not show."""

from __future__ import annotations

import math

import pandas as pd

from ...analysis.names import model_label
from ...analysis.speeds import better_forkjoin
from ...analysis.sweep import Sweep, kept
from .chart import Chart, Panel
from .heading import plan_facts
from .style import GREY, model_styles

RANK, ONE_FOR = 6.4, "plan"
MOST_PANELS, LEAST_GENERATIONS = 6, 2


@kept
def rows_of(sweep: Sweep, plan_id: str) -> pd.DataFrame:
    """Return a row for each turn of each model on most threads: model, session, generation, round, x (its place in
    time: generations one after the other, rounds between them), value (time over that of the better fork-join form in
    the same round); low, high are not known."""
    threads = max((count for model, count in sweep.points_of(plan_id) if not model.is_gpu), default=1)
    join = better_forkjoin(sweep, plan_id, threads)
    base = sweep.turns.get((plan_id, join, threads), {})
    # Generations of several sessions are numbered in turn (`separate_sessions`).
    order = sorted({turn[0] for turn in base}, key=lambda g: (g % sweep.sessions, g))
    rounds = max((turn[2] for turn in base), default=0) + 1
    result = []
    for model, count in sweep.points_of(plan_id):
        own = sweep.turns[plan_id, model, count] if count == threads and model != join else {}
        for turn in sorted({*own} & {*base}, key=lambda turn: (order.index(turn[0]), turn[2])):
            about = {
                "session": turn[0] % sweep.sessions + 1,
                "generation": order.index(turn[0]) + 1,
                "round": turn[2] + 1,
            }
            x = about["generation"] + turn[2] / rounds
            result.append({"model": model, "x": x, "value": own[turn] / base[turn], **about})
    return pd.DataFrame(result).assign(low=math.nan, high=math.nan) if result else pd.DataFrame({"generation": []})


def missing(sweep: Sweep, plan_id: str) -> str:
    """Return why the figure cannot be drawn."""
    if rows_of(sweep, plan_id)["generation"].nunique() >= LEAST_GENERATIONS:
        return ""
    return f"ratios of turns need fork-join, another model and {LEAST_GENERATIONS} generations; measure longer"


def chart(sweep: Sweep, plan_id: str) -> Chart:
    """Return a panel for each model: a dot for each turn, a line for the middle of each generation."""
    table, styles = rows_of(sweep, plan_id), model_styles(sweep.samples["model"])
    models = list(dict.fromkeys(table["model"]))[:MOST_PANELS]
    low, high = table["value"].quantile([0.01, 0.99])
    firsts = table.groupby("session")["generation"].min()

    def painted(model):
        own = table[table["model"] == model]

        def paint(axis, column: str) -> None:
            axis.scatter(own["x"], own["value"], s=3, color=[styles[model].color], alpha=0.5, linewidths=0)
            middles = own.groupby("generation")["value"].median()
            axis.hlines(middles, middles.index, middles.index + 1, color="0.1", linewidth=1.0, zorder=4)
            for first in firsts.iloc[1:]:
                axis.axvline(first, color=GREY, linewidth=0.6, linestyle=":")
            axis.axhline(1, color=GREY, linewidth=0.7)
            axis.set(xlabel="generation", ylabel="turn / fork-join")
            axis.set_ylim(low / 1.02, high * 1.02)
            axis.xaxis.get_major_locator().set_params(integer=True)

        return Panel(own, "turn / fork-join", model_label(model), paint=paint)

    facts = [*plan_facts(sweep, plan_id)[:2], f"{len(table)} turns"]
    return Chart([*map(painted, models)], facts, styles, "generation", across=3, height=1.5)


def caption(sweep: Sweep, plan_id: str) -> list[str]:
    """Return the caption's sentences."""
    several = sweep.sessions > 1
    return [
        "Time of each undisturbed turn over that of the better fork-join form in the same round, in the order of time. "
        "Lines: median of a generation of processes." + " Dotted: another session begins." * several
    ]
