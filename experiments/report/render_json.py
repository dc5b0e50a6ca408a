"""The report as data that JSON can hold: the rows of every table with raw numbers (seconds, ratios)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..subjects.models import ModelSpec
from .sections import Report


def plain_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row that JSON can hold: NaN becomes null, a model its text."""
    return {key: _plain(value) for key, value in row.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, ModelSpec):
        return str(value)
    return value.item() if hasattr(value, "item") else value


def render_json(report: Report) -> dict[str, Any]:
    """Return facts, warnings, findings, and the rows of all tables by the tables' names."""
    answer: dict[str, Any] = {**report.facts, "warnings": list(report.warnings), "answers": []}
    if report.answers.columns:
        answer["in_short"] = [plain_row(row) for row in report.answers.rows]
    for section in report.sections:
        answer["answers"] += section.answers
        for table in section.tables:
            if table.name != "environment":
                answer.setdefault(table.name, []).extend(map(plain_row, table.rows))
    return answer
