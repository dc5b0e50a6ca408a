"""The answers of a report, one row for each question: which model is faster, and by how much."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from ..analysis.estimates import amount, verdict
from ..analysis.names import base_model, is_again, is_gpu, measured_again, model_label, model_rank
from ..analysis.speeds import best_serial, forkjoin_forms, interval_columns, main_plan
from ..analysis.study import Point, Study
from ..tables.numbers import plural
from .words import axes_text, plan_title

# What parts two models: candidate, reference, what the candidate has besides.
SWITCHES = (("taskgraph", "tasks", "recorded once"), ("taskiter", "taskgraph", "steps overlap"))


@lru_cache(maxsize=4)
def answers(study: Study) -> list[dict[str, Any]]:
    """Return the rows of the table of answers, those of the main plan first.

    Models of the processor are those on most threads. Each is compared with the better fork-join form; a model that is
    measured twice, with itself; the switches between task models follow, and what threads or a GPU bring.

    Returns
    -------
    list of dict
        plan_id, plan, question, label, contestant (whether a figure of all contestants shows the row), model,
        reference, threads, generations, rounds, ratio, ratio_low, ratio_high, verdict, amount.
    """
    first = main_plan(study)
    plans = [first, *(plan_id for plan_id in study.plan_ids() if plan_id != first)]
    return [row for plan_id in plans for row in _of_plan(study, plan_id)]


def _of_plan(study: Study, plan_id: str) -> Iterator[dict[str, Any]]:
    points = [(plan_id, *point) for point in study.points_of(plan_id)]
    threads = max((n for _, model, n in points if not is_gpu(model)), default=1)
    wide = [(p, m, n) for p, m, n in points if n == threads and m != "serial" and not is_gpu(m)]
    once = [point for point in wide if not is_again(point[1])]
    serial = best_serial(study, plan_id)
    for gpu in (False, True):
        own = [point for point in points if is_gpu(point[1])] if gpu else wide
        count = 1 if gpu else threads
        joins = [(plan_id, form, count) for form in forkjoin_forms(study, plan_id, count, gpu)]
        best = study.times.fastest(joins) if joins else None
        for point in sorted(own, key=lambda p: model_rank(p[1])):
            again = (plan_id, measured_again(point[1]), point[2])
            if is_again(point[1]) and again in study.turns:
                yield _row(study, point, [again], "A/A", True)
            elif best and point != best:
                yield _row(study, point, joins, "", True)
    for candidate, reference, what in SWITCHES:
        ours, theirs = ([p for p in once if base_model(p[1]) == name] for name in (candidate, reference))
        if ours and theirs:
            yield _row(study, study.times.fastest(ours), theirs, what)
    joins = [p for p in once if base_model(p[1]) == "forkjoin"]
    if joins and serial and threads > 1:
        yield _row(study, study.times.fastest(joins), [serial], plural(threads, "thread"))
    both = [point for point in points if base_model(point[1]) == "gpu_both"]
    alone = [point for point in points if is_gpu(point[1]) and point not in both]
    cpu = [point for point in points if not is_gpu(point[1])]
    if alone and cpu:
        yield _row(study, study.times.fastest(alone), cpu, "a GPU")
    if both and alone:
        yield _row(study, study.times.fastest(both), alone, "processor and GPU")


def _row(
    study: Study, point: Point, references: Sequence[Point], what: str, contestant: bool = False
) -> dict[str, Any]:
    ratio = study.ratio_to_fastest(point, references)  # as in the tables
    reference = study.times.fastest(references)
    label = model_label(measured_again(point[1]))
    other = "itself" if reference[1] == measured_again(point[1]) else model_label(reference[1])
    return {
        "plan_id": point[0],
        "plan": axes_text(study, point[0]) or plan_title(study, point[0]),
        "question": f"{label} against {other}" + (f": {what}" if what else ""),
        "label": f"A/A: {label}" if is_again(point[1]) else label,
        "contestant": contestant,
        "model": point[1],
        "reference": reference[1],
        "threads": point[2],
        "generations": ratio.count,
        "rounds": study.times.rounds(point),
        **interval_columns("ratio", ratio),
        "verdict": verdict(ratio),
        "amount": amount(ratio),
    }
