"""Files as a whole: replaced, so that after a crash they hold the old content or the new, and opened if regular."""

from __future__ import annotations

import errno
import fcntl
import io
import itertools
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
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


def write_figure(path: Path | str, figure: Any, **options: Any) -> None:
    """Write a figure of matplotlib in the format that its name's ending says, as a whole or not at all.

    Raises
    ------
    UsageError
        The file cannot be written.
    """
    content = io.BytesIO()  # matplotlib's writer of PDF does not survive a full disk
    figure.savefig(content, format=Path(path).suffix[1:], **options)
    write_atomically(path, content.getvalue())


def check_writable(path: Path | str) -> None:
    """Raise `UsageError` unless `write_atomically` can write this file, before anything is measured for it.

    The file itself and its folder stay as they are.
    """
    path = Path(path)
    try:
        if path.exists() and not path.is_file():
            raise UsageError(f"{path} must be a regular file or none yet, and is another thing; choose another name")
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        os.close(descriptor)
        Path(temporary).unlink()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{path} cannot be written ({reason}); choose another folder") from None


def check_appendable(path: Path | str) -> None:
    """Raise `UsageError` unless text can be appended to a file; it and its folder stay as they are."""
    path = Path(path)
    if not path.exists():
        check_writable(path)
        return
    with open_regular(path, "file"):
        pass
    if not os.access(path, os.W_OK):
        raise UsageError(f"{path} cannot be written; choose another file")


def check_writable_folder(folder: Path | str) -> None:
    """Raise `UsageError` unless files can be written to a folder, or to the one in which it would have to be made."""
    folder = Path(folder)
    try:
        present = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        if not present.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        descriptor, temporary = tempfile.mkstemp(prefix=".forktask.", dir=present)
        os.close(descriptor)
        Path(temporary).unlink()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"folder {str(folder)!r} cannot be made or written to ({reason}); choose another") from None


def list_folder(folder: Path | str) -> list[Path]:
    """Return the paths of all that lies in a folder.

    Raises
    ------
    UsageError
        It cannot be read.
    """
    try:
        return list(Path(folder).iterdir())
    except OSError as error:
        raise UsageError(f"folder {str(folder)!r} cannot be read ({error.strerror}); choose another") from None


def unfinished(path: Path | str) -> list[Path]:
    """Return the temporary files that `write_atomically` left beside a file where the process was killed."""
    path = Path(path)
    return [other for other in list_folder(path.parent) if other.name.startswith(f".{path.name}.") and other.is_file()]


@contextmanager
def locked_file(path: Path | str, wait: bool = False) -> Iterator[None]:
    """Keep out other processes that ask for the same file or folder.

    Parameters
    ----------
    path : path
    wait : bool
        Wait for another process; if not, it is an error.

    Raises
    ------
    UsageError
        The path cannot be opened, or another process holds it.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(f"{path} cannot be opened ({error.strerror}); choose another") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
    except BlockingIOError:
        raise UsageError(f"only one process may use {path}, another one does now; wait for it") from None
    finally:
        os.close(descriptor)


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


def read_regular(path: Path | str, title: str, most_bytes: int = 64 << 20) -> bytes:
    """Return the content of a regular file of at most `most_bytes`.

    Raises
    ------
    UsageError
        The file cannot be opened, is not a regular one, or is larger.
    """
    with open_regular(path, title) as (file, size):
        if size > most_bytes:
            raise UsageError(f"{path} must have at most {most_bytes} bytes, got {size}; name a {title}")
        try:
            return file.read()
        except OSError as error:
            raise UsageError(f"{path} cannot be read ({error.strerror}); name a {title}") from None


def decode_json(content: bytes, kind: Any = Any) -> Any:
    """Return the value that JSON stands for, of a type of msgspec.

    Raises
    ------
    ValueError
        No JSON, numbers that are not finite, too deep a nesting, or a value of another type: says where.
    """
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_json(path: Path | str, title: str, kind: Any, remedy: str) -> Any:
    """Read a JSON file into a type of msgspec.

    Parameters
    ----------
    path : path
    title : str
        What the file should be, for messages.
    kind : type
    remedy : str
        What to do about a file that is none.

    Raises
    ------
    UsageError
    """
    try:
        return decode_json(read_regular(path, title), kind)
    except UsageError:
        raise
    except ValueError as error:
        raise UsageError(f"{path} must be a {title}, got: {error}; {remedy}") from None


def leading_comment(text: str) -> str:
    """Return the comment before the first key of a TOML file, without its marks."""
    lines = itertools.takewhile(lambda line: line.startswith("#"), text.splitlines())
    return "\n".join(line[1:].removeprefix(" ").rstrip() for line in lines)
