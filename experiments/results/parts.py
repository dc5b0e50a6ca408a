"""Bases of the rows of results folders."""

from __future__ import annotations

import msgspec
from msgspec import Meta


def says(text: str) -> Meta:
    """Annotation of a field: its meaning."""
    return Meta(description=text)


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of rows and of their parts."""


class Row(Part, frozen=True, kw_only=True, tag_field="kind"):
    """Base of rows: a JSON object whose `kind` says which."""
