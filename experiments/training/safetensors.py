"""The safetensors format: named arrays in one file that PyTorch's tools read and that holds no code."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save

from ...cython_src.errors import UsageError
from ...cython_src.reading import open_regular
from ..results.files import SAFETENSORS, write_atomically

_METADATA = "__metadata__"
_DTYPES = {
    **{f"F{bits}": f"<f{bits // 8}" for bits in (64, 32, 16)},
    **{f"{kind}{bits}": f"<{kind.lower()}{bits // 8}" for kind in "IU" for bits in (64, 32, 16, 8)},
    "BOOL": "|b1",
}


def write_safetensors(
    path: Path | str, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str] | None = None
) -> None:
    """Write arrays to a file, as a whole or not at all. Takes the file's size in memory twice.

    Parameters
    ----------
    arrays : mapping of str to ndarray
        float, integer or bool; stored little-endian in C order.

    Raises
    ------
    UsageError
        A dtype or a name that the format does not know, metadata that are no text, or a file that cannot be written.
    """
    if _METADATA in arrays:
        raise UsageError(f"an array must not have the name {_METADATA!r}, which the format keeps; rename it")
    try:  # in C order: version 0.8 writes the memory of a transposed array as it lies
        stored = {name: np.asarray(array, order="C") for name, array in arrays.items()}
        content = save(stored, dict(metadata or {}) or None)
    except (SafetensorError, TypeError, UnicodeEncodeError) as error:
        raise UsageError(
            f"{path} must have texts without lone surrogates as names and metadata, and float, integer or bool arrays, "
            f"got: {error}; rename or convert them"
        ) from None
    write_atomically(path, content, kind=SAFETENSORS)


def read_safetensors(path: Path | str) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Read the arrays and metadata of a file; BF16 arrays become float32.

    Raises
    ------
    UsageError
        Missing, truncated, damaged or no safetensors file, or an array that NumPy cannot have.
    """
    with open_regular(path, "safetensors file") as (file, _):
        content = file.read()
    arrays = {}
    try:
        for name, entry in deserialize(content):
            widened = entry["dtype"] == "BF16"
            array = np.frombuffer(entry["data"], "<u2" if widened else _DTYPES[entry["dtype"]])
            array = (array.astype("<u4") << 16).view("<f4") if widened else array
            arrays[name] = array.reshape(entry["shape"])
    except KeyError as error:
        raise UsageError(f"array {name!r} of {path} must be float, integer or bool, got {error}; convert it") from None
    except (SafetensorError, ValueError) as error:
        raise UsageError(f"{path} must be a whole safetensors file, got: {error}; fetch or write it again") from None
    (header_bytes,) = struct.unpack_from("<Q", content)
    return arrays, json.loads(content[8 : 8 + header_bytes]).get(_METADATA) or {}
