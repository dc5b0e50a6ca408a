"""The report as one self-contained page: style, figures and tables in one file, nothing loaded from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup, escape

from .sections import Report


class DrawnFigure(NamedTuple):
    """A figure of a plan: the text of its SVG file and its caption."""

    plan_id: str
    name: str
    svg: str
    caption: str

    @property
    def title(self) -> str:
        """What a reader who does not see the figure is told."""
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
