"""How finely loops are cut into blocks, as users say it."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import UsageError


@dataclass(frozen=True)
class Granularity:
    """How loops are cut into blocks: images, output channels and rows of a block (0: not cut, or chosen by
    cost)."""

    images: int = 0
    channels: int = 0
    rows: int = 0

    @property
    def is_auto(self) -> bool:
        return self == Granularity()

    @classmethod
    def parse(cls, text: str) -> Granularity:
        """From "auto" or "images=16,channels=8,rows=4", any of them left out."""
        if text == "auto":
            return cls()
        values: dict[str, int] = {}
        for part in text.split(","):
            key, _, value = part.partition("=")
            if key not in ("images", "channels", "rows") or key in values or not value.isdigit() or int(value) < 1:
                raise UsageError(
                    f"granularity must be 'auto' or a list such as 'images=16,channels=8,rows=4' of positive "
                    f"whole numbers, got {text!r}"
                )
            values[key] = int(value)
        return cls(**values)
