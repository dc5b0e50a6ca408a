"""The report as text for a terminal."""

from __future__ import annotations

from .sections import Report, Section, Table


def text_table(table: Table) -> list[str]:
    """Return the lines of a table."""
    columns, rows = table.cells()
    widths = [max(len(column.heading), *(len(row[i]) for row in rows)) for i, column in enumerate(columns)]

    def write(line: list[str]) -> str:
        cells = [t.rjust(w) if c.number else t.ljust(w) for t, w, c in zip(line, widths, columns, strict=True)]
        return "  ".join(cells).rstrip()

    return [write([c.heading for c in columns]), "  ".join("-" * w for w in widths), *map(write, rows)]


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
            lines += [*text_table(table), ""]
    if section.answers:
        lines += [*section.answers, ""]
    return lines
