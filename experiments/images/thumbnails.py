"""Generated photographs: JPEG files in folders of classes, so that experiments on image files run anywhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from ...cython_src.errors import UsageError
from ..results.files import locked_file

CLASSES = 10
HEIGHT, WIDTH = 480, 640
MOST = 1_000_000
LONGEST = 4096  # pixels of a side
_COMPLETE = "complete"


def write_thumbnails(
    folder: Path, count: int, height: int = HEIGHT, width: int = WIDTH, classes: int = CLASSES
) -> Path:
    """Write `count` images, for one class after the other, and return the folder; images that are there already stay.

    Waves whose direction tells the class, in colours and with noise that tell nothing: a network can learn them, and
    they decode about as slowly as photographs. Raises `UsageError`: fewer images than classes, too many, an empty or
    huge size, or no room on the disk.
    """
    if not classes <= count <= MOST:
        raise UsageError(f"the number of thumbnails must be in [{classes}, {MOST}], got {count}; use thumbnails:1000")
    if not (1 <= height <= LONGEST and 1 <= width <= LONGEST):
        raise UsageError(
            f"height and width of thumbnails must be in [1, {LONGEST}], got {height}x{width}; use "
            f"thumbnails:1000:300x400"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked_file(folder, wait=True):
            if (folder / _COMPLETE).exists():
                return folder
            for label in range(classes):
                (folder / "images" / f"class-{label}").mkdir(parents=True, exist_ok=True)
            for number in range(count):
                path = folder / "images" / f"class-{number % classes}" / f"{number:07d}.jpg"
                if not path.exists():
                    part = path.with_suffix(".part")
                    picture = Image.fromarray(draw(number, number % classes, classes, height, width))
                    picture.save(part, "JPEG", quality=85)
                    part.rename(path)
            (folder / _COMPLETE).touch()
    except OSError as error:
        raise UsageError(
            f"{count} thumbnails cannot be written to {folder} ({error.strerror}); name another folder with --cache"
        ) from None
    return folder


def draw(number: int, label: int, classes: int, height: int, width: int) -> np.ndarray:
    """Pixels of an image: uint8, shape (height, width, 3)."""
    generator = np.random.default_rng([number, label])
    angle = np.pi * (label + generator.uniform(-0.2, 0.2)) / classes
    y, x = np.mgrid[0:height, 0:width].astype(np.float32) / np.float32(height)
    phase = generator.uniform(0, 2 * np.pi)
    wave = np.sin(
        np.float32(10 * np.pi) * (x * np.float32(np.cos(angle)) + y * np.float32(np.sin(angle))) + np.float32(phase)
    )
    colour = generator.uniform(30, 90, 3).astype(np.float32)
    pixels = 128 + wave[:, :, None] * colour + generator.normal(0, 12, (height, width, 1)).astype(np.float32)
    return np.clip(pixels, 0, 255).astype(np.uint8)
