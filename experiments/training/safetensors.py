"""The safetensors format: named arrays in one file that PyTorch's tools read and that holds no code.

A file is the length of its header (8 bytes, little-endian), the header (JSON: name -> dtype, shape,
data_offsets), and the data, without holes and without overlap.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ...cython_src.errors import UsageError
from ...cython_src.reading import open_regular
from ..sampling.files import write_atomically

_DTYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "|i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "|u1",
    "BOOL": "|b1",
}
_NAMES = {np.dtype(dtype): name for name, dtype in _DTYPES.items()}
MAX_HEADER_BYTES = 100_000_000


def write_safetensors(
    path: Path | str, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str] | None = None
) -> None:
    """Write arrays to a file, as a whole or not at all.

    Parameters
    ----------
    path : path
    arrays : mapping of str to ndarray
        float, integer or bool; stored little-endian in C order.
    metadata : mapping of str to str, optional

    Raises
    ------
    UsageError
        A dtype the format does not know, or a file that cannot be written.
    """
    header: dict[str, object] = {}
    if metadata:
        header["__metadata__"] = dict(metadata)
    contents = []
    offset = 0
    # The widest items come first, so that every array starts at a multiple of its item size.
    for name in sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name)):
        array = np.asarray(arrays[name])
        little = array.dtype.newbyteorder("<")
        if little not in _NAMES:
            raise UsageError(
                f"array {name!r} must be float, integer or bool to be saved, got {array.dtype}; convert it"
            )
        data = np.ascontiguousarray(array, dtype=little)
        header[name] = {
            "dtype": _NAMES[little],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + data.nbytes],
        }
        contents.append(data)
        offset += data.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    write_atomically(path, struct.pack("<Q", len(text)), text, *contents)


def read_safetensors(path: Path | str) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Read the arrays and metadata of a file; BF16 arrays become float32.

    Raises
    ------
    UsageError
        Missing, truncated, damaged or no safetensors file, with the byte offset.
    """
    with open_regular(path, "safetensors file") as (file, size):
        header, metadata, start = _read_header(path, file, size)
        arrays = {}
        for name, entry in _checked_entries(path, header, start, size):
            dtype, shape = entry["dtype"], entry["shape"]
            stored = np.dtype("<u2" if dtype == "BF16" else _DTYPES[dtype])
            array = np.fromfile(file, stored, math.prod(shape))
            if array.size != math.prod(shape):
                raise UsageError(f"{path} became shorter while it was read; read it again once it is written")
            if dtype == "BF16":
                array = (array.astype("<u4") << 16).view("<f4")
            arrays[name] = array.reshape(shape)
    return arrays, metadata


def _read_header(path, file: BinaryIO, size: int) -> tuple[dict[str, Any], dict[str, str], int]:
    """Read entries and metadata; the third is the byte at which the data begin."""
    prefix = file.read(8)
    if len(prefix) < 8:
        raise UsageError(
            f"{path} ends at byte {len(prefix)}, within its 8-byte header length; is it a safetensors file?"
        )
    header_bytes = struct.unpack("<Q", prefix)[0]
    start = 8 + header_bytes
    if header_bytes > MAX_HEADER_BYTES or start > size:
        raise UsageError(
            f"{path} claims at byte 0 a header of {header_bytes} bytes, but holds {size} bytes; "
            f"it is truncated or no safetensors file"
        )
    try:
        header = json.loads(file.read(header_bytes).decode("utf-8"), object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the header at byte 8 of {path} must be JSON ({error}); the file is damaged") from None
    if not isinstance(header, dict):
        raise UsageError(f"the header at byte 8 of {path} must be a JSON object; the file is damaged")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise UsageError(f"the metadata of {path} must map strings to strings; the file is damaged")
    return header, metadata, start


def _checked_entries(path, header: dict[str, Any], start: int, size: int) -> list[tuple[str, dict[str, Any]]]:
    """Return name and entry of each array in the order of the data, once it is known that they fill the file."""
    entries = sorted(header.items(), key=lambda item: _offsets_of(path, *item))
    end = 0
    for name, entry in entries:
        begin, stop = _offsets_of(path, name, entry)
        dtype, shape = entry["dtype"], entry["shape"]
        item_bytes = 2 if dtype == "BF16" else np.dtype(_DTYPES[dtype]).itemsize
        if begin != end or stop - begin != item_bytes * math.prod(shape):
            raise UsageError(
                f"array {name!r} of {path} ({dtype}, shape {shape}) must fill bytes {start + end} to "
                f"{start + end + item_bytes * math.prod(shape)}, but its header says {start + begin} to "
                f"{start + stop}; the file is damaged"
            )
        if start + stop > size:
            raise UsageError(
                f"{path} is truncated: array {name!r} ends at byte {start + stop}, the file at byte {size}"
            )
        end = stop
    if start + end != size:
        raise UsageError(f"{path} must end at byte {start + end}, after its last array, but ends at byte {size}")
    return entries


def _without_duplicates(pairs):
    """Make a dict of a JSON object; a name given twice is an error."""
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a name appears twice")
    return result


def _offsets_of(path, name, entry) -> tuple[int, int]:
    """Return the checked data_offsets of a header entry."""

    def is_count(value):
        return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62

    if (
        isinstance(entry, dict)
        and isinstance(entry.get("dtype"), str)
        and (entry["dtype"] in _DTYPES or entry["dtype"] == "BF16")
        and isinstance(entry.get("shape"), list)
        and all(map(is_count, entry["shape"]))
        and isinstance(entry.get("data_offsets"), list)
        and len(entry["data_offsets"]) == 2
        and all(map(is_count, entry["data_offsets"]))
    ):
        return tuple(entry["data_offsets"])
    raise UsageError(f"array {name!r} of {path} must have a known dtype, a shape and two data_offsets, got {entry!r}")
