"""The text that `forktask diagnose` prints."""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...cython_src.errors import UsageError
from ..analysis.load import load
from ..diagnosis.case import Case, case_of_logs, case_of_study, log_of_durations
from ..diagnosis.diagnose import Finding, diagnose
from ..diagnosis.event_logs import diagnose_log
from ..sampling.events import EVENTS_FOLDER, EventLog, events_files, read_events
from ..sampling.results import SAMPLES
from ..simulate.machine_model import MachineModel, machine_of
from ..simulate.predict import keep_machine, measure_for, missing
from ..traces.collect import MACHINE, read_machine, write_machine
from .sweep_traces import TRACE_FOLDER
from .words import plan_title


def diagnose_folder(folder: str | os.PathLike) -> dict[str, Any]:
    """Diagnose the plans and the event logs of a folder.

    Returns
    -------
    dict
        "cases": a list of {"title", "findings", "skipped"}, one for each plan and one for each event log.

    Raises
    ------
    UsageError
        Neither results nor event logs there.
    """
    cases: list[dict[str, Any]] = []
    swept: dict[str, Case] = {}
    below = Path(folder, TRACE_FOLDER)
    places = [Path(folder), *sorted(path.parent for path in below.glob(f"**/{EVENTS_FOLDER}"))]
    traced = {place: logs for place in places if (logs := events_files(place))}
    if (Path(folder) / SAMPLES).exists() or not traced:
        study = load(folder)
        skipped = {plan_id: missing(study, plan_id) for plan_id in study.plan_ids()}
        if not study.machine_model and not all(skipped.values()):
            keep_machine(folder)
            study = load(folder)
        for plan_id, reason in skipped.items():
            if not reason:
                swept[plan_id] = case_of_study(study, plan_id)
            cases.append(_row(plan_title(study, plan_id), diagnose(swept[plan_id]) if not reason else [], reason))
    for place, paths in traced.items():
        plan_id = place.relative_to(below).parts[0] if place.is_relative_to(below) else None
        by_plan: dict[str, list[EventLog]] = {}
        for log in map(read_events, paths):
            by_plan.setdefault(json.dumps(log.about["plan"], sort_keys=True), []).append(log)
        for logs in by_plan.values():
            case = swept.get(plan_id)
            if case is None and not all(log.of_gpu for log in logs):
                durations = log_of_durations(logs)
                title = f"{durations.about['plan_name']}, blocks as long as in the event log of {durations.title}"
                try:
                    case = case_of_logs(logs, machine_of_traces(place))
                    cases.append(_row(title, diagnose(case)))
                except UsageError as error:
                    cases.append(_row(title, skipped=str(error)))
            where = f" in {place}" * (len(traced) > 1)
            cases += [_row(f"event log of {log.title}{where}", diagnose_log(log, case, logs)) for log in logs]
    if not cases:
        raise UsageError(f"a diagnosis needs samples or event logs, got none in {str(folder)!r}; measure first")
    return {"cases": cases}


def _row(title: str, findings: Sequence[Finding] = (), skipped: str = "") -> dict[str, Any]:
    return {"title": title, "findings": [finding.as_row() for finding in findings], "skipped": skipped}


def machine_of_traces(folder: Path) -> MachineModel:
    """Return the machine that made the traces of a folder; it is measured where that was not done, and kept there.

    Raises
    ------
    UsageError
        Another machine made them, or it is not known.
    """
    environment, limits, model = read_machine(folder)
    if not environment:
        raise UsageError("a simulation needs to know the machine, but machine.json is not there; trace again")
    if model:
        return machine_of(model, str(folder / MACHINE))
    measured = measure_for(folder, environment, limits or None)
    write_machine(folder, environment, limits, measured.as_row())
    return measured


def format_findings(found: Mapping[str, Any]) -> str:
    """Return the findings as text, numbered within each case."""
    lines: list[str] = []
    for case in found["cases"]:
        lines += [*([""] if lines else []), case["title"], ""]
        if case["skipped"]:
            lines.append(f"  not diagnosed: {case['skipped']}")
        elif not case["findings"]:
            lines.append("  nothing that costs 1% of a step")
        for number, finding in enumerate(case["findings"], 1):
            lines += _paragraph(f"{number}. ", finding["text"])
            if finding["try"]:
                lines += _paragraph(
                    "   Try: ", finding["try"] + (f" ({finding['brings']})" * bool(finding["brings"])) + "."
                )
    return "\n".join(lines)


def _paragraph(head: str, text: str) -> list[str]:
    return textwrap.wrap(head + text, width=110, initial_indent="  ", subsequent_indent="     ")
