"""Figures of ratios: `forest` has those of all contestants, `interference` slowdowns by competing processes; `turns`
and `handover` those of turns, and of generations over the time of a hand-over between two CPUs: drift, and states of
the host, that an interval alone does not show."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from statistics import median
from typing import Any

import pandas as pd

from ...analysis.comparisons import interference_table
from ...analysis.estimates import EQUIVALENCE_BAND
from ...analysis.speeds import better_forkjoin
from ...analysis.sweep import Sweep
from ...results.turns import MOVED_TIMES
from ...subjects.models import ModelSpec
from ...tables.numbers import plural
from ..verdicts import answers
from ..words import plan_facts
from .chart import Chart, Lacking, Panel, figure, reference_rows, value_rows
from .style import GREY, ModelStyle, model_styles

MOST_ROWS = 40  # of `forest`
WIDEST = 1.5  # ratios on the axis of `forest`; what is farther from 1 is an arrow
LOST = "% of the time lost, beyond the CPU time taken"
NANOSECOND, MOST_NAMED = 1e-9, 4
MOST_TURNS, LEAST_GENERATIONS = 6, 2  # panels of `turns`, and what it needs


@figure(-1, "sweep")
def forest(sweep: Sweep, plan_id: str) -> Chart:
    """Return ratios to fork-join of all contestants, under the titles of their plans."""
    if not (rows := [row for row in answers(sweep) if row["against"] == "forkjoin"]):
        raise Lacking("a forest plot needs a fork-join form and another model on as many threads")
    reference = sweep.reference_call
    other, whole = "better fork-join", "the better fork-join form"
    if reference:
        other = whole = sweep.label(reference)
    caption = [
        f"Time over that of {whole}, on most threads, with 95 % intervals; grey: ± {EQUIVALENCE_BAND:.0%}.",
        "Again (A/A): a model against itself." if any(row["model"].again for row in rows) else "",
        f"{len(rows) - MOST_ROWS} more in the table." if len(rows) > MOST_ROWS else "",
    ]
    table = pd.DataFrame(_with_references(sweep, rows[:MOST_ROWS]))
    again = table.groupby(["plan", "label"]).cumcount().astype(bool)  # a model that is measured twice has two rows
    names = table["label"].where(~again, [f"{row.label}, {row.threads} thr." for row in table.itertuples()])
    styles = model_styles(sweep.samples["model"], sweep.rank)
    styles |= {model: ModelStyle(GREY, look.marker, look.line) for model, look in styles.items() if model.again}
    label = f"faster\u00a0← time / {other} →\u00a0slower"
    drawn = value_rows(table.assign(group=table["plan"]), "ratio", names)
    panel = Panel(drawn, label, "", "ratio", (1 / WIDEST, WIDEST))
    return Chart([panel], [sweep.run.config.get("title", "")], styles, caption=caption)


def _with_references(sweep: Sweep, rows: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield rows, before those of each plan its reference, at 1."""
    for _, own in groupby(rows, key=lambda row: row["plan"]):
        first, *others = own
        label, one = sweep.label(first["reference"]), dict.fromkeys(("ratio", "ratio_low", "ratio_high"), 1.0)
        yield from ({**first, **one, "model": first["reference"], "label": label, "usable": True}, first, *others)


@figure(7, "sweep")
def interference(sweep: Sweep, plan_id: str) -> Chart:
    """Return the loss of each model to competing processes, beyond the CPU time that they take, a group for each plan
    and number of them."""
    table = interference_table(sweep)
    if not len(table) or not (table["hogs"] > 0).any():
        raise Lacking(
            "a figure over competing processes needs points with and without them, got one kind; run interference.toml"
        )
    table = table[(table["hogs"] > 0) & (table["threads"] == table["threads"].max())]
    names = [sweep.problem_name(plan) for plan in table["plan_id"]]
    beside = [plural(hogs, "competing process", "competing processes") for hogs in table["hogs"]]
    groups = [f"{name}; {processes}" for name, processes in zip(names, beside, strict=True)]
    rows = value_rows(table.assign(group=groups), "loss", table["model"].map(sweep.label), scale=100)
    threads = plural(int(table["threads"].max()), "thread")
    return Chart(
        [Panel(rows, LOST, "", "linear", (-100.0, math.inf))],
        [f"Lost to competing processes, {threads}"],
        model_styles(table["model"], sweep.rank),
        caption=[
            "Step time with competing processes times the CPU time that they leave, over that without, minus one: CPU "
            "time that was available and not used. Bars: 95 % intervals."
        ],
    )


def _on_most_threads(sweep: Sweep, plan_id: str) -> tuple[int, ModelSpec | None]:
    """Return the most threads of a plan's models of the CPU, and the better fork-join form on them."""
    threads = max((count for model, count in sweep.points_of(plan_id) if not model.is_gpu), default=1)
    return threads, better_forkjoin(sweep, plan_id, threads)


def handover_rows(sweep: Sweep, plan_id: str) -> list[dict[str, Any]]:
    """Return a row for each generation and model on most threads: model, handover_s (median over rounds), ratio (time
    over that of the better fork-join form in this generation), left_out (whether tables leave the generation out)."""
    threads, join = _on_most_threads(sweep, plan_id)
    own = sweep.samples[(sweep.samples["plan_id"] == plan_id) & (sweep.samples["threads"] == threads)]
    groups = {key: part.set_index("model")["step_time_s"] for key, part in own.groupby(["repetition", "group"])}
    moved = {(generation, group[2]) for generation, group in sweep.quiet.moved if group[0] == plan_id}
    result = []
    for row in sweep.rounds:
        key = row.repetition, row.group
        seconds = [one for one in row.handover_s if one]
        times = groups.get(key)
        if row.plan_id != plan_id or not seconds or times is None or join not in times.index:
            continue
        for model in (model for model in times.index if model != join and sweep.shows(model) and not model.is_gpu):
            about = {"model": model, "handover_s": median(seconds), "left_out": key in moved}
            result.append({**about, "ratio": float(times[model] / times[join])})
    return result


@figure(6.5)
def handover(sweep: Sweep, plan_id: str) -> Chart:
    """Return a row for near and for far CPUs with a mark for each generation and model, hollow where tables leave the
    generation out; the caption has the medians, where several generations had each."""
    table = pd.DataFrame(handover_rows(sweep, plan_id), columns=["model", "handover_s", "left_out", "ratio"])
    rows = table.sort_values("handover_s", kind="stable").to_dict("records")
    if not rows or rows[-1]["handover_s"] <= MOVED_TIMES * rows[0]["handover_s"]:
        raise Lacking(
            "ratios over hand-overs need fork-join, another model, and generations with near and with far CPUs"
        )
    # Near and far CPUs part where hand-overs leap most.
    leaps = [after["handover_s"] / before["handover_s"] for before, after in pairwise(rows)]
    at = 1 + leaps.index(max(leaps))
    of_model: list[dict[ModelSpec, list[float]]] = [{}, {}]
    for number, row in enumerate(rows):
        of_model[number >= at].setdefault(row["model"], []).append(row["ratio"])
    both = [model for model in sorted(of_model[0]) if min(len(result.get(model, ())) for result in of_model) > 1]
    texts = [
        f"{sweep.label(model)} {', '.join(f'{median(result[model]):.2f}' for result in of_model)}" for model in both
    ]
    far_ns = rows[at]["handover_s"] / NANOSECOND
    caption = ["Ratios of generations, by the time of a hand-over between two CPUs; hollow: left out of tables."]
    if texts:
        caption.append(f"Medians near, and far (from {far_ns:.0f} ns on): {'; '.join(texts[:MOST_NAMED])}.")
    table = table.sort_values("model")
    ends = ([row["handover_s"] / NANOSECOND for row in part] for part in (rows[:at], rows[at:]))
    near, far = (
        f"{name} CPUs: {times[0]:.0f} to {times[-1]:.0f} ns" for name, times in zip(("near", "far"), ends, strict=True)
    )
    places = [far if one / NANOSECOND >= far_ns else near for one in table["handover_s"]]
    drawn = reference_rows(table["model"], places, table["ratio"]).assign(hollow=table["left_out"])
    drawn = drawn.sort_values("x", ascending=False, kind="stable")  # near ones first
    styles = {m: replace(look, line="none") for m, look in model_styles(sweep.samples["model"], sweep.rank).items()}
    panel = Panel(drawn, "time / better fork-join", "", "ratio")
    return Chart([panel], plan_facts(sweep, plan_id), styles, hollow_unknown=False, caption=caption)


def _turn_rows(sweep: Sweep, plan_id: str) -> list[dict[str, Any]]:
    """Return a row for each turn of each model on most threads: model, session, generation, round, x (its place in
    time: generations one after the other, rounds between them), value (time over that of the better fork-join form in
    the same round); low, high are not known."""
    threads, join = _on_most_threads(sweep, plan_id)
    base = sweep.turns.get((plan_id, join, threads), {})
    order = sorted({turn[0] for turn in base}, key=lambda g: (sweep.session_of.get(g, 0), g))
    rounds = max((turn[2] for turn in base), default=0) + 1
    result = []
    for model, count in sweep.points_of(plan_id):
        own = sweep.turns[plan_id, model, count] if count == threads and model != join else {}
        for turn in sorted({*own} & {*base}, key=lambda turn: (order.index(turn[0]), turn[2])):
            generation = order.index(turn[0]) + 1
            about = {"session": sweep.session_of.get(turn[0], 0) + 1, "generation": generation, "round": turn[2] + 1}
            value = {"x": generation + turn[2] / rounds, "value": own[turn] / base[turn]}
            result.append({"model": model, **value, **about, "low": math.nan, "high": math.nan})
    return result


@figure(6.4)
def turns(sweep: Sweep, plan_id: str) -> Chart:
    """Return a panel for each model: a dot for each turn, a line for the middle of each generation."""
    rows = _turn_rows(sweep, plan_id)
    if len({row["generation"] for row in rows}) < LEAST_GENERATIONS:
        raise Lacking(
            f"ratios of turns need fork-join, another model and {LEAST_GENERATIONS} generations; measure longer"
        )
    table, styles = pd.DataFrame(rows), model_styles(sweep.samples["model"], sweep.rank)
    low, high = table["value"].quantile([0.01, 0.99])
    firsts = table.groupby("session")["generation"].min()

    def painted(model: ModelSpec) -> Panel:
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

        return Panel(own, "turn / fork-join", sweep.label(model), paint=paint)

    panels = [painted(model) for model in list(dict.fromkeys(table["model"]))[:MOST_TURNS]]
    caption = (
        "Time of each undisturbed turn over that of the better fork-join form in the same round, in the order of time. "
        "Lines: median of a generation of processes." + " Dotted: another session begins." * (sweep.sessions > 1)
    )
    facts = [*plan_facts(sweep, plan_id)[:2], f"{len(table)} turns"]
    return Chart(panels, facts, styles, "generation", across=3, height=1.5, caption=[caption])
