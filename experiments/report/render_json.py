"""The report as data that JSON can hold: the rows of every table with raw numbers (seconds, ratios)."""

from __future__ import annotations

import math
from typing import Any

from .sections import Report


def plain(value: Any) -> Any:
    """Return a value that JSON can hold: NaN becomes null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value.item() if hasattr(value, "item") else value


def render_json(report: Report) -> dict[str, Any]:
    """Return facts, warnings, findings, and the rows of all tables by the tables' names."""
    answer: dict[str, Any] = {**report.facts, "warnings": list(report.warnings), "answers": []}
    if report.answers.columns:
        answer["in_short"] = [{key: plain(value) for key, value in row.items()} for row in report.answers.rows]
    for section in report.sections:
        answer["answers"] += section.answers
        for table in section.tables:
            if table.name != "environment":
                rows = [{key: plain(value) for key, value in row.items()} for row in table.rows]
                answer.setdefault(table.name, []).extend(rows)
    return answer
