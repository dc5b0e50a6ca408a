"""Tokenizers in the user's own files, by the package `tokenizers`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...cython_src.errors import UsageError
from ...cython_src.networks.layers import Network

FORMS = "tokenizer.json, vocab.json,merges.txt (byte-pair encoding) or vocab.txt (WordPiece)"
MASK = "[MASK]"


def tokenizer_of(files: str, network: Network) -> Any:
    """Read the tokenizer of a network: an object of the package, with `encode`.

    Files are one, or two with a comma between; see `FORMS`. WordPiece is of lower case where no token has a letter of
    upper case, but for those in brackets.

    Raises
    ------
    UsageError
        A file that is missing, damaged or of no known form, vocabularies of other sizes, or the package `tokenizers` is
        not installed.
    """
    paths = files.split(",")
    for path in paths:
        if not Path(path).expanduser().is_file():
            raise UsageError(f"--tokenizer must be {FORMS}, and there is no file {path!r}; name one")
    paths = [str(Path(path).expanduser()) for path in paths]
    form = [Path(path).suffix for path in paths]
    if form not in ([".json"], [".json", ".txt"], [".txt"]):
        raise UsageError(f"--tokenizer must be {FORMS}, got {files!r}; name files with these endings")
    try:
        import tokenizers
    except ImportError:
        raise UsageError(
            f"--tokenizer {files} needs the package tokenizers, which is not installed; run: pip install "
            f"'forktask[text]'"
        ) from None
    try:
        if form == [".json"]:
            tokenizer = tokenizers.Tokenizer.from_file(*paths)
        elif form == [".json", ".txt"]:
            tokenizer = tokenizers.ByteLevelBPETokenizer.from_file(*paths)
        else:
            words = [word for word in Path(paths[0]).read_text("utf-8").splitlines() if not word.startswith("[")]
            lower = all(word == word.lower() for word in words)
            tokenizer = tokenizers.BertWordPieceTokenizer(paths[0], lowercase=lower)
    except Exception as error:  # the package raises nothing narrower
        raise UsageError(f"--tokenizer must be {FORMS}; {files} cannot be read: {error}") from None
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
