"""The report as one self-contained page: style, figures and tables in one file, nothing loaded from elsewhere."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from typing import NamedTuple

from ..tables import Table
from .page_style import SCRIPT, STYLE
from .sections import Report, Section


class DrawnFigure(NamedTuple):
    """A figure of a plan: the text of its SVG file and its caption."""

    plan_id: str
    name: str
    svg: str
    caption: str


def render_html(report: Report, figures: Sequence[DrawnFigure]) -> str:
    """Return the page."""
    escape = html.escape
    out = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>forktask: {escape(report.title)}</title>",
        f"<style>{STYLE}</style></head><body><main>",
        f"<h1>{escape(report.facts['title'] or 'Fork-join against tasks')}</h1>",
        f"<p>{escape(report.title)}</p>",
        f'<p class="soft">{escape(str(report.facts["created"]))} · <code>{escape(report.facts["command"])}</code></p>',
        *(f'<p class="opening">{_prose(text)}</p>' for text in report.opening),
    ]
    loud = report.facts["data"] != "synthetic"
    out += [f'<p class="{"banner" if loud else "note"}">{_prose(text)}</p>' for text in report.notes]
    out += [f'<p class="banner">{_prose(text)}</p>' for text in report.warnings]
    parts = []
    for section in report.sections:
        shown = [f for name in section.figures for f in figures if (f.plan_id, f.name) == (section.plan_id, name)]
        if shown or not section.empty:
            parts.append((section, shown))
    titles = [(f"part-{number}", part.title) for number, (part, _) in enumerate(parts) if part.level == 2]
    if len(titles) > 2:
        links = "".join(f'<li><a href="#{name}">{escape(title)}</a></li>' for name, title in titles)
        out.append(f'<nav aria-label="Sections"><ul>{links}</ul></nav>')
    for number, (section, shown) in enumerate(parts):
        out += _section(section, shown, report.facts["environment_id"], f"part-{number}")
    out.append(f"<script>{SCRIPT}</script></main></body></html>")
    return "\n".join(out) + "\n"


def _section(section: Section, figures: Sequence[DrawnFigure], environment_id: str, name: str) -> list[str]:
    out = [f'<h{section.level} id="{name}">{html.escape(section.title)}</h{section.level}>']
    out += [f'<p class="lines">{_prose(_unwrapped(text))}</p>' for text in section.sentences]
    if section.answers:
        out.append("<ul>" + "".join(f"<li>{_prose(text)}</li>" for text in section.answers) + "</ul>")
    out += [_figure(figure) for figure in figures]
    tables = [table for table in section.tables if table.rows and table.columns]
    if section.folded:
        for table in tables:
            out.append(
                f"<details><summary>All {len(table.rows)} entries (environment <code>"
                f"{html.escape(str(environment_id))}</code>)</summary>{html_table(table, section.title)}</details>"
            )
    else:
        out += [html_table(table, section.title) for table in tables]
    if section.definitions:
        out.append("<dl>")
        out += [f"<dt>{html.escape(word)}</dt><dd>{_prose(text)}</dd>" for word, text in section.definitions]
        out.append("</dl>")
    return out


def _unwrapped(text: str) -> str:
    """Return a text without the ends of lines inside its paragraphs; indented lines, such as lists, keep theirs, and
    what stands in two columns there is joined by a colon."""
    return re.sub(r"(?m)^ +(\S.*?) {2,}(?=\S)", r"• \1: ", re.sub(r"(?m)^(\S.*)\n(?=\S)", r"\1 ", text))


def _prose(text: str) -> str:
    """Return a sentence as HTML; what stands in backticks is code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))


def html_table(table: Table, title: str) -> str:
    """Return a table as markup, in a box in which it scrolls by itself."""
    columns, rows = table.cells()
    head = "".join(
        f'<th scope="col"{" class=n" if c.number else ""}><button type="button">{html.escape(c.heading)}</button></th>'
        for c in columns
    )
    lines = []
    for row in rows:
        cells = []
        for column, text in zip(columns, row, strict=True):
            kind = "n" if column.number else ""
            if column.heading == "verdict" and text:
                kind = f"verdict {text.split(' ')[0]}"
            cells.append(f"<td{f' class={chr(34)}{kind}{chr(34)}' if kind else ''}>{html.escape(text)}</td>")
        lines.append(f"<tr>{''.join(cells)}</tr>")
    body = "\n".join(lines)
    table = f'<table aria-label="{html.escape(title)}"><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>'
    return f"{_wide(title)}{table}</div>"


def _wide(title: str) -> str:
    """Return the beginning of a box that scrolls sideways, also by keys."""
    return f'<div class="wide" tabindex="0" role="region" aria-label="{html.escape(title)}">'


def _figure(figure: DrawnFigure) -> str:
    first, _, rest = figure.caption.partition(". ")
    title = f"{figure.name.replace('_', ' ')}: {first}"
    svg = inline_svg(figure.svg, f"{figure.plan_id}-{figure.name}", title)
    caption = html.escape(first + "." * bool(rest))
    if rest:
        caption += f"<details><summary>What is drawn, and how it was measured</summary>{html.escape(rest)}</details>"
    return f"<figure>{_wide(title)}{svg}</div><figcaption>{caption}</figcaption></figure>"


def inline_svg(svg: str, prefix: str, title: str) -> str:
    """Return an SVG file's text for use inside a page: no prolog, no metadata, ids of its own."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', svg)
    svg = re.sub(r'href="#([^"]+)"', rf'href="#{prefix}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", svg)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{html.escape(title)}" ', 1)
