"""The granularity of a plan, as users write it: how finely loops are cut into blocks."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..errors import UsageError

LARGEST = 65_536
LANES = 16  # images that share a vector's lanes: a batch is cut at multiples of it


@dataclass(frozen=True)
class Granularity:
    """How loops are cut into blocks: images (samples), output channels (features), rows (tokens of a sample) and heads
    of a block (0: not cut, or chosen by cost)."""

    images: int = 0
    channels: int = 0
    rows: int = 0
    heads: int = 0

    @property
    def is_auto(self) -> bool:
        return self == Granularity()

    @classmethod
    def parse(cls, text: str) -> Granularity:
        """From "auto" or a list such as "images=16,channels=8,rows=4"; heads likewise."""
        if text == "auto":
            return cls()
        values: dict[str, int] = {}
        for part in text.split(","):
            key, _, value = part.partition("=")
            known = key in ("images", "channels", "rows", "heads") and key not in values
            if not known or not re.fullmatch("[0-9]{1,5}", value) or not 1 <= int(value) <= LARGEST:
                raise UsageError(
                    f"granularity must be 'auto' or a list such as 'images=16,channels=8,rows=4' of whole numbers in "
                    f"[1, {LARGEST}], got {text!r}"
                )
            values[key] = int(value)
        return cls(**values)


def check_images(granularity: str, batch: int) -> None:
    """Raise `UsageError` where blocks would have more images than any batch asked for has, filled up to whole
    vectors."""
    if Granularity.parse(granularity).images > -(-batch // LANES) * LANES:
        raise UsageError(
            f"granularity must have at most the {batch} images of a batch in a block, got {granularity!r}; lower "
            f"it, or leave the images out"
        )
