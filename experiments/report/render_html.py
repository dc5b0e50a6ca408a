"""The report as one self-contained page: style, figures and tables in one file, nothing loaded from elsewhere."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from typing import NamedTuple

from .sections import Report, Section, Table

STYLE = """
:root { --ink: #1a1a1a; --soft: #5f6368; --line: #dadce0; --blue: #0173b2; --red: #b34700; }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2.5rem 1.5rem 4rem; max-width: 78rem; color: var(--ink); background: #fff;
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", "Helvetica Neue", Arial, sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0 0 .3rem; }
h2 { font-size: 1.15rem; margin: 2.4rem 0 .6rem; padding-top: .9rem; border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.5rem 0 .4rem; }
p { margin: .4rem 0; } .soft, figcaption { color: var(--soft); } code { font-size: .92em; overflow-wrap: anywhere; }
.banner { margin: 1rem 0; padding: .55rem .8rem; border-left: 4px solid var(--red); background: #fdf3ec; }
iframe.page { width: 100%; height: 44rem; border: 1px solid var(--line); }
figure { margin: 1rem 0 1.8rem; } figure svg { display: block; width: 100%; height: auto; max-width: 60rem; }
figcaption { font-size: .84rem; line-height: 1.45; margin-top: .4rem; max-width: 60rem; }
.note { margin: 1rem 0; padding: .55rem .8rem; border-left: 4px solid var(--line); background: #f6f7f8; }
.wide { overflow-x: auto; } td:not(:last-child) { white-space: nowrap; }
table { border-collapse: collapse; font-size: .86rem; margin: .3rem 0 .8rem; }
th { text-align: left; font-weight: 600; vertical-align: bottom; border-bottom: 1.5px solid var(--ink); }
th, td { padding: .22rem .75rem .22rem 0; } td { border-bottom: 1px solid #eceff1; vertical-align: top; }
th.n, td.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.verdict { white-space: nowrap; font-weight: 600; } .faster { color: var(--blue); } .slower { color: var(--red); }
.same, .not { color: var(--soft); font-weight: 400; }
ul { margin: .4rem 0; padding-left: 1.2rem; } li { margin: .15rem 0; } details { margin: .4rem 0; }
summary { cursor: pointer; } dl { margin: .3rem 0; } dt { font-weight: 600; margin-top: .4rem; } dd { margin: 0; }
@media print { body { padding: 0; } h2 { break-after: avoid; } figure, tr { break-inside: avoid; } }
"""


class DrawnFigure(NamedTuple):
    """A figure of a plan: the text of its SVG file and its caption."""

    plan_id: str
    name: str
    svg: str
    caption: str
    page: str = ""  # a page of its own, shown in a frame in place of the SVG


def render_html(report: Report, figures: Sequence[DrawnFigure]) -> str:
    """Return the page."""
    escape = html.escape
    out = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>forktask: {escape(report.title)}</title>",
        f"<style>{STYLE}</style></head><body>",
        f"<h1>{escape(report.facts['title'] or 'Fork-join against tasks')}</h1>",
        f"<p>{escape(report.title)}</p>",
        f'<p class="soft">{escape(str(report.facts["created"]))} · <code>{escape(report.facts["command"])}</code></p>',
    ]
    loud = report.facts["data"] != "synthetic"
    out += [f'<p class="{"banner" if loud else "note"}">{escape(text)}</p>' for text in report.notes]
    out += [f'<p class="banner">{escape(text)}</p>' for text in report.warnings]
    for section in report.sections:
        shown = [f for name in section.figures for f in figures if (f.plan_id, f.name) == (section.plan_id, name)]
        if shown or not section.empty:
            out += _section(section, shown, report.facts["environment_id"])
    out.append("</body></html>")
    return "\n".join(out) + "\n"


def _section(section: Section, figures: Sequence[DrawnFigure], environment_id: str) -> list[str]:
    out = [f"<h{section.level}>{html.escape(section.title)}</h{section.level}>"]
    out += [f"<p>{html.escape(text)}</p>" for text in section.sentences]
    if section.answers:
        out.append("<ul>" + "".join(f"<li>{html.escape(text)}</li>" for text in section.answers) + "</ul>")
    out += [_figure(figure) for figure in figures]
    tables = [table for table in section.tables if table.rows and table.columns]
    if section.folded:
        for table in tables:
            out.append(
                f"<details><summary>All {len(table.rows)} entries (environment <code>"
                f"{html.escape(str(environment_id))}</code>)</summary>{html_table(table)}</details>"
            )
    else:
        out += map(html_table, tables)
    if section.definitions:
        out.append("<dl>")
        out += [f"<dt>{html.escape(word)}</dt><dd>{html.escape(text)}</dd>" for word, text in section.definitions]
        out.append("</dl>")
    return out


def html_table(table: Table) -> str:
    """Return a table as markup."""
    columns, rows = table.cells()
    head = "".join(f"<th{' class=n' if c.number else ''}>{html.escape(c.heading)}</th>" for c in columns)
    lines = []
    for row in rows:
        cells = []
        for column, text in zip(columns, row, strict=True):
            kind = "n" if column.number else ""
            if column.heading == "verdict" and text:
                kind = f"verdict {text.split(' ')[0]}"
            cells.append(f"<td{f' class={chr(34)}{kind}{chr(34)}' if kind else ''}>{html.escape(text)}</td>")
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return (
        f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>\n{chr(10).join(lines)}\n</tbody></table></div>'
    )


def _figure(figure: DrawnFigure) -> str:
    if figure.page:
        page = html.escape(figure.page)
        return f'<iframe title="{html.escape(figure.name)}" class="page" loading="lazy" srcdoc="{page}"></iframe>'
    svg = inline_svg(figure.svg, f"{figure.plan_id}-{figure.name}", figure.name)
    return f"<figure>{svg}<figcaption>{html.escape(figure.caption)}</figcaption></figure>"


def inline_svg(svg: str, prefix: str, title: str) -> str:
    """Return an SVG file's text for use inside a page: no prolog, no metadata, ids of its own."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', svg)
    svg = re.sub(r'href="#([^"]+)"', rf'href="#{prefix}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", svg)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{html.escape(title)}" ', 1)
