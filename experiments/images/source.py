"""Where the images of a step come from while it runs: decoded files or the packed cache, and what is done to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ...cython_src.kernels.load.load import put
from .augmentation import Augmentation


@dataclass(frozen=True)
class ImageSource:
    """Images that are read one by one.

    Parameters
    ----------
    get : callable
        Function of an image's number that gives its pixels, uint8 or float32, of shape (channels, height, width).
    tables : float32, shape (channels, 256), or None
        Value of each level of each channel; None: pixels are float32 already.
    """

    get: Callable[[int], np.ndarray]
    tables: np.ndarray | None = None
    augmentation: Augmentation | None = None

    def read(self, number: int, out: np.ndarray) -> None:
        """Write an image to `out`: float32, shape (channels, height, width)."""
        change = self.augmentation.of(number) if self.augmentation else (False, 0, 0)
        put(self.get(number), self.tables, *change, out)

    def augmented(self, augmentation: Augmentation | None) -> ImageSource:
        """Return a source of the same images with another augmentation."""
        return replace(self, augmentation=augmentation)


def standardising_table(count: int, total: int, squares: int) -> np.ndarray:
    """Value of each of 256 levels after subtracting the mean and dividing by the standard deviation: float32.

    Number of pixels, their sum and the sum of their squares are exact, so the result has the same bits everywhere.
    """
    mean = total / count
    variance = squares / count - mean * mean
    deviation = max(variance, 0.0) ** 0.5
    return ((np.arange(256, dtype=np.float64) - mean) / (deviation if deviation > 0 else 1.0)).astype(np.float32)


def table_of_counts(counts: np.ndarray) -> np.ndarray:
    """Return the `standardising_table` of pixels of which so many have each of 256 levels: int64, shape (256,)."""
    return standardising_table(*(int((counts * np.arange(256) ** power).sum()) for power in range(3)))
