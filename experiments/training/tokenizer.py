"""Tokenizers in the user's own files, by the package `tokenizers`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...cython_src.errors import UsageError
from ...cython_src.networks.layers import Network

MASK = "[MASK]"


def tokenizer_of(file: str, network: Network) -> Any:
    """Read the tokenizer of a network, a file tokenizer.json: an object of the package, with `encode`.

    Raises
    ------
    UsageError
        A file that is missing or damaged, a vocabulary of another size, or the package `tokenizers` is not installed.
    """
    path = Path(file).expanduser()
    if not path.is_file():
        raise UsageError(f"--tokenizer must be a file tokenizer.json, and there is no file {file!r}; name one")
    try:
        import tokenizers
    except ImportError:
        raise UsageError(
            f"--tokenizer {file} needs the package tokenizers, which is not installed; run: pip install "
            f"'forktask[text]'"
        ) from None
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises nothing narrower
        raise UsageError(
            f"--tokenizer must be a file tokenizer.json; {file} cannot be read: {error}; save other forms as one with "
            f"the package tokenizers"
        ) from None
    size, vocabulary = tokenizer.get_vocab_size(), network.token_input.vocabulary
    if size != vocabulary:
        raise UsageError(
            f"--tokenizer must have the {vocabulary} tokens of {network.name!r}, got {size}; use that of the model"
        )
    return tokenizer


def mask_of(tokenizer: Any, default: int) -> int:
    """Return the token in the place of masked ones."""
    found = tokenizer.token_to_id(MASK)
    return default if found is None else found
