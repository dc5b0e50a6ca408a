"""Files that llm.c's program reads: a model and tokens, each behind 256 integers of 4 bytes, little-endian."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ...cython_src.errors import UsageError
from ...cython_src.networks import gpt2
from ...cython_src.networks.layers import Network
from ..results.files import write_atomically

MODEL, TOKENS = (20240326, 3), (20240520, 1)  # numbers that name a format and its version
HEADER_INTS = 256
PADDING = 128  # the vocabulary is padded with rows of zeros to a multiple
FIRST_LAYER = "h.0."


def sizes_of(network: Network) -> dict[str, int]:
    """Return the sizes of a GPT-2, or raise `UsageError`."""
    sizes = gpt2.sizes_of(network)
    if sizes is None:
        raise UsageError(f"llm.c's files are of GPT-2 networks, such as gpt2, and {network.name!r} is none; use one")
    return sizes


def write_model(path: Path, parameters: Mapping[str, np.ndarray], network: Network) -> None:
    """Write float32 parameters by the names of `networks.gpt2`: each tensor for all layers before the next."""
    sizes = sizes_of(network)
    padding = -sizes["vocabulary"] % PADDING
    parts = []
    for name in gpt2.network("one layer", **{**sizes, "num_layers": 1}).parameter_shapes():
        of_layers = [name]
        if name.startswith(FIRST_LAYER):
            of_layers = [f"h.{n}.{name.removeprefix(FIRST_LAYER)}" for n in range(sizes["num_layers"])]
        parts += [np.ascontiguousarray(parameters[each], "<f4") for each in of_layers]
        if name == "wte.weight":
            parts.append(np.zeros((padding, sizes["features"]), "<f4"))
    named = ("positions", "vocabulary", "num_layers", "heads", "features")
    header = _header(*MODEL, *(sizes[name] for name in named), sizes["vocabulary"] + padding)
    write_atomically(path, header, *parts)


def write_tokens(path: Path, tokens: np.ndarray) -> None:
    """Write tokens in [0, 65536)."""
    write_atomically(path, _header(*TOKENS, tokens.size), np.ascontiguousarray(tokens, "<u2"))


def _header(*numbers: int) -> np.ndarray:
    header = np.zeros(HEADER_INTS, "<i4")
    header[: len(numbers)] = numbers
    return header
