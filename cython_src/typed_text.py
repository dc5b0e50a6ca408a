"""Numbers and texts as people type them."""

from __future__ import annotations

import math
import re
import unicodedata

LONGEST_TEXT = 4096
MOST_SECONDS = 1e7  # of a time that is asked for: four months
MOST_THREADS = 4096
_WHOLE = re.compile(r"[+-]?[0-9]{1,99}")
_REAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]{1,4})?|[+-]?(inf|nan)", re.IGNORECASE)


def parse_whole(text: str) -> int:
    """Return the whole number that a text stands for: ASCII digits and a sign, nothing else. Raises `ValueError`."""
    if not _WHOLE.fullmatch(text):
        raise ValueError(f"{text!r} is no whole number")
    return int(text)


def parse_real(text: str) -> float:
    """Return the number that a text stands for, in the usual decimal forms; see `parse_whole`. Raises `ValueError`."""
    if len(text) > 100 or not _REAL.fullmatch(text):
        raise ValueError(f"{text!r} is no number")
    return float(text)


def is_text(text: str) -> bool:
    """Return whether a text is of a sensible length and without control characters, but for line ends and tabs."""
    if len(text) > LONGEST_TEXT:
        return False
    return text.isprintable() or all(c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cs") for c in text)


def is_unicode(text: str) -> bool:
    """Return whether a text can be written as UTF-8: it holds no lone surrogate."""
    return text.isascii() or not any("\ud800" <= c <= "\udfff" for c in text)


def rounded(value: float, zeros: bool = True) -> str:
    """Write a number with three significant digits and no exponent: "93000", "0.0123", "1.50"; without zeros "1.5"."""
    if not value or not math.isfinite(value):
        return f"{value:.0f}"
    value = float(f"{value:.2e}")
    text = f"{value:.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"
    return text if zeros or "." not in text else text.rstrip("0").rstrip(".")


def format_bytes(size: float) -> str:
    """Format a number of bytes with three digits and a unit."""
    for unit in ("B", "KiB", "MiB"):
        if abs(size) < 1000:
            return f"{rounded(size, zeros=False)} {unit}"
        size /= 1024
    return f"{rounded(size, zeros=False)} GiB"
