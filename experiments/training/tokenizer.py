"""Tokenizers in the user's own files: GPT-2's byte-pair encoding and WordPiece by the package `tokenizers`, and llm.c's
file, which only decodes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from ...cython_src.errors import UsageError
from ...cython_src.networks.layers import Network
from .llmc import read_tokenizer as read_llmc_tokenizer

FORMS = "tokenizer.json, vocab.json,merges.txt (byte-pair encoding), vocab.txt (WordPiece) or llm.c's file (.bin)"
ENDS_OF_TEXT = ("<|endoftext|>", "[SEP]")
MASK, UNKNOWN = "[MASK]", "[UNK]"


class Tokenizer(Protocol):
    """What turns tokens into text."""

    @property
    def size(self) -> int:
        """Tokens of the vocabulary."""

    @property
    def end_of_text(self) -> int:
        """Token between texts; -1: none."""

    def decode(self, tokens: Sequence[int]) -> bytes:
        """Return the text of tokens."""


class Encoder:
    """A tokenizer of the package `tokenizers`.

    Parameters
    ----------
    encoding : tokenizers.Tokenizer
    source : str
        What messages call it.
    """

    def __init__(self, encoding: Any, source: str):
        self._encoding, self.source = encoding, source

    @property
    def size(self) -> int:
        """Tokens of the vocabulary, added ones among them."""
        return self._encoding.get_vocab_size()

    @property
    def end_of_text(self) -> int:
        """Token between texts; -1: none."""
        found = [self._encoding.token_to_id(name) for name in ENDS_OF_TEXT]
        return next((token for token in found if token is not None), -1)

    @property
    def mask(self) -> int:
        """Token in the place of masked ones; -1: none."""
        token = self._encoding.token_to_id(MASK)
        return -1 if token is None else token

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, without any before or after it."""
        return self._encoding.encode(text, add_special_tokens=False).ids

    def decode(self, tokens: Sequence[int]) -> bytes:
        """Return the text of tokens, in UTF-8.

        Raises
        ------
        UsageError
            A token that is not in the vocabulary.
        """
        wrong = [token for token in tokens if not 0 <= token < self.size]
        if wrong:
            raise UsageError(f"tokens must be in [0, {self.size}), got {wrong[0]}; use the tokenizer of the model")
        return self._encoding.decode([*tokens], skip_special_tokens=False).encode()


def read_tokenizer(files: str) -> Tokenizer:
    """Read a tokenizer.

    Parameters
    ----------
    files : str
        A file, or two with a comma between; see `FORMS`.

    Raises
    ------
    UsageError
        A file that is missing, damaged or of no known form, or the package `tokenizers` is not installed.
    """
    paths = [Path(name).expanduser() for name in files.split(",")]
    for path in paths:
        if not path.is_file():
            raise UsageError(f"--tokenizer must be {FORMS}, and there is no file {str(path)!r}; name one")
    endings = [path.suffix for path in paths]
    if endings == [".bin"]:
        return read_llmc_tokenizer(paths[0])
    makers = {(".json",): _from_json, (".json", ".txt"): _byte_pairs, (".txt",): _word_pieces}
    if tuple(endings) not in makers:
        raise UsageError(f"--tokenizer must be {FORMS}, got {files!r}; name files with these endings")
    try:
        import tokenizers
    except ImportError:
        raise UsageError(
            f"--tokenizer {files} needs the package tokenizers, which is not installed; run: pip install "
            f"'forktask[text]'"
        ) from None
    try:
        encoding = makers[tuple(endings)](tokenizers, [str(path) for path in paths])
    except Exception as error:  # the package raises nothing narrower
        raise UsageError(f"--tokenizer must be {FORMS}; {files} cannot be read: {error}") from None
    return Encoder(encoding, files)


def _from_json(tokenizers: Any, paths: list[str]) -> Any:
    return tokenizers.Tokenizer.from_file(paths[0])


def _byte_pairs(tokenizers: Any, paths: list[str]) -> Any:
    """GPT-2's encoding: bytes, of which no text is without tokens; words with the space before them."""
    encoding = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(*paths))
    encoding.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    encoding.decoder = tokenizers.decoders.ByteLevel()
    return encoding


def _word_pieces(tokenizers: Any, paths: list[str]) -> Any:
    """BERT's encoding, of lower case where no token has a letter of upper case, but for those in brackets."""
    vocabulary = tokenizers.models.WordPiece.read_file(paths[0])
    if UNKNOWN not in vocabulary:
        raise ValueError(f"it has no token {UNKNOWN}")
    encoding = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token=UNKNOWN))
    lower = all(token == token.lower() for token in vocabulary if not token.startswith("["))
    encoding.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=lower)
    encoding.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    encoding.decoder = tokenizers.decoders.WordPiece()
    return encoding


def tokenizer_of(files: str, network: Network) -> Tokenizer:
    """Read the tokenizer of a network.

    Raises
    ------
    UsageError
        As `read_tokenizer`; or the vocabularies have other sizes.
    """
    tokenizer, vocabulary = read_tokenizer(files), network.token_input.vocabulary
    if tokenizer.size != vocabulary:
        raise UsageError(
            f"--tokenizer must have the {vocabulary} tokens of {network.name!r}, got {tokenizer.size}; use that of the "
            f"model"
        )
    return tokenizer
