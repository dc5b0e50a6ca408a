"""The safetensors format: named arrays in one file that PyTorch's tools read and that holds no code.

A file is the length of its header (8 bytes, little-endian), the header (JSON: name -> dtype, shape, data_offsets), and
the data, without holes and without overlap. The package `safetensors` reads it. It is written here: the package's
`save` needs twice the file in memory, and its `save_file` leaves a temporary file behind where it is killed.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, deserialize

from ...cython_src.errors import UsageError
from ...cython_src.reading import open_regular
from ...cython_src.typed_text import is_unicode
from ..results.files import SAFETENSORS, write_atomically

_METADATA = "__metadata__"
_DTYPES = {
    **{f"F{bits}": f"<f{bits // 8}" for bits in (64, 32, 16)},
    **{f"{kind}{bits}": f"<{kind.lower()}{bits // 8}" for kind in "IU" for bits in (64, 32, 16, 8)},
    "BOOL": "|b1",
}
_NAMES = {np.dtype(dtype): name for name, dtype in _DTYPES.items()}


def write_safetensors(
    path: Path | str, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str] | None = None
) -> None:
    """Write arrays to a file, as a whole or not at all.

    Parameters
    ----------
    arrays : mapping of str to ndarray
        float, integer or bool; stored little-endian in C order.

    Raises
    ------
    UsageError
        A dtype or a name that the format does not know, metadata that are no text, or a file that cannot be written.
    """
    if not all(isinstance(text, str) and is_unicode(text) for item in (metadata or {}).items() for text in item):
        raise UsageError(
            f"metadata of {path} must be texts without lone surrogates by name, got {metadata!r:.200}; convert them"
        )
    header: dict[str, object] = {_METADATA: dict(metadata)} if metadata else {}
    contents = []
    offset = 0
    # The widest items come first, so that every array starts at a multiple of its item size.
    for name in sorted(arrays, key=lambda name: (-np.asarray(arrays[name]).dtype.itemsize, str(name))):
        if not isinstance(name, str) or name == _METADATA or not is_unicode(name):
            raise UsageError(
                f"names of arrays must be texts without lone surrogates and not {_METADATA!r}, got {name!r}; rename it"
            )
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
    write_atomically(path, struct.pack("<Q", len(text)), text, *contents, kind=SAFETENSORS)


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
