"""Questions of a comparison, and which of them the estimator has not answered yet.

The questions are those of the report: is a task model faster than the better fork-join form, slower, or the same within
the band of equivalence, on the largest number of threads, for each plan? Intervals are valid at every look, so that
measuring may stop after any generation.
"""

from __future__ import annotations

from ..analysis.estimates import UNDECIDED, Estimates, verdict
from ..analysis.names import TASK_MODELS, base_model, is_again
from ..results.folder import Results
from ..results.rows import RoundsRow, SampleRow
from ..results.turns import turns_of


def undecided(results: Results) -> set[str] | None:
    """Return the ids of the configurations that open questions need, the serial ones among them, or None where there
    is no question at all."""
    samples = results.of(SampleRow)
    ids = {(row.plan_id, row.interference, row.model, row.threads): row.config_id for row in samples}
    times = Estimates(turns_of(samples, results.of(RoundsRow)))
    found: set[str] = set()
    asked = False
    for plan, hogs in dict.fromkeys(point[:2] for point in times.points):
        here = [point for point in times.points if point[:2] == (plan, hogs)]
        wide = [point for point in here if point[3] == max(threads for *_, threads in here)]
        forms = [point for point in wide if base_model(point[2]) == "forkjoin" and not is_again(point[2])]
        tasks = [point for point in wide if base_model(point[2]) in TASK_MODELS]
        asked = asked or bool(forms and tasks)
        for point in tasks if forms else ():
            if verdict(times.ratio_to_fastest(point, forms)) == UNDECIDED:
                found |= {ids[each] for each in (point, *forms, *(p for p in here if p[2] == "serial"))}
    return found if asked else None
