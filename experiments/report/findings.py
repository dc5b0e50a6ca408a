"""The text that `forktask diagnose` prints."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ...cython_src.errors import UsageError
from ..analysis.load import load
from ..analysis.losses import had_cpus
from ..diagnosis.case import Case
from ..diagnosis.diagnose import Finding, diagnose
from ..diagnosis.event_logs import diagnose_log
from ..simulate.predict import OtherMachine, keep_machine, missing
from ..traces.sweep import traced
from .words import order_note, plan_title

DISTURBED = "Other programs took CPUs from this run: the findings are of the disturbance too, not of the model alone."


def diagnose_folder(folder: str | os.PathLike) -> dict[str, Any]:
    """Diagnose the plans and the event logs of a folder.

    Returns
    -------
    dict
        "cases": a list of {"title", "findings", "skipped", "note"}, one for each plan and one for each event log.
        "remark": what must be known before any of them; mostly empty.

    Raises
    ------
    UsageError
        No results there, nothing in them, or nothing that could be diagnosed, with each reason.
    """
    sweep = load(folder)
    skipped = {plan_id: missing(sweep, plan_id) for plan_id in sweep.plan_ids()}
    if not all(skipped.values()):
        try:
            keep_machine(folder)
        except OtherMachine as error:
            skipped = dict.fromkeys(skipped, str(error))
    cases: list[dict[str, Any]] = []
    plans: dict[str, Case] = {}
    had: list[bool] = []
    for plan_id, reason in skipped.items():
        result = []
        try:
            if not reason:
                plans[plan_id] = Case(sweep, plan_id)
                result = diagnose(plans[plan_id])
        except UsageError as error:  # its program is not found here, or makes another plan
            reason = str(error)
        cases.append(_row(plan_title(sweep, plan_id), result, order_note(sweep, plan_id), reason))
    for plan_id, place, logs in traced(folder, sweep.plans.values()):
        named = f"{plan_title(sweep, plan_id)}: " if plan_id else ""
        for log in logs:
            had.append(had_cpus(log))
            title, note = f"{named}event log of {log.title} in {place}", "" if had[-1] else DISTURBED
            cases.append(_row(title, diagnose_log(log, plans.get(plan_id), logs), note))
    if not cases:
        raise UsageError(f"a diagnosis needs samples or event logs, got none in {str(folder)!r}; measure first")
    if all(case["skipped"] for case in cases):
        raise UsageError("not diagnosed: " + "; ".join(dict.fromkeys(case["skipped"] for case in cases)))
    remark = f"All event logs ({len(had)}) were disturbed. {DISTURBED}" if had and not any(had) else ""
    return {"cases": cases, "remark": remark}


def _row(title: str, findings: Sequence[Finding], note: str, skipped: str = "") -> dict[str, Any]:
    return {"title": title, "findings": [*map(asdict, findings)], "skipped": skipped, "note": note}


def format_findings(result: Mapping[str, Any]) -> str:
    """Return the findings as text, numbered within each case."""
    lines = [result["remark"]] if result.get("remark") else []  # of cases alone there is none
    for case in result["cases"]:
        lines += [*([""] if lines else []), case["title"], ""]
        if case["note"]:
            lines += _paragraph("", case["note"])
        if case["skipped"]:
            lines.append(f"  not diagnosed: {case['skipped']}")
        elif not case["findings"]:
            lines.append("  nothing that costs 1% of a step")
        for number, finding in enumerate(case["findings"], 1):
            lines += _paragraph(f"{number}. ", finding["text"])
            if finding["attempt"]:
                brings = f" ({finding['brings']})" if finding["brings"] else ""
                lines += _paragraph("   Try: ", f"{finding['attempt']}{brings}.")
    return "\n".join(lines)


def _paragraph(head: str, text: str) -> list[str]:
    return textwrap.wrap(head + text, width=110, initial_indent="  ", subsequent_indent="     ")
