"""The answers of a report, one row for each question: which model is faster, and by how much."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from ..analysis.comparisons import sweep_on
from ..analysis.estimates import UNDECIDED
from ..analysis.questions import ModelAndThreads, questions
from ..analysis.speeds import Pair, best_serial, ratio_rows, scope
from ..analysis.sweep import Point, Sweep, kept
from ..results.turns import cores_text
from ..subjects.models import SERIAL
from .words import axes_text, plan_title

WRONG = 0.05  # of decided answers, at most: intervals of 95 %


@kept
def answers(sweep: Sweep) -> list[dict[str, Any]]:
    """Return the rows of the table of answers, plan by plan in the order of the sweep: plan, question, label, against
    ("forkjoin", which figure `forest` shows, or none), and the columns of `ratio_rows`."""
    return [row for plan_id in sweep.plan_ids() for row in _of_plan(sweep, plan_id)]


def _of_plan(sweep: Sweep, plan_id: str) -> Iterator[dict[str, Any]]:
    def fastest(contestants: Sequence[ModelAndThreads]) -> ModelAndThreads:
        return sweep.times.fastest([(plan_id, *each) for each in contestants])[1:]

    pairs = []
    for contestant, others, what, against in questions(sweep.points_of(plan_id), fastest, sweep.reference_call):
        references = [Point(plan_id, *each) for each in others]
        if others == [(SERIAL, 1)]:
            references = [best_serial(sweep, plan_id) or references[0]]  # speedups are over the best granularity
        about = {"plan": axes_text(sweep, plan_id) or plan_title(sweep, plan_id), "what": what, "against": against}
        pairs.append(Pair(Point(plan_id, *contestant), references, about))
    for row in ratio_rows(sweep, pairs):
        model, reference, what = row["model"], row["reference"], row.pop("what")
        other = "itself" if reference == model.repeated else sweep.label(reference)
        question = f"{sweep.label(model.repeated)} against {other}" + (f": {what}" if what else "")
        yield {**row, "question": question, "label": sweep.label(model)}


def node_rows(sweep: Sweep, plan_id: str) -> list[dict[str, Any]]:
    """Return the answers of a plan against fork-join on each node of several: node, and their own columns."""
    shown = [row for row in answers(sweep) if (row["plan_id"], row["against"]) == (plan_id, "forkjoin")]
    result = []
    for node in sweep.nodes if len(sweep.nodes) > 1 else ():
        there = sweep_on(sweep, node)
        pairs = [
            Pair(Point(plan_id, row["model"], row["threads"]), [Point(plan_id, row["reference"], row["threads"])], row)
            for row in shown
        ]
        pairs = [pair for pair in pairs if pair.point in there.turns and pair.references[0] in there.turns]
        result += [{**row, "node": node} for row in ratio_rows(there, pairs)]
    return result


def scope_note(sweep: Sweep) -> str:
    """Say where the verdicts hold, how far apart sessions were, and how many are expected to be wrong."""
    rows = [row for row in answers(sweep) if row["usable"]]
    decided = sum(row["verdict"] != UNDECIDED for row in rows)
    text = f"These verdicts hold {scope(sweep)}."
    if apart := [row["apart"] for row in rows if math.isfinite(row["apart"])]:
        text += f" Sessions lay up to {max(apart):.1%} apart (median of all: {median(apart):.1%})."
    elif rows:
        text += " Another session may differ by more than the intervals say: measure several, hours apart."
    if decided:
        text += f" Decided: {decided}; expected to be wrong: {WRONG * decided:.2g} at most."
    cores = cores_text(sweep.rounds, " Cores were")
    return text + cores + "." * bool(cores)
