"""Files that are read: regular ones only, as JSON or TOML, decoded once into types with ranges."""

from __future__ import annotations

import io
import itertools
import os
import re
import stat
import tomllib
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import msgspec
import numpy as np
from msgspec import Meta

from .errors import UsageError, did_you_mean
from .typed_text import is_text

MOST_TOML_BYTES = 1 << 14  # a key of ten thousand parts takes the reader of TOML seconds

# Fields of what is read.
Real = Annotated[float, Meta(gt=-1e15, lt=1e15)]
Amount = Annotated[float, Meta(ge=0, lt=1e25)]  # seconds, bytes, operations
Positive = Annotated[float, Meta(gt=0, lt=1e25)]
Count = Annotated[int, Meta(ge=0, lt=2**53)]
Number = Annotated[int, Meta(ge=1, lt=2**31)]
Text = Annotated[str, Meta(max_length=1 << 16)]
Digits = Annotated[str, Meta(pattern="^[0-9]{1,9}$")]
Name = Annotated[str, Meta(min_length=1, max_length=4096)]


def home_expanded(path: Path | str) -> Path:
    """Return a path with the user's home in the place of ~. Raises `UsageError`: this user has no home."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise UsageError(
            f"{str(path)!r} must lie in the home of a user, and there is none; set HOME, or write the whole path"
        ) from None


@contextmanager
def open_regular(path: Path | str, title: str) -> Iterator[tuple[BinaryIO, int]]:
    """Open a file for reading and give it with its size; a pipe or a device is refused before anything waits for it.
    `title`: what the file should be, for messages. Raises `UsageError`: the file cannot be opened or read, or is not a
    regular one."""
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
    except OSError as error:  # such as of a file below /proc, or of a disk
        if error.errno is None:  # a decoder's own, such as gzip's
            raise
        raise UsageError(f"{path} cannot be read ({error.strerror}); name a {title}") from None
    finally:
        os.close(descriptor)


def read_regular(path: Path | str, title: str, most_bytes: int = 64 << 20) -> bytes:
    """Return the content of a regular file of at most `most_bytes`. Raises `UsageError`: the file cannot be opened, is
    not a regular one, or is larger."""
    with open_regular(path, title) as (file, size):
        if size > most_bytes:
            raise UsageError(f"{path} must have at most {most_bytes} bytes, got {size}; name a {title}")
        return file.read()


@contextmanager
def decoding(path: Path | str, title: str, remedy: str) -> Iterator[None]:
    """Turn whatever a decoder raises for the content of a file into one sentence: of damaged files libraries raise
    anything (`zlib.error`, `struct.error`, `NotImplementedError`, `MemoryError`, ...). `title`: what the file should
    be; `remedy`: what to do about a file that is damaged. Raises `UsageError`."""
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        reason = f"no {error}" if isinstance(error, KeyError) else str(error).partition("\n")[0]
        got = re.sub(r"\x1b\[[0-9;]*m", "", reason) or type(error).__name__  # PyTorch writes in bold
        raise UsageError(f"{os.fspath(path)!r} must be a whole {title}, got: {got}; {remedy}") from None


def read_arrays(path: Path | str, title: str, remedy: str) -> dict[str, np.ndarray]:
    """Read the arrays of an `.npz` file; the checksum of each is compared before anything in it is believed. Raises
    `UsageError`: as in `open_regular` and `decoding`."""
    with open_regular(path, title) as (file, _), decoding(path, title, remedy), zipfile.ZipFile(file) as archive:
        contents = {entry.filename.removesuffix(".npy"): archive.read(entry) for entry in archive.infolist()}
        return {name: np.load(io.BytesIO(content), allow_pickle=False) for name, content in contents.items()}


def decode_json(content: bytes, kind: Any = Any) -> Any:
    """Return the value that JSON stands for, of a type of msgspec. Raises `ValueError`: no JSON, numbers that are not
    finite, too deep a nesting, or a value of another type: says where."""
    try:
        values = msgspec.json.decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return values if kind is Any else checked(values, kind)


def read_json(path: Path | str, title: str, kind: Any, remedy: str) -> Any:
    """Read a JSON file into a type of msgspec. `title`: what the file should be, for messages; `remedy`: what to do
    about a file that is none. Raises `UsageError`."""
    try:
        return decode_json(read_regular(path, title), kind)
    except UsageError:
        raise
    except ValueError as error:
        raise UsageError(f"{path} must be a {title}, got: {error}; {remedy}") from None


def read_toml(path: Path | str, title: str) -> tuple[dict[str, Any], str]:
    """Read a TOML file; returns its values, and the comment before its first key without its marks. Raises
    `UsageError`: as in `read_regular`, a large file, or no TOML."""
    try:
        text = read_regular(path, title, MOST_TOML_BYTES).decode()
        lines = itertools.takewhile(lambda line: line.startswith("#"), text.splitlines())
        return tomllib.loads(text), "\n".join(line[1:].removeprefix(" ").rstrip() for line in lines)
    except UsageError:
        raise
    except RecursionError:
        reason = "one that is nested too deeply"
    except ValueError as error:
        reason = str(error)
    raise UsageError(f"{path} must be TOML, got: {reason}; mend that place, or name a {title}")


def checked(values: Any, kind: Any, **options: Any) -> Any:
    """Return values as JSON and TOML have them, as a type of msgspec. Raises `ValueError`: a value of another type or
    out of its range: says where, and which."""
    try:
        return msgspec.convert(values, kind, **options)
    except msgspec.ValidationError as error:
        text = str(error)
    path = (re.search(r" - at `\$([^`]*)`$", text) or ("", ""))[1]
    if "[...]" not in path:
        result = values
        for name, place in re.findall(r"\.([^.\[]+)|\[(\d+)\]", path):
            result = result[name] if name else result[int(place)]
        if not isinstance(result, dict | list):
            text += f", got {result!r:.60}"
    raise ValueError(text)


def check_keys(table: Iterable[str], known: Iterable[str], where: str) -> None:
    """Raise `UsageError` for the first key that is unknown, with the nearest known one."""
    known = [*known]
    for key in table:
        if key not in known:
            raise UsageError(f"keys in {where} may be {', '.join(known)}; got {key!r}{did_you_mean(key, known)}")


def check_title(title: Any, where: str) -> None:
    """Raise `UsageError` for a title that is no text, or that would write control characters to a terminal."""
    if not isinstance(title, str) or not is_text(title):
        raise UsageError(f"title in {where} must be a text without control characters, got {title!r:.60}")
