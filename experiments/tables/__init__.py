"""Tables of whatever is printed or drawn: columns, rows, and their text for a terminal and in Markdown.

The heading of a column of the common kinds is the value's name unless one is given."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...cython_src.typed_text import format_bytes
from .numbers import JUDGED_AT, count, digits_of, interval, number, percent, time


class Column(NamedTuple):
    """A column of a table: heading, how a row's value is written, and whether it is a number."""

    heading: str
    text: Callable[[Mapping[str, Any]], str]
    number: bool = False


@dataclass(frozen=True)
class Table:
    """Rows of one kind."""

    name: str  # key of the rows in JSON; tables of one name are joined there
    columns: Sequence[Column]  # how the rows are written; empty: in JSON only
    rows: list[dict[str, Any]]

    def cells(self) -> tuple[list[Column], list[list[str]]]:
        """Return columns and texts, without columns that are empty in every row."""
        texts = [[column.text(row) for column in self.columns] for row in self.rows]
        used = [i for i in range(len(self.columns)) if any(line[i] for line in texts)]
        return [self.columns[i] for i in used], [[line[i] for i in used] for line in texts]


def text_table(columns: Sequence[Column], rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the lines of a table for a terminal, without columns that are empty in every row."""
    shown, lines = Table("", columns, [*rows]).cells()
    widths = [max(len(column.heading), *(len(line[i]) for line in lines)) for i, column in enumerate(shown)]

    def write(line: Sequence[str]) -> str:
        cells = [t.rjust(w) if c.number else t.ljust(w) for t, w, c in zip(line, widths, shown, strict=True)]
        return "  ".join(cells).rstrip()

    return [write([c.heading for c in shown]), "  ".join("-" * w for w in widths), *map(write, lines)]


def markdown_table(columns: Sequence[Column], rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the lines of a table in Markdown."""
    lines = [[column.heading for column in columns], ["--:" if column.number else "---" for column in columns]]
    lines += [[markdown_cell(column.text(row)) for column in columns] for row in rows]
    return [f"| {' | '.join(line)} |" for line in lines]


def between_marks(text: str, mark: str, content: str) -> str:
    """Return a page in Markdown with new content between the marks of a name. Raises `ValueError`: the marks are not
    there once."""
    begin, end = f"<!-- {mark} -->\n", f"<!-- end of {mark} -->"
    text, num_marks = re.subn(f"{begin}.*{end}", lambda _: f"{begin}{content}{end}", text, flags=re.S)
    if num_marks != 1:
        raise ValueError(f"a page must have the marks of {mark!r} once, has them {num_marks} times")
    return text


def markdown_cell(text: str) -> str:
    """Return a text in one line, in which bars part no cells."""
    return text.replace("|", "\\|").replace("\n", " ")


USABLE = Column("usable", lambda r: "" if r["usable"] else "no")


def text_column(name: str, heading: str | None = None) -> Column:
    """Return a column of texts."""
    return Column(_heading(name, heading), lambda r: str(r[name]))


def count_column(name: str, heading: str | None = None) -> Column:
    """Return a column of whole numbers."""
    return Column(_heading(name, heading), lambda r: count(r[name]), True)


def number_column(name: str, heading: str | None = None, digits: int = 2) -> Column:
    """Return a column of numbers with `digits` decimals."""
    return Column(_heading(name, heading), lambda r: number(r[name], digits), True)


def time_column(name: str, heading: str | None = None) -> Column:
    """Return a column of times, seconds in the rows; `_s` at the end of the name is not in the heading."""
    return Column(_heading(name.removesuffix("_s"), heading), lambda r: time(r[name]), True)


def percent_column(name: str, heading: str | None = None, digits: int = 0) -> Column:
    """Return a column of shares, as percentages."""
    return Column(_heading(name, heading), lambda r: percent(r[name], digits), True)


def size_column(name: str, heading: str | None = None) -> Column:
    """Return a column of bytes; empty where there are none."""
    return Column(_heading(name, heading), lambda r: format_bytes(r[name]) if r.get(name, 0) > 0 else "", True)


def ratio_columns(heading: str, name: str = "ratio", digits: int = 3) -> tuple[Column, Column]:
    """Return the columns of a ratio and of its interval `{name}_low` to `{name}_high`, with two significant digits at
    least."""

    def limits(row: Mapping[str, Any]) -> str:
        return interval(row[f"{name}_low"], row[f"{name}_high"], digits_of(row[name], digits), JUDGED_AT)

    return (
        Column(heading, lambda r: number(r[name], digits_of(r[name], digits)), True),
        Column("95% interval", limits, True),
    )


def _heading(name: str, heading: str | None) -> str:
    return name.replace("_", " ") if heading is None else heading
