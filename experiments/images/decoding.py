"""Decode an image file to pixels of a given size, with Pillow or Pillow-SIMD."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
from PIL import Image, __version__, features

from ...cython_src.errors import UsageError


class BrokenImage(UsageError):
    """A file that is no image, or a damaged one."""


def decoder_name() -> str:
    """Return what decodes, for the records; other versions may give other pixels."""
    turbo = features.version_feature("libjpeg_turbo") if features.check_feature("libjpeg_turbo") else None
    return f"Pillow {__version__}" + f", libjpeg-turbo {turbo}" * bool(turbo)


def decode(path: Path | str, height: int, width: int) -> np.ndarray:
    """Decode an image and crop it to the middle part of the wanted proportions, scaled to the wanted size.

    JPEG files are decoded at an eighth, a quarter or half of their size where that is enough. The decoder does not hold
    Python's interpreter lock.

    Returns
    -------
    uint8, shape (3, height, width)
        Red, green and blue.

    Raises
    ------
    BrokenImage
        The file cannot be decoded, with the reason.
    """
    try:
        with Image.open(path) as image:
            image.draft("RGB", (width, height))
            image.load()
            pixels = image if image.mode == "RGB" else image.convert("RGB")  # converting to the same mode is a copy
        scale = min(pixels.width / width, pixels.height / height)
        part_width, part_height = scale * width, scale * height
        left, top = (pixels.width - part_width) / 2, (pixels.height - part_height) / 2
        box = (left, top, min(left + part_width, pixels.width), min(top + part_height, pixels.height))
        if pixels.size != (width, height):
            pixels = pixels.resize((width, height), Image.Resampling.BILINEAR, box=box, reducing_gap=2.0)
        return np.ascontiguousarray(np.asarray(pixels).transpose(2, 0, 1))
    except (
        OSError,
        SyntaxError,
        ValueError,
        EOFError,
        IndexError,
        struct.error,
        Image.DecompressionBombError,
    ) as error:
        reason = str(error).replace(f" {str(path)!r}", "") or type(error).__name__
        raise BrokenImage(f"{path} cannot be decoded ({reason}); repair or remove it") from None
