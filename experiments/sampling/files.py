"""Replacing a file as a whole: after a crash it holds the old content or the new."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from ...cython_src.errors import UsageError


def write_atomically(path: Path | str, content: bytes) -> None:
    """Write a file through a temporary one beside it.

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
            file.write(content)
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
