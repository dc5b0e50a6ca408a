"""Columns of the common kinds; a heading is the value's name unless one is given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...cython_src.typed_text import format_bytes
from . import Column
from .numbers import JUDGED_AT, count, digits_of, interval, number, percent, time

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
