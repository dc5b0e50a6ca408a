"""Where the images of a step come from while it runs: decoded files or the packed cache, and what is done to them.

Random changes are a function of seed, image and epoch, whoever loads the image and when.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ...cython_src.errors import UsageError
from ...cython_src.kernels.load.load import put

KINDS = ("flip", "crop")
SHIFT = 8  # a crop moves the image by up to an eighth of its height and width
_STREAM = 0xA06


def parse(text: str) -> frozenset[str]:
    """Parse "none", or some of `KINDS` with commas between. Raises `UsageError`: another word."""
    kinds = frozenset(word.strip() for word in text.split(",")) - {"none", ""}
    if not kinds <= {*KINDS}:
        raise UsageError(f"augment must be none or some of {', '.join(KINDS)}; got {text!r}")
    return kinds


class Augmentation:
    """Flips and crops of each training image of an epoch, by `KINDS`: "flip" exchanges left and right of half of the
    images; "crop" moves images by up to an eighth of their size in each direction and fills with zeros, the mean of
    standardised images."""

    def __init__(self, kinds: frozenset[str], seed: int, num_images: int, height: int, width: int):
        self.kinds, self.seed, self.num_images = kinds, seed, num_images
        self.reach = (height // SHIFT, width // SHIFT) if "crop" in kinds else (0, 0)
        self._epoch = -1
        self._table = np.zeros((num_images, 3), np.int32)  # flipped, rows down, columns right

    def begin(self, epoch: int) -> None:
        """Draw for an epoch; the same numbers whenever it is begun."""
        if epoch == self._epoch:
            return
        raw = np.random.PCG64([self.seed, _STREAM, epoch]).random_raw(3 * self.num_images).reshape(-1, 3)
        self._table[:, 0] = (raw[:, 0] >> np.uint64(63)) * ("flip" in self.kinds)
        for axis, reach in enumerate(self.reach, start=1):
            self._table[:, axis] = (raw[:, axis] >> np.uint64(32)) % np.uint64(2 * reach + 1)
            self._table[:, axis] -= reach
        self._epoch = epoch

    def of(self, number: int) -> tuple[bool, int, int]:
        """Whether an image is flipped, and the rows and columns by which it then moves down and right."""
        flipped, down, right = self._table[number].tolist()
        return bool(flipped), down, right


@dataclass(frozen=True, eq=False)
class ImageSource:
    """Images that are read one by one."""

    # function of an image's number that gives its pixels, uint8 or float32, of shape (channels, height, width)
    get: Callable[[int], np.ndarray]
    # float32, shape (channels, 256), or None; value of each level of each channel; None: pixels are float32 already
    tables: np.ndarray | None = None
    augmentation: Augmentation | None = None

    def read(self, number: int, out: np.ndarray) -> None:
        """Write an image to `out`: float32, shape (channels, height, width)."""
        change = self.augmentation.of(number) if self.augmentation else (False, 0, 0)
        put(self.get(number), self.tables, *change, out)


def standardising_table(count: int, total: int, squares: int) -> np.ndarray:
    """Value of each of 256 levels after subtracting the mean and dividing by the standard deviation: float32.

    Number of pixels, their sum and the sum of their squares are exact, so the result has the same bits everywhere.
    """
    mean = total / count
    variance = squares / count - mean * mean
    deviation = max(variance, 0.0) ** 0.5
    return ((np.arange(256, dtype=np.float64) - mean) / (deviation if deviation > 0 else 1.0)).astype(np.float32)


def table_of_counts(counts: np.ndarray) -> np.ndarray:
    """Return the `standardising_table` of pixels, from the number at each of 256 levels: int64, shape (256,)."""
    return standardising_table(*(int((counts * np.arange(256) ** power).sum()) for power in range(3)))
