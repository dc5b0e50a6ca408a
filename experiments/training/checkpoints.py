"""Arrays of a training run by name: in storages, in files of parameters, and in checkpoints."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from ...cython_src.binding.storage import Storage
from ...cython_src.errors import UsageError
from ...cython_src.reading import Count, Name, decode_json
from .dataset import Dataset
from .safetensors import read_safetensors, write_safetensors
from .text import Text


class State(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a checkpoint holds besides arrays."""

    network: Name
    seed: Count
    epoch: Count
    iteration: Count


def names_of_last_layer(parameters: Sequence[str]) -> set[str]:
    """Return the parameters of the last layer."""
    layer = parameters[-1].rpartition(".")[0]
    return {name for name in parameters if name.rpartition(".")[0] == layer}


def write_checkpoint(path: Path, arrays: Mapping[str, np.ndarray], state: State) -> None:
    """Write arrays and state, with a checksum of both, as a whole or not at all."""
    text = msgspec.json.encode(state).decode()
    write_safetensors(path, arrays, {"forktask": text, "sha256": _checksum(arrays, text)})


def _checksum(arrays: Mapping[str, np.ndarray], state: str) -> str:
    """Return the SHA-256 of names, shapes, types and values of arrays and of a text."""
    result = hashlib.sha256(state.encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        result.update(f"\n{name} {array.dtype.str} {array.shape}\n".encode())
        result.update(array.reshape(-1).view(np.uint8))
    return result.hexdigest()


def read_checkpoint(path: Path, network: str, seed: int) -> tuple[dict[str, np.ndarray], State]:
    """Read the arrays and state of a checkpoint that `write_checkpoint` wrote. Raises `UsageError`: missing, damaged,
    or of another network or seed."""
    arrays, metadata = read_safetensors(path)
    try:
        state = decode_json(metadata["forktask"].encode(), State)
        if metadata["sha256"] != _checksum(arrays, metadata["forktask"]):
            raise ValueError("its checksum is not that of its content: it was changed since it was written")
        if (state.network, state.seed) != (network, seed):
            raise ValueError(f"it is of network {state.network} and seed {state.seed}, not of {network} and {seed}")
    except (KeyError, ValueError) as error:
        raise UsageError(f"{path} must be a checkpoint of forktask train ({error}); delete it to start again") from None
    return arrays, state


def share_data(storage: Storage, data: Dataset | Text, prefix: str = "") -> None:
    """Let a storage use the arrays of a data set, without a copy. Raises `UsageError`: the storage is in managed
    memory, where the arrays do not lie."""
    if storage.managed:
        raise UsageError("training uses the data set where it lies, which managed memory forbids; use memory=pinned")
    storage.arrays |= {f"{prefix}{name}": array for name, array in data.arrays.items()}


def set_arrays(target, source, names, path) -> None:
    """Copy arrays by name, once all of them are known to fit. Raises `UsageError`: one is missing, has another shape or
    dtype, or holds numbers that are not finite."""
    for name in names:
        if name not in source:
            raise UsageError(f"{path} must hold {name!r} and does not; is it of another network?")
        if source[name].shape != target[name].shape or source[name].dtype.kind != "f":
            raise UsageError(
                f"{name!r} in {path} must be float of shape {target[name].shape}, got {source[name].dtype} of shape "
                f"{source[name].shape}; is it of another network?"
            )
        if not np.isfinite(source[name]).all():
            raise UsageError(f"{name!r} in {path} must be finite numbers, and some are not; is the file damaged?")
    for name in names:
        target[name][...] = source[name]
