"""Questions of a comparison, and which of them a sequential test has not decided yet.

The questions are those of the report: is a task model faster than the better fork-join form, slower, or the same within
the band of equivalence, on the largest number of threads, for each plan? Repetition blocks hold all configurations in
random order, so each block is a round of the sequential test, which may be looked at after every block.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import median

from ..analysis.names import TASK_MODELS, base_model
from ..analysis.statistics import EQUIVALENCE_BAND, MIN_PAIRS
from ..results.rows import SampleRow
from .sequential import FAIL, GO_ON, PASS, judge


def judge_question(log_ratios: list[float]) -> str:
    """Judge a ratio of times: "faster", "slower", "same" within the band, or "go on"."""
    if len(log_ratios) < MIN_PAIRS:
        return GO_ON
    above, below = judge(log_ratios, 1 + EQUIVALENCE_BAND), judge(log_ratios, 1 / (1 + EQUIVALENCE_BAND))
    if above == PASS and below == FAIL:
        return "same"
    return {PASS: "faster", FAIL: "slower", GO_ON: GO_ON}[judge(log_ratios, 1.0)]


def undecided(samples: Iterable[SampleRow]) -> set[str] | None:
    """Return the ids of the configurations that open questions need, the serial ones among them, or None where there
    is no question at all.

    Parameters
    ----------
    samples : iterable of SampleRow
    """
    times: dict[tuple[str, int, int], dict[str, dict[int, float]]] = {}
    ids: dict[tuple[str, int, int, str], str] = {}
    for row in samples:
        place = (row.plan_id, row.interference, row.threads)
        if row.step_time_s > 0:
            times.setdefault(place, {}).setdefault(row.model, {})[row.repetition] = row.step_time_s
        ids[(*place, row.model)] = row.config_id
    most: dict[tuple[str, int], int] = {}
    for plan, hogs, threads in times:
        most[plan, hogs] = max(threads, most.get((plan, hogs), 0))
    found: set[str] = set()
    asked = False
    for (plan, hogs), threads in most.items():
        of_models = times[plan, hogs, threads]
        forms = {m: t for m, t in of_models.items() if base_model(m) == "forkjoin"}
        if not forms:
            continue
        best = min(forms, key=lambda m: median(forms[m].values()))
        for model, own in of_models.items():
            if base_model(model) not in TASK_MODELS:
                continue
            asked = True
            common = sorted(set(own) & set(forms[best]))
            if judge_question([math.log(own[r] / forms[best][r]) for r in common]) == GO_ON:
                found |= {ids[plan, hogs, threads, m] for m in (model, *forms)}
                found |= {ids[plan, hogs, 1, "serial"]} if (plan, hogs, 1, "serial") in ids else set()
    return found if asked else None
