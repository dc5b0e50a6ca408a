"""Which questions of a comparison the estimator has not answered yet, or not narrowly.

They are those of the report, on the largest number of threads, for each plan. Intervals are valid at every look, so
that measuring may stop after any generation.
"""

from __future__ import annotations

from ..analysis.estimates import UNDECIDED, Estimates, verdict
from ..analysis.names import base_model
from ..analysis.questions import questions
from ..results.folder import Results
from ..results.rows import RoundsRow, SampleRow
from ..results.turns import separate_nodes, turns_of
from ..subjects.models import MODELS

NARROW = 0.01  # half-width of an interval that is not measured further


def undecided(results: Results) -> set[str] | None:
    """Return the ids of the configurations to measure again, or None where there is no question at all.

    Those of the questions that are undecided or whose interval is wider than `NARROW`, the serial ones among them: a
    decision alone may rest on the six generations that an interval needs at least, the widest there is.
    """
    rows = separate_nodes(results.rows)
    samples = [row for row in rows if isinstance(row, SampleRow)]
    ids = {(row.plan_id, row.interference, row.model, row.threads): row.config_id for row in samples}
    times = Estimates(*turns_of(samples, (row for row in rows if isinstance(row, RoundsRow))))
    open_ones: set[str] = set()
    asked = False
    for plan in dict.fromkeys(point[:2] for point in times.points):
        here = [point[2:] for point in times.points if point[:2] == plan]
        serial = [each for each in here if each[0] == "serial"]

        def fastest(contestants, plan=plan):
            return times.fastest([(*plan, *each) for each in contestants])[2:]

        for question in questions(here, fastest):
            if MODELS[base_model(question.contestant[0])].far_behind:
                continue
            asked = True
            candidate, *others = ((*plan, *each) for each in (question.contestant, *question.references))
            ratio = times.ratio_to_fastest(candidate, others)
            if verdict(ratio) == UNDECIDED or ratio.half_width > NARROW:
                open_ones |= {ids[*plan, *each] for each in (question.contestant, *question.references, *serial)}
    return open_ones if asked else None
