"""What `forktask diagnose` prints."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...cython_src.errors import UsageError
from ..analysis.load import load
from ..diagnosis.diagnose import diagnose, diagnose_log
from ..sampling.events import EVENTS_FOLDER, events_files, read_events
from ..sampling.results import SAMPLES
from ..simulate.predict import keep_machine, missing
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
    below = Path(folder, TRACE_FOLDER).glob(f"**/{EVENTS_FOLDER}")
    logs = [path for place in (Path(folder), *(p.parent for p in sorted(below))) for path in events_files(place)]
    if (Path(folder) / SAMPLES).exists() or not logs:
        study = load(folder)
        skipped = {plan_id: missing(study, plan_id) for plan_id in study.plan_ids()}
        if not study.machine_model and not all(skipped.values()):
            keep_machine(folder)
            study = load(folder)
        for plan_id, reason in skipped.items():
            found = [] if reason else [finding.as_row() for finding in diagnose(study, plan_id)]
            cases.append({"title": plan_title(study, plan_id), "findings": found, "skipped": reason})
    for path in logs:
        log = read_events(path)
        found = [finding.as_row() for finding in diagnose_log(log)]
        cases.append({"title": f"event log of {log.title}", "findings": found, "skipped": ""})
    if not cases:
        raise UsageError(f"a diagnosis needs samples or event logs, got none in {str(folder)!r}; measure first")
    return {"cases": cases}


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
