"""Files as a whole: replaced, so that after a crash they hold the old content or the new."""

from __future__ import annotations

import csv
import errno
import fcntl
import io
import os
import re
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ...cython_src.errors import UsageError
from ...cython_src.reading import decode_json, home_expanded, open_regular, read_regular
from ..tables.progress import say

LOCK_WAIT_S = 1.0
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
# How files begin that a user may name for output, and that may take the place of one of their kind alone.
FIGURE = re.compile(rb"%PDF-|\x89PNG|<\?xml")
LINES = re.compile(rb'\{"kind": "run"')
MACHINE = re.compile(rb"(#.*\n|\s)*name = ")
MARKDOWN = re.compile(rb"(?![{%])[^\x00-\x08\x0e-\x1f]*\Z")
SAFETENSORS = re.compile(rb"(?s:.{8})\{")
BEGINNING = 4096
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class NoRoom(UsageError):
    """A file that cannot be written for want of room; `fact` is the sentence without its remedy."""

    def __init__(self, fact: str):
        super().__init__(f"{fact}; make room and give the same command again")
        self.fact = fact


def cache_folder(name: str) -> Path:
    """Return a folder below the user's cache folder, which need not exist yet. A user without a home, as containers
    have them, has it in the temporary folder. Raises `UsageError`: the one in the temporary folder belongs to somebody
    else, who could leave anything there."""
    if not os.environ.get("XDG_CACHE_HOME") and os.path.expanduser("~") == "~":
        temporary = Path(tempfile.gettempdir(), f"forktask-{os.getuid()}")
        if temporary.exists() and temporary.stat().st_uid != os.getuid():
            raise UsageError(f"{temporary} must be yours, got another user's; set HOME, or name a folder with --cache")
        return temporary / name
    return home_expanded(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "forktask" / name


def read_cached(name: str, file: str, kind: Any, otherwise: Any) -> Any:
    """Return what `keep_cached` left in `cache_folder(name)`, of a type of msgspec; a file that is not there or cannot
    be read counts as `otherwise`."""
    try:
        return decode_json(read_regular(cache_folder(name) / file, "file of the cache"), kind)
    except (OSError, ValueError):
        return otherwise


def keep_cached(name: str, file: str, value: Any) -> None:
    """Keep a value as JSON in `cache_folder(name)`; where that cannot be written, it is computed again next time."""
    with suppress(OSError, UsageError):
        cache_folder(name).mkdir(parents=True, exist_ok=True)
        write_atomically(cache_folder(name) / file, msgspec.json.encode(value))


def write_atomically(path: Path | str, *parts: bytes | str | np.ndarray, kind: re.Pattern[bytes] | None = None) -> None:
    """Write the bytes of `parts`, one after the other, through a temporary file beside it; texts as UTF-8. Raises
    `UsageError`: the file cannot be written, or `check_replaceable` refuses it."""
    check_replaceable(Path(path), kind)
    with replaced(path) as file:
        for content in parts:
            file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def replaced(path: Path | str) -> Iterator[io.BufferedWriter]:
    """Open an empty temporary file that takes the place of a file when the block ends without an error. Raises
    `UsageError`: the file cannot be written."""
    path = Path(path)
    try:
        check_replaceable(path)
        with _part(path) as (file, part):
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.replace(part, path)
    except OSError as error:
        fact = f"{path} cannot be written ({error.strerror or error})"
        if error.errno in NO_ROOM:
            raise NoRoom(fact) from None
        raise UsageError(f"{fact}; choose another folder") from None


@contextmanager
def _part(path: Path) -> Iterator[tuple[io.BufferedWriter, Path]]:
    """Open the empty file beside a path that will replace it, and remove it unless it did.

    Its name is fixed, so what a killed process left is written anew. Whoever writes it holds a lock on it, which others
    wait for; the file may meanwhile have been moved to its place, or been removed: then they open another.
    """
    part = path.with_name(f".{path.name}.part")
    while True:
        file = os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666), "wb")
        try:
            _lock(file.fileno())
            if _is_at(file, part):
                break
        except BaseException:
            file.close()
            raise
        file.close()
    try:
        file.truncate()
        yield file, part
    finally:
        if _is_at(file, part):
            part.unlink()
        with suppress(OSError):  # what could not be written when it was flushed
            file.close()


def _lock(descriptor: int, flags: int = 0) -> None:
    """Lock an open file; where its file system knows no locks, say so once and go on without."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | flags)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        _say_without_locks(error.strerror)


@cache
def _say_without_locks(reason: str) -> None:
    say(f"the file system of this output has no locks ({reason}): let no two processes write to one folder there")


def _is_at(file: io.BufferedWriter, path: Path) -> bool:
    """Return whether a path leads to this open file."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.lstat(path))
    except FileNotFoundError:
        return False


def csv_text(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return rows as CSV."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    return text.getvalue()


def write_table(path: Path | str, table: Any) -> None:
    """Write a DataFrame as CSV, as a whole or not at all. Raises `UsageError`: the file cannot be written."""
    write_atomically(path, table.to_csv(index=False, float_format="%.9g", lineterminator="\n"))


def write_figure(path: Path | str, figure: Any, **options: Any) -> None:
    """Write a figure of matplotlib in the format that its name's ending says, as a whole or not at all. Raises
    `UsageError`: the file cannot be written."""
    content = io.BytesIO()  # matplotlib's writer of PDF does not survive a full disk
    figure.savefig(content, format=Path(path).suffix[1:], **options)
    write_atomically(path, content.getvalue(), kind=FIGURE)


def check_replaceable(path: Path, kind: re.Pattern[bytes] | None = None) -> None:
    """Raise `UsageError` for a device, a pipe or a folder, also behind a link, and for a file that does not begin as
    those of a kind: no file must take the place of something else. An empty file is of every kind."""
    try:
        if b"\0" in os.fsencode(path):
            raise ValueError("a NUL character")
    except ValueError as error:
        raise UsageError(f"{str(path)!r} must be the name of a file, got {error}; choose another name") from None
    if path.exists() and not path.is_file():
        raise UsageError(f"{path} must be a regular file or none yet, and is another thing; choose another name")
    if kind is None or not path.exists():
        return
    with open_regular(path, "file that can be replaced") as (file, size):
        if size and not kind.match(file.read(BEGINNING)):
            raise UsageError(
                f"{path} must be a file that this option wrote, or none yet, and holds something else; choose another "
                f"name, or remove it"
            )


def check_writable(path: Path | str, kind: re.Pattern[bytes] | None = None) -> None:
    """Raise `UsageError` unless `write_atomically` can write this file, before anything is measured for it.

    The file itself and its folder stay as they are.
    """
    path = Path(path)
    try:
        check_replaceable(path, kind)
        with _part(path):
            pass
    except UsageError:
        raise
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{path} cannot be written ({reason}); choose another folder") from None


def check_appendable(path: Path | str) -> None:
    """Raise `UsageError` unless Markdown can be appended to a file; it and its folder stay as they are."""
    path = Path(path)
    if not path.exists():
        check_writable(path)
        return
    check_replaceable(path, MARKDOWN)
    if not os.access(path, os.W_OK):
        raise UsageError(f"{path} cannot be written; choose another file")


def check_writable_folder(folder: Path | str) -> None:
    """Raise `UsageError` unless files can be written to a folder, or to the one in which it would have to be made."""
    folder = Path(folder)
    try:
        present = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        if not present.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        with _part(present / "forktask"):
            pass
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"folder {str(folder)!r} cannot be made or written to ({reason}); choose another") from None


def output_folder(path: Path | str, marker: str, make: bool = True) -> Path:
    """Make the folder for what a command leaves, where `marker` is what it writes first, or only check it; return it.

    It must be new or empty, have that file, or hold nothing but folders that have it, which may lie side by side.
    Raises `UsageError`: it cannot be made, or holds other files.
    """
    folder = Path(path)
    try:
        if make:
            folder.mkdir(parents=True, exist_ok=True)
        elif not folder.exists():
            check_writable_folder(folder)
            return folder
        foreign = not (folder / marker).exists() and any(not (one / marker).exists() for one in folder.iterdir())
    except OSError as error:
        raise UsageError(
            f"--out must be a folder that can be written, got {str(path)!r}: {error.strerror}; choose another"
        ) from None
    if foreign:
        raise UsageError(
            f"the output folder must be empty or hold results of forktask, got {str(path)!r} with other files; choose "
            f"another with --out"
        )
    return folder


def list_folder(folder: Path | str) -> list[Path]:
    """Return the paths of all that lies in a folder. Raises `UsageError`: it cannot be read."""
    try:
        return list(Path(folder).iterdir())
    except OSError as error:
        raise UsageError(f"folder {str(folder)!r} cannot be read ({error.strerror}); choose another") from None


def unfinished(folder: Path | str) -> list[Path]:
    """Return the temporary files that `write_atomically` left in a folder where the process was killed."""
    return [path for path in list_folder(folder) if re.fullmatch(r"\..+\.part", path.name) and path.is_file()]


@contextmanager
def locked_file(path: Path | str, wait: bool = False) -> Iterator[None]:
    """Keep out other processes that ask for the same file or folder.

    Parameters
    ----------
    wait : bool
        Wait for another process; if not, it is an error after a moment: if the last one was killed while it started a
        process, that process holds a copy of the open file until it runs its own program.

    Raises
    ------
    UsageError
        The path cannot be opened, or another process holds it.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(f"{path} cannot be opened ({error.strerror}); choose another") from None
    deadline, held = time.monotonic() + LOCK_WAIT_S, False
    try:
        while not held:
            try:
                _lock(descriptor, 0 if wait else fcntl.LOCK_NB)
                held = True
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise UsageError(
                        f"only one process may use {path}, another one does now; wait for it, or choose another"
                    ) from None
                time.sleep(0.02)
        yield
    finally:
        os.close(descriptor)
