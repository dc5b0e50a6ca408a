"""The answers of a report: what dependences, replay, overlap and devices change, and by how much."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..analysis.names import base_model, is_gpu
from ..analysis.statistics import verdict
from ..analysis.study import Point, Study


def answers(study: Study, plan_id: str) -> list[dict[str, Any]]:
    """Return a row for each question to which the models of a plan have an answer.

    Each is about the fastest measured form of both sides, on the processor on its largest number of threads.
    """
    points = [(plan_id, *point) for point in study.points_of(plan_id)]
    cpu = [point for point in points if not is_gpu(point[1])]
    threads = max((n for *_, n in cpu), default=1)

    def forms(name: str) -> list[Point]:
        return [point for point in cpu if threads > 1 and point[2] == threads and base_model(point[1]) == name]

    join, eager, graph, cyclic = map(forms, ("forkjoin", "tasks", "taskgraph", "taskiter"))
    both = [point for point in points if base_model(point[1]) == "gpu_both"]
    gpu = [point for point in points if point not in cpu and point not in both]
    questions = (
        ("dependences in place of barriers", graph or eager or cyclic, join),
        ("a graph recorded once in place of tasks created in each step", graph, eager),
        ("steps that overlap in place of a barrier between them", cyclic, graph),
        ("a GPU in place of the processor", gpu, cpu),
        ("processor and GPU together in place of the GPU alone", both, gpu),
    )
    return [
        {"plan_id": plan_id, "question": what, **_compared(study, study.times.fastest(ours), references)}
        for what, ours, references in questions
        if ours and references
    ]


def _compared(study: Study, point: Point, references: Sequence[Point]) -> dict[str, Any]:
    ratio = study.ratio_to_fastest(point, references)  # as in the tables
    return {
        "model": point[1],
        "reference": study.times.fastest(references)[1],
        "threads": point[2],
        "repetitions": ratio.count,
        "ratio": ratio.value,
        "ratio_low": ratio.low,
        "ratio_high": ratio.high,
        "verdict": verdict(ratio),
    }
