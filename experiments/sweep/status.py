"""Status of a results folder: its content, what is missing of its configuration, standing failures, open questions.

Questions are those of the report, on the largest number of threads, for each plan. Intervals are valid at every look,
so that measuring may stop after any generation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...cython_src.lowering.options import describe, plan_options
from ..analysis.estimates import MIN_GENERATIONS, UNDECIDED, Estimates, verdict
from ..analysis.questions import questions
from ..results.folder import LASTING_FAILURES, Results
from ..results.rows import FailureRow, OfShard, RoundsRow, RunRow, SampleRow
from ..results.turns import groups_of, quiet_times, separate_sessions
from ..subjects.calls import calls_text, label
from ..subjects.models import read_model
from ..tables import Column, count_column, text_table
from ..tables.numbers import plural
from .configuration import from_dict

NARROW = 0.01  # half-width of an interval that is not measured further
MANY_FORMS = 5  # of fork-join: nobody asked for each of these by itself


def failure_report(results: Results) -> tuple[list[str], bool]:
    """Return a line for each standing failure, and whether figures can still be trusted.

    Running out of time or memory is a result; a crash is a fault; wrong weights make every figure worthless.
    """
    standing = standing_failures(results)
    lines = [
        f"{label(row.model)} on {plural(row.threads, 'thread')}: {row.reason}: {(row.message.splitlines() or [''])[0]}"
        for row in standing
    ]
    wrong = (row.reason == "mismatch" or (row.reason == "answer" and row.model.model.is_call) for row in standing)
    return lines, not any(wrong)


def standing_failures(results: Results) -> list[FailureRow]:
    """Return the failures that no later attempt has mended."""
    finished = {config_id for kind, config_id, _ in results.finished() if kind == "sample"}
    return [row for row in results.of(FailureRow) if row.reason in LASTING_FAILURES or row.config_id not in finished]


def describe_status(results: Results) -> dict[str, Any]:
    """Return the content of a folder and the number of missing samples. Raises `UsageError`: the folder holds another
    kind of results."""
    configuration = from_dict(results.run.config)
    finished, settled, measure = results.finished(), results.settled(), configuration.measure
    whole = results.ends_whole
    first = [0, 0, *results.session_ends][-2 if whole else -1]
    configurations, profiles_missing = [], 0

    def counted(kind: str, config_id: str, wanted: int) -> tuple[int, int]:
        """Return how many of those wanted are done and missing; a budget asks for no number."""
        done = sum((kind, config_id, first + repetition) in finished for repetition in range(wanted))
        return done, 0 if whole or config_id in settled or (done and measure.budget_s) else wanted - done

    for point in configuration.points():
        samples, missing = counted("sample", point.config_id, measure.repeats)
        profiles, more = counted("profile", point.config_id, measure.profiles)
        profiles_missing += more
        configurations.append(
            {**point.identity, "plan": point.plan, "samples": samples, "missing": missing, "profiles": profiles}
        )
    missing = sum(c["missing"] for c in configurations)
    ended = whole or not (measure.budget_s and results.of(SampleRow))  # else nobody knows how many the budget holds
    lines, trusted = failure_report(results)
    return {
        "title": configuration.title,
        "started": results.of(RunRow)[0].created,
        "environment_id": results.run.environment_id,
        "sessions": len(results.session_ends),
        "repeats": measure.repeats,
        "configurations": configurations,
        "samples": len(results.of(SampleRow)),
        "samples_missing": missing,
        "profiles_missing": profiles_missing,
        "failures": lines,
        "weights_agree": trusted,
        "half_written_line": bool(results.partial),
        "resume": results.run.command if missing or profiles_missing or not ended else None,
    }


def _columns(status: Mapping[str, Any]) -> tuple[Column, ...]:
    return (
        Column("model", lambda c: label(c["model"])),
        count_column("threads"),
        Column("competing processes", lambda c: str(c["interference"] or "")),
        Column("network", lambda c: calls_text(c["plan"]["network"])),
        Column("batch", lambda c: str(c["plan"]["batch"]), True),
        Column("options", lambda c: describe(plan_options(c["plan"]), leave_out=("batch",))),
        Column("samples", lambda c: f"{c['samples']} of {status['repeats']}", True),
        count_column("profiles"),
    )


def status_text(status: dict[str, Any]) -> str:
    """Format the result of `describe_status` for a terminal."""
    whole = f", {plural(status['sessions'], 'whole session')}" if status["sessions"] else ""
    lines = [f"{status['title']}, begun {status['started']}, environment {status['environment_id']}{whole}"]
    lines += text_table(_columns(status), status["configurations"])
    lines += [f"  failed: {line}" for line in status["failures"]]
    if not status["weights_agree"]:
        lines.append("the models did not compute the same weights: no figure of this folder can be trusted")
    if status["half_written_line"]:
        lines.append("the last line is half-written; it is moved aside when the run continues")
    if status["resume"]:
        missing = f"{status['samples_missing']} samples and {status['profiles_missing']} profiles are missing"
        budget = "the session was interrupted before its budget was spent"
        is_known = status["samples_missing"] or status["profiles_missing"]
        lines.append(f"{missing if is_known else budget}. To continue: {status['resume']}")
    else:
        lines.append("complete")
    return "\n".join(lines)


def undecided(results: Results) -> set[str] | None:
    """Return the ids of the configurations to measure again in this session, or None where there is no question at
    all.

    Those of the questions that are undecided or whose interval is wider than `NARROW`, the serial ones among them: a
    decision alone may rest on the six generations that an interval needs at least, the widest there is. Those on fewer
    threads until they have an interval, since curves show them. And those of which all generations are left out.
    """
    first = results.first_generation
    rows = [row for row in results.rows if not isinstance(row, OfShard) or row.repetition >= first]
    rows, session_of = separate_sessions(rows)
    samples = [row for row in rows if isinstance(row, SampleRow)]
    ids = {(row.plan_id, row.interference, row.model, row.threads): row.config_id for row in samples}
    quiet = quiet_times(groups_of(samples, (row for row in rows if isinstance(row, RoundsRow))))
    times = Estimates(quiet.times, quiet.loud, session_of)
    first_model = next(map(read_model, results.run.config["models"]))
    reference = first_model if first_model.model.is_call else None
    open_ones: set[str] = set()
    requested = False
    for plan in dict.fromkeys(point[:2] for point in times.points):
        here = [point[2:] for point in times.points if point[:2] == plan]
        serial = [each for each in here if each[0].is_serial]
        widest = max(threads for _, threads in here)

        def fastest(contestants, plan=plan):
            return times.fastest([(*plan, *each) for each in contestants])[2:]

        for question in questions(here, fastest, reference):
            if question.contestant[0].model.far_behind:
                continue
            requested = True
            candidate, *others = ((*plan, *each) for each in (question.contestant, *question.references))
            is_form = len(others) >= MANY_FORMS and question.contestant[0].name == others[0][2].name
            if is_form and times.is_far_behind(candidate, times.fastest(others)):
                continue
            ratio = times.ratio_to_fastest(candidate, others)
            if verdict(ratio) == UNDECIDED or ratio.half_width > NARROW:
                near = times.contenders(others)
                open_ones |= {ids[each] for each in (candidate, *near, *((*plan, *each) for each in serial))}
        of_curves = ((*plan, *each) for each in here if each[1] < widest and not each[0].model.far_behind)
        open_ones |= {ids[each] for each in of_curves if times.generations(each) < MIN_GENERATIONS}
    open_ones |= {ids[point] for point in ids if point not in times.points}  # of generations that are left out alone
    return open_ones if requested else None
