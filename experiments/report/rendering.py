"""The report as text for a terminal; as data that JSON can hold, the rows of every table with raw numbers (seconds,
ratios); and as one self-contained page: style, figures and tables in one file, nothing loaded from elsewhere."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup, escape

from ...cython_src.reading import decoding, read_regular
from ..subjects.calls import label
from ..subjects.models import ModelSpec
from ..tables import text_table
from ..tables.numbers import plural
from .sections import Report, Section

WIDTH = 120  # of sentences before the table
MOST_ANSWERS, MOST_WARNINGS = 22, 4  # with these the text has at most 40 lines


def _opening(report: Report) -> list[str]:
    return [*(line for text in report.opening for line in textwrap.wrap(text, WIDTH)), ""] if report.opening else []


def render_answers(report: Report) -> str:
    """Return what `compare` prints: the table of answers, what was disturbed, and where the rest is."""
    rows = report.answers.rows
    lines = [report.title, "", *_opening(report)]
    if rows:
        lines += text_table(report.answers.columns, rows[:MOST_ANSWERS])
    if len(rows) > MOST_ANSWERS:
        lines.append(f"({len(rows) - MOST_ANSWERS} more on the page)")
    tables = [table for section in report.sections for table in section.tables if table.name == "failures"]
    failed = [row for table in tables for row in table.rows]
    failures = [
        f"Not measured: {label(row['model'])} on {plural(row['threads'], 'thread')}: {row['message']}" for row in failed
    ]
    lines += ["", *failures[:MOST_WARNINGS], *report.notes, *report.warnings[:MOST_WARNINGS]]
    if (more := sum(max(0, len(text) - MOST_WARNINGS) for text in (failures, report.warnings))) > 0:
        lines.append(f"({more} more on the page)")
    rest = "Times, efficiencies and all else: `forktask report DIR --all`, or the page."
    return "\n".join(lines).rstrip() + f"\n\n{rest}\n"


def render_figure(report: Report, figure: str, plan_id: str) -> str:
    """Return the tables beside which the page shows a figure of a plan, or the answers."""
    if figure == report.first:
        return render_answers(report)
    own = [section for section in report.sections if section.plan_id == plan_id]
    shown = [section for section in own if figure in section.figures and any(t.columns for t in section.tables)]
    shown = shown or [section for section in own if any(table.name == "speed" for table in section.tables)]
    return "\n".join(line for section in shown for line in _section(section))


def render_text(report: Report, whole: bool = False) -> str:
    """Return tables and sentences; `whole`: those too that a terminal does not show otherwise."""
    lines = [*report.notes, ""] if report.notes else []
    if report.answers.rows:
        table = text_table(report.answers.columns, report.answers.rows)
        lines += [*_opening(report), f"{report.title}:", "", *table, ""]
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
    result: dict[str, Any] = {**report.facts, "warnings": list(report.warnings), "answers": []}
    if report.answers.columns:
        result["in_short"] = [plain_row(row) for row in report.answers.rows]
    for section in report.sections:
        result["answers"] += section.answers
        for table in section.tables:
            if table.name != "environment":
                result.setdefault(table.name, []).extend(map(plain_row, table.rows))
    return result


class DrawnFigure(NamedTuple):
    """A figure of a plan: the text of its SVG file and its caption."""

    plan_id: str
    name: str
    svg: str
    caption: str

    @classmethod
    def read(cls, plan_id: str, picture: Path) -> DrawnFigure | None:
        """Return the figure of an SVG file and the caption beside it; None where one is missing."""
        caption = picture.with_suffix(".txt")
        if not (picture.exists() and caption.exists()):
            return None
        title = "picture with its caption"
        with decoding(picture, title, "delete it to report without"):
            texts = [read_regular(path, title).decode() for path in (picture, caption)]
            texts[0].index("<svg")  # raises
        return cls(plan_id, picture.stem, texts[0], texts[1].partition("\n\n")[0].rstrip("\n"))

    @property
    def title(self) -> str:
        """Description of the figure for readers who cannot see it."""
        return f"{self.name.replace('_', ' ')}: {self.caption.partition('. ')[0].removesuffix('.')}"

    @property
    def inline_svg(self) -> Markup:
        """The SVG for use inside a page: no prolog, no metadata, ids of its own."""
        prefix = f"{self.plan_id}-{self.name}"
        svg = self.svg[self.svg.index("<svg") :]
        svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
        svg = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', svg)
        svg = re.sub(r'href="#([^"]+)"', rf'href="#{prefix}-\1"', svg)
        svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", svg)
        return Markup(svg.replace("<svg ", f'<svg role="img" aria-label="{escape(self.title)}" ', 1))


def render_html(report: Report, figures: Sequence[DrawnFigure]) -> str:
    """Return the page."""
    parts = []
    first = [figure for figure in figures if figure.name == report.first]
    for section in report.sections:
        shown = [f for name in section.figures for f in figures if (f.plan_id, f.name) == (section.plan_id, name)]
        if shown or not section.empty:
            parts.append((section, shown))
    links = [(number, section.title) for number, (section, _) in enumerate(parts) if section.level == 2]
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"prose": prose, "unwrapped": unwrapped}
    return environment.get_template("page.html").render(report=report, first=first, parts=parts, links=links)


def prose(text: str) -> Markup:
    """Return a sentence as HTML; what stands in backticks is code, a file of a trace or another page there a link."""
    linked = re.sub(r"`(traces/[^`]+|\w+/report\.html)`", r'<a href="\1">\1</a>', str(escape(text)))
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", linked))


def unwrapped(text: str) -> str:
    """Return a text without the ends of lines inside its paragraphs; indented lines, such as lists, keep theirs, and
    what stands in two columns there is joined by a colon."""
    return re.sub(r"(?m)^ +(\S.*?) {2,}(?=\S)", r"• \1: ", re.sub(r"(?m)^(\S.*)\n(?=\S)", r"\1 ", text))
