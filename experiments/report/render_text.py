"""The report as text for a terminal."""

from __future__ import annotations

from ..tables import text_table
from .sections import Report, Section


def render_text(report: Report) -> str:
    """Return the tables and sentences that `compare` and `report` print."""
    lines = [*report.notes, ""] if report.notes else []
    for section in report.sections:
        if section.in_terminal and not section.empty:
            lines += _section(section)
    lines += report.warnings
    return "\n".join(lines).rstrip() + "\n"


def _section(section: Section) -> list[str]:
    lines = [section.title + ("" if section.level == 2 and section.plan_id else ":")]
    lines += [*section.sentences, ""]
    for table in section.tables:
        if table.rows and table.columns:
            lines += [*text_table(table.columns, table.rows), ""]
    if section.answers:
        lines += [*section.answers, ""]
    return lines
