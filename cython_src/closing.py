"""Base of what is closed at the end of a `with` block."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import AbstractContextManager


class Closing(AbstractContextManager):
    """Context manager that closes itself."""

    @abstractmethod
    def close(self) -> None:
        """Give back what is held; once more does nothing."""

    def __exit__(self, *exception: object) -> None:
        self.close()
