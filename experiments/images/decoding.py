"""Decode an image file to pixels of a given size: with Pillow or Pillow-SIMD, or JPEG files with simplejpeg."""

from __future__ import annotations

import io
import os
import stat
import warnings
from pathlib import Path

import numpy as np
from PIL import Image, __version__, features

from ...cython_src.errors import UsageError, optional
from ...cython_src.kernels.load.load import scale

DECODERS = ("pillow", "simplejpeg")
ORIENTATION = 0x0112  # tag of EXIF
BITS_PER_SAMPLE = 0x0102  # tag of TIFF
UPRIGHT = (False, False, False)
# Value of the tag -> rows are reversed, columns are reversed, and then rows and columns exchanged.
ORIENTATIONS = {
    2: (False, True, False),
    3: (True, True, False),
    4: (True, False, False),
    5: (False, False, True),
    6: (True, False, True),
    7: (True, True, True),
    8: (False, True, True),
}
# Decoders shrink by whole factors and let fine patterns through, so that the filter, which averages, gets this many
# times the wanted size.
MARGIN = 2
EXIF_WITHIN = 1 << 16  # bytes at the beginning of a file

# Pillow warns of damaged metadata, which change no pixel, and of images half as large as those that it refuses.
warnings.filterwarnings("ignore", module=r"PIL\.")


class BrokenImage(UsageError):
    """A file that is no image, or a damaged one: what is wrong, and what to do."""

    def __init__(self, fact: str, remedy: str):
        super().__init__(f"{fact}; {remedy}")
        self.fact = fact


def decoder_name(decoder: str = "pillow") -> str:
    """Return the library that decodes, for the records; other versions may give other pixels. Raises `UsageError`: it
    is missing."""
    if decoder == "simplejpeg":
        instead = ", or use --decoder pillow"
        return f"simplejpeg {optional('simplejpeg', 'the decoder simplejpeg', 'jpeg', instead).__version__}"
    turbo = features.version_feature("libjpeg_turbo") if features.check_feature("libjpeg_turbo") else None
    return f"Pillow {__version__}{f', libjpeg-turbo {turbo}' if turbo else ''}"


def decode(path: Path | str, height: int, width: int, decoder: str = "pillow") -> np.ndarray:
    """Decode an image and crop it to the middle part of the wanted proportions, scaled to the wanted size.

    The image is turned as its EXIF orientation says, transparency is dropped, and of an animation or several pages the
    first is taken. JPEG files are decoded at an eighth, a quarter or half of their size where that is at least `MARGIN`
    times the wanted one. Neither the decoder nor scaling holds Python's interpreter lock.

    What the decoder "simplejpeg" cannot read, such as other kinds of files, is left to Pillow.

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
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise OSError("it is no regular file")  # opening a pipe would wait for ever
        result = _decode_jpeg(path, height, width) if decoder == "simplejpeg" else None
        pixels, (upside_down, mirrored, turned) = result or _decode_any(path, height, width)
    except Exception as error:  # there is no end to what libraries raise for damaged files
        reason = getattr(error, "strerror", None) or str(error).replace(f" {str(path)!r}", "") or type(error).__name__
        raise BrokenImage(f"{path} cannot be decoded ({reason})", "repair it") from None
    if turned:
        height, width = width, height
    size = pixels.shape[:2]
    part = min(size[0] / height, size[1] / width)
    rows, columns = (((old - part * new) / 2, part * new) for old, new in zip(size, (height, width), strict=True))
    scaled = scale(pixels, rows, columns, height, width)
    scaled = scaled[:, :: -1 if upside_down else 1, :: -1 if mirrored else 1]
    return np.ascontiguousarray(scaled.transpose(0, 2, 1) if turned else scaled)


def _orientation(image: Image.Image) -> tuple[bool, bool, bool]:
    """How an open image must be turned: a value of `ORIENTATIONS`."""
    try:
        return ORIENTATIONS.get(image.getexif().get(ORIENTATION), UPRIGHT)
    except Exception:  # damaged or strange EXIF data: the pixels may be whole
        return UPRIGHT


def _decode_any(path: Path | str, height: int, width: int) -> tuple[np.ndarray, tuple[bool, bool, bool]]:
    """Decode an image with Pillow; return its pixels and how they must be turned."""
    with Image.open(path) as image:
        if image.format not in ("JPEG", "MPO"):
            image.load()  # only then EXIF data at the end of a file are known
        orientation = _orientation(image)
        if orientation[2]:
            height, width = width, height
        image.draft("RGB", (MARGIN * width, MARGIN * height))
        image.load()
        sixteen = image.mode.startswith("I;16") or (image.mode == "I" and _stored_in_16_bits(image))
        if image.mode in ("I", "F") and not sixteen:
            raise ValueError(f"its values of 32 bits, mode {image.mode}, have no known range; convert it to 8 bits")
        if sixteen and np.asarray(image).min() < 0:
            raise ValueError("some of its values of 16 bits are negative; convert it to 8 bits")
        if sixteen:  # Pillow would cut off what is above 255
            pixels = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
        else:
            image.info.pop("transparency", None)  # it is dropped anyhow; Pillow would warn
            pixels = image if image.mode == "RGB" else image.convert("RGB")  # converting to the same mode is a copy
    if (factor := min(pixels.width // width, pixels.height // height) // MARGIN) > 1:
        pixels = pixels.reduce(factor)
    return np.asarray(pixels), orientation


def _stored_in_16_bits(image: Image.Image) -> bool:
    """Whether an image whose mode has 32 bits has 16 in its file: Pillow widens those of PGM, to the whole range, of
    TIFF with a sign, and in some versions of PNG."""
    return image.format in ("PPM", "PNG") or (image.format == "TIFF" and image.tag_v2.get(BITS_PER_SAMPLE) == (16,))


def _decode_jpeg(path: Path | str, height: int, width: int) -> tuple[np.ndarray, tuple[bool, bool, bool]] | None:
    """The same with simplejpeg; None if it is no JPEG file, has four colours, is too large or damaged: Pillow reads it,
    or not."""
    import simplejpeg

    content = Path(path).read_bytes()
    try:
        if not simplejpeg.is_jpeg(content):
            return None
        rows, columns, colours, _ = simplejpeg.decode_jpeg_header(content)
        if colours in ("CMYK", "YCCK") or rows * columns > 2 * Image.MAX_IMAGE_PIXELS:  # what Pillow refuses
            return None
        orientation = UPRIGHT
        if b"Exif\0\0" in content[:EXIF_WITHIN]:
            with Image.open(io.BytesIO(content)) as image:
                orientation = _orientation(image)
        if orientation[2]:
            height, width = width, height
        return simplejpeg.decode_jpeg(
            content, min_height=MARGIN * height, min_width=MARGIN * width, min_factor=2
        ), orientation
    except (OSError, ValueError):
        return None
