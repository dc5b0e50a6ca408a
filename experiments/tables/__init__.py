"""Tables of whatever is printed or drawn: columns, rows, and their text for a terminal and in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


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


def markdown_cell(text: str) -> str:
    """Return a text in one line, in which bars part no cells."""
    return text.replace("|", "\\|").replace("\n", " ")
