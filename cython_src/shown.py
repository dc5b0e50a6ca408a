"""Representations of objects in notebooks: a short text, and a table of the parts."""

from __future__ import annotations

import html
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any


def as_html(title: str, rows: Iterable[Mapping[str, Any]], notes: Iterable[str] = ()) -> str:
    """Return a line, a table and a list of sentences as HTML. Rows map names of columns, the same in all, to values;
    None and NaN are left empty."""
    rows = list(rows)
    lines = [list(rows[0]) if rows else [], *(map(_cell, row.values()) for row in rows)]
    table = "".join(
        f"<tr>{''.join(f'<{tag}>{html.escape(text)}</{tag}>' for text in line)}</tr>"
        for tag, line in zip(["th", *["td"] * len(rows)], lines, strict=True)
    )
    listed = "".join(f"<li>{html.escape(note)}</li>" for note in notes)
    return f"<p>{html.escape(title)}</p><table>{table}</table>{f'<ul>{listed}</ul>' if listed else ''}"


def _cell(value: Any) -> str:
    if value is None or value != value:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


class Shown:
    """Base of objects that notebooks show as `repr` and the table of `_rows`."""

    @abstractmethod
    def _rows(self) -> list[dict[str, Any]]:
        """Return the rows of the table: name of a column -> value."""

    def _repr_html_(self) -> str:
        return as_html(repr(self), self._rows())
