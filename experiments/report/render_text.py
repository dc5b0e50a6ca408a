"""The report as text for a terminal."""

from __future__ import annotations

from ..tables import text_table
from .sections import Report, Section

MOST_ANSWERS, MOST_WARNINGS = 22, 4  # with these the text has at most 40 lines


def _opening(report: Report) -> list[str]:
    return [*report.opening, ""] if report.opening else []


def render_answers(report: Report) -> str:
    """Return what `compare` prints: the table of answers, what was disturbed, and where the rest is."""
    rows = report.answers.rows
    lines = [report.title, "", *_opening(report)]
    if rows:
        lines += text_table(report.answers.columns, rows[:MOST_ANSWERS])
    if len(rows) > MOST_ANSWERS:
        lines.append(f"({len(rows) - MOST_ANSWERS} more on the page)")
    tables = [table for section in report.sections for table in section.tables if table.name == "failures"]
    failures = [f"Not measured: {row['model']} on {row['threads']}: {row['message']}" for t in tables for row in t.rows]
    lines += ["", *failures[:MOST_WARNINGS], *report.notes, *report.warnings[:MOST_WARNINGS]]
    if (more := sum(max(0, len(text) - MOST_WARNINGS) for text in (failures, report.warnings))) > 0:
        lines.append(f"({more} more on the page)")
    return (
        "\n".join(lines).rstrip()
        + "\n\nTimes, efficiencies, losses, bounds: `forktask report DIR --all`, or the page.\n"
    )


def render_figure(report: Report, figure: str, plan_id: str) -> str:
    """Return the tables beside which the page shows a figure of a plan, or the answers."""
    if figure == report.first:
        return render_answers(report)
    shown = [s for s in report.sections if figure in s.figures and s.plan_id == plan_id and not s.empty]
    return "\n".join(line for section in shown for line in _section(section))


def render_text(report: Report, whole: bool = False) -> str:
    """Return tables and sentences; `whole`: those too that a terminal does not show otherwise."""
    lines = [*report.notes, ""] if report.notes else []
    if report.answers.rows:
        lines += [
            *_opening(report),
            report.title + ":",
            "",
            *text_table(report.answers.columns, report.answers.rows),
            "",
        ]
    for section in report.sections:
        if (section.in_terminal or whole) and not section.empty:
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
