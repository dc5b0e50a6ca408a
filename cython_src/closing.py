"""Base of what is closed at the end of a `with` block."""

from __future__ import annotations

from typing import Self


class Closing:
    """Context manager that closes itself."""

    def close(self) -> None:
        """Give back what is held; once more does nothing."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
