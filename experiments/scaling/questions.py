"""Which questions of a comparison the estimator has not answered yet.

They are those of the report, on the largest number of threads, for each plan. Intervals are valid at every look, so
that measuring may stop after any generation.
"""

from __future__ import annotations

from ..analysis.estimates import UNDECIDED, Estimates, verdict
from ..analysis.names import base_model
from ..analysis.questions import questions
from ..results.folder import Results
from ..results.rows import RoundsRow, SampleRow
from ..results.turns import turns_of

ONCE = ("joblib",)  # far behind, and slow to measure: one generation shows it


def undecided(results: Results) -> set[str] | None:
    """Return the ids of the configurations that open questions need, the serial ones among them, or None where there
    is no question at all."""
    samples = results.of(SampleRow)
    ids = {(row.plan_id, row.interference, row.model, row.threads): row.config_id for row in samples}
    times = Estimates(turns_of(samples, results.of(RoundsRow)))
    found: set[str] = set()
    asked = False
    for plan in dict.fromkeys(point[:2] for point in times.points):
        here = [point[2:] for point in times.points if point[:2] == plan]
        serial = [each for each in here if each[0] == "serial"]

        def fastest(contestants, plan=plan):
            return times.fastest([(*plan, *each) for each in contestants])[2:]

        for question in questions(here, fastest):
            if base_model(question.contestant[0]) in ONCE:
                continue
            asked = True
            candidate, *others = ((*plan, *each) for each in (question.contestant, *question.references))
            if verdict(times.ratio_to_fastest(candidate, others)) == UNDECIDED:
                found |= {ids[*plan, *each] for each in (question.contestant, *question.references, *serial)}
    return found if asked else None
