"""Pixels of one image: scaling against Pillow, and what is refused."""

import numpy as np
import pytest
from PIL import Image

from forktask.cython_src.kernels.load.load import put, scale
from forktask.cython_src.kernels.simd.instruction_sets import available


@pytest.mark.parametrize(
    ("old", "rows", "columns", "new"),
    [
        ((480, 640), (0, 480), (0, 640), (270, 360)),
        ((48, 640), (0, 48), (80.5, 400), (27, 270)),
        ((61, 47), (3.25, 50.5), (0, 47), (20, 32)),
        ((20, 30), (0, 20), (4.5, 20), (45, 70)),
        ((97, 90), (0, 97), (0, 90), (7, 9)),
        ((33, 21), (0, 33), (0, 21), (33, 21)),
        ((1, 1), (0, 1), (0, 1), (3, 4)),
        ((1, 300), (0, 1), (0, 300), (1, 2)),
    ],
)
def test_scaled_pixels_are_those_of_pillow(old, rows, columns, new):
    """Check equal pixels of all instruction sets, within a level of Pillow's filter, which rounds elsewhere."""
    pixels = np.random.default_rng(1).integers(0, 256, (*old, 3), dtype=np.uint8)
    box = (columns[0], rows[0], sum(columns), sum(rows))
    expected = np.asarray(Image.fromarray(pixels).resize(new[::-1], Image.Resampling.BILINEAR, box=box))
    result = [scale(pixels, rows, columns, *new, instruction_set) for instruction_set in available()]
    assert result[0].shape == (3, *new)
    assert np.abs(result[0].transpose(1, 2, 0).astype(int) - expected).max() <= (0 if old == new else 1)
    assert all(np.array_equal(result[0], other) for other in result)


def test_levels_that_are_equal_stay():
    """Check the ends of the range: weights add up to 1 exactly."""
    for level in (0, 1, 255):
        for new in ((270, 360), (3, 5), (700, 900)):
            assert (scale(np.full((480, 640, 3), level, np.uint8), (0, 480), (0, 640), *new) == level).all()


def test_levels_become_values_and_images_move():
    """Check tables, flips and moves, also by more than the image, against NumPy."""
    generator = np.random.default_rng(2)
    pixels = generator.integers(0, 256, (3, 5, 7), dtype=np.uint8)
    tables = generator.normal(size=(3, 256)).astype(np.float32)
    values = np.stack([table[channel] for table, channel in zip(tables, pixels, strict=True)])
    for flipped, down, right in (
        (False, 0, 0),
        (True, 0, 0),
        (True, 2, -3),
        (False, -5, 0),
        (True, 0, 9),
        (False, 1, -7),
    ):
        out = np.full((3, 5, 7), np.nan, np.float32)
        put(pixels, tables, flipped, down, right, out)
        around = np.pad(values[:, :, :: -1 if flipped else 1], ((0, 0), (9, 9), (9, 9)))
        assert np.array_equal(out, around[:, 9 - down : 14 - down, 9 - right : 16 - right])
