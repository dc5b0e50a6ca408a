"""Bases of the rows of results folders."""

from __future__ import annotations

from typing import ClassVar

import msgspec
from msgspec import Meta


def says(text: str) -> Meta:
    """Annotation of a field: its meaning."""
    return Meta(description=text)


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of rows and of their parts."""


class Row(Part, frozen=True, kw_only=True, tag_field="kind"):
    """Base of rows: a JSON object whose `kind` says which. Lists named together in `ALIKE` have an item each of the
    same things."""

    ALIKE: ClassVar[tuple[tuple[str, ...], ...]] = ()

    def __post_init__(self) -> None:
        for names in self.ALIKE:
            lengths = {name: len(getattr(self, name)) for name in names}
            if len({*lengths.values()}) > 1:
                raise ValueError(f"the lists {', '.join(names)} must be equally long, got {[*lengths.values()]}")
