"""The question of this software, answered in three sentences: barriers, creation, overlap."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..analysis.names import base_model, model_label
from ..analysis.statistics import EQUIVALENCE_BAND, FASTER, MIN_PAIRS, SAME, SLOWER, verdict
from ..analysis.study import Point, Study


def in_short(study: Study, plan_id: str) -> list[str]:
    """Return what dependences in place of barriers, replay in place of creation, and overlapping steps change.

    Each sentence is about the fastest measured form of both sides on the largest number of threads; a comparison
    that was not measured is left out.
    """
    points = study.points_of(plan_id)
    threads = max((n for _, n in points), default=1)
    if threads < 2:
        return []

    def forms_of(name: str) -> list[Point]:
        return [(plan_id, model, n) for model, n in points if n == threads and base_model(model) == name]

    join, eager, graph, cyclic = map(forms_of, ("forkjoin", "tasks", "taskgraph", "taskiter"))
    questions = (
        ("task dependences in place of the barriers of fork-join", graph or eager or cyclic, join),
        ("a graph that is recorded once and replayed in place of tasks that are created in each step", graph, eager),
        ("steps that overlap in place of a barrier between them", cyclic, graph),
    )
    return [
        _sentence(study, threads, what, study.times.fastest(forms), references)
        for what, forms, references in questions
        if forms and references
    ]


def _sentence(study: Study, threads: int, what: str, point: Point, references: Sequence[Point]) -> str:
    ratio = study.ratio_to_fastest(point, references)  # as in the tables
    told = [f"{model_label(point[1])} against {model_label(study.times.fastest(references)[1])}"]
    said = {
        FASTER: f"make a step {1 / ratio.value:.2f} times as fast",
        SLOWER: f"make a step {ratio.value:.2f} times as long",
        SAME: f"change nothing, within {EQUIVALENCE_BAND:.0%}",
    }.get(verdict(ratio))
    if said is None:
        said = "have no effect that could be told from noise"
        told.append(f"time ratio {ratio.value:.3f}")
    if math.isfinite(ratio.low):
        told.append(f"95% interval of the time ratio {ratio.low:.3f} to {ratio.high:.3f}")
    if ratio.count < MIN_PAIRS:
        said = f"have an effect that {ratio.count} repetition{'s' * (ratio.count != 1)} cannot tell from noise"
        told.append(f"a verdict needs at least {MIN_PAIRS} repetitions")
    if what.startswith("a graph"):
        said = said.replace("make a", "makes a").replace("change nothing", "changes nothing").replace("have ", "has ")
    return f"On {threads} threads {what} {said} ({', '.join(told)})."
