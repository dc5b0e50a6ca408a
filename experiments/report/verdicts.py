"""The answers of a report, one row for each question: which model is faster, and by how much."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from ..analysis.estimates import UNDECIDED, amount
from ..analysis.names import model_label
from ..analysis.questions import ModelAndThreads, questions
from ..analysis.speeds import best_serial, compared, scope
from ..analysis.sweep import Point, Sweep, kept
from ..results.turns import cores_text
from ..subjects.models import SERIAL
from .words import axes_text, plan_title

WRONG = 0.05  # of decided answers, at most: intervals of 95 %


@kept
def answers(sweep: Sweep) -> list[dict[str, Any]]:
    """Return the rows of the table of answers, plan by plan in the order of the sweep.

    Returns
    -------
    list of dict
        plan_id, plan, question, label, against (the figure that shows the row: "forkjoin", "peers" or none), model,
        reference, threads, time_s, reference_s, sessions, generations, rounds, apart (of sessions, in logarithms),
        ratio, ratio_low, ratio_high, verdict, lacks, usable, amount.
    """
    return [row for plan_id in sweep.plan_ids() for row in _of_plan(sweep, plan_id)]


def _of_plan(sweep: Sweep, plan_id: str) -> Iterator[dict[str, Any]]:
    def fastest(contestants: Sequence[ModelAndThreads]) -> ModelAndThreads:
        return sweep.times.fastest([(plan_id, *each) for each in contestants])[1:]

    for question in questions(sweep.points_of(plan_id), fastest):
        references = [(plan_id, *each) for each in question.references]
        if question.references == [(SERIAL, 1)]:
            references = [best_serial(sweep, plan_id) or references[0]]  # speedups are over the best granularity
        yield _row(sweep, (plan_id, *question.contestant), references, question.what, question.against)


def _row(sweep: Sweep, point: Point, references: Sequence[Point], what: str, against: str) -> dict[str, Any]:
    own = compared(sweep, point, references)
    reference, ratio = own.reference, own.ratio
    assert reference is not None  # a question has some
    other = "itself" if reference[1] == point[1].repeated else model_label(reference[1])
    return {
        "plan_id": point[0],
        "plan": axes_text(sweep, point[0]) or plan_title(sweep, point[0]),
        "question": f"{model_label(point[1].repeated)} against {other}" + (f": {what}" if what else ""),
        "label": model_label(point[1]),
        "against": against,
        "model": point[1],
        "reference": reference[1],
        "threads": point[2],
        "time_s": sweep.typical_time(point).value,
        "reference_s": sweep.typical_time(reference).value,
        "sessions": ratio.sessions,
        "generations": ratio.count,
        "rounds": ratio.rounds,
        "apart": ratio.apart,
        **own.columns(),
        "usable": own.usable,
        "amount": amount(ratio) if own.usable or not ratio.enough else "",
    }


def scope_note(sweep: Sweep) -> str:
    """Say where the answers hold, how far apart sessions were, and how many answers are expected to be wrong."""
    rows = [row for row in answers(sweep) if row["usable"]]
    decided = sum(row["verdict"] != UNDECIDED for row in rows)
    text = f"These answers hold {scope(sweep)}."
    if apart := [row["apart"] for row in rows if math.isfinite(row["apart"])]:
        text += f" Sessions lay up to {max(apart):.1%} apart (median of all answers: {median(apart):.1%})."
    elif rows:
        text += " Another session may differ by more than the intervals say: measure several, hours apart."
    if decided:
        text += f" Answers that are decided: {decided}; expected to be wrong: {WRONG * decided:.2g} at most."
    cores = cores_text(sweep.rounds, " Cores were")
    return text + cores + "." * bool(cores)
