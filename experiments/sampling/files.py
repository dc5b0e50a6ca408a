"""Files as a whole: replaced, so that after a crash they hold the old content or the new, and opened if regular."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ...cython_src.errors import UsageError


def write_atomically(path: Path | str, *parts: bytes | np.ndarray) -> None:
    """Write the bytes of `parts`, one after the other, through a temporary file beside it.

    Raises
    ------
    UsageError
        The file cannot be written.
    """
    path = Path(path)
    temporary = None
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with open(descriptor, "wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
        temporary = None
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror or error}); choose another folder") from None
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


@contextmanager
def open_regular(path: Path | str, title: str) -> Iterator[tuple[BinaryIO, int]]:
    """Open a file for reading and give it with its size; a pipe or a device is refused before anything waits for it.

    Parameters
    ----------
    path : path
    title : str
        What the file should be, for messages.

    Raises
    ------
    UsageError
        The file cannot be opened, or is not a regular one.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{path} cannot be read ({reason}); name a {title}") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise UsageError(f"{path} must be a regular file and is none; name a {title}")
        with open(descriptor, "rb", closefd=False) as file:
            yield file, status.st_size
    finally:
        os.close(descriptor)
