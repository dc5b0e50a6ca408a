"""Text for networks of tokens: bytes of a file or of text that comes with Python, random tokens; and masked places of
it for networks that learn those."""

from __future__ import annotations

import codecs
import platform
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...cython_src.binding.storage import aligned_empty
from ...cython_src.errors import UsageError, optional
from ...cython_src.kernels.loss.loss import IGNORED
from ...cython_src.networks.layers import Network
from ...cython_src.networks.registry import get_network, network_names
from ...cython_src.reading import home_expanded, read_regular
from ..subjects.subject import MASKED
from ..tables.numbers import plural
from ..tables.progress import say
from .dataset import SPLIT_SEED, check_spec, synthetic_count

MOST_BYTES = 4 << 30  # of a text
SPECS = "text, text:FILE, synthetic:N"
BYTES = 256
LLM_C_TOKENS = {20240520: "<u2", 20240801: "<u4"}  # magic number -> tokens: of GPT-2, of Llama 3
LLM_C_HEADER_BYTES = 1024  # magic number, version, number of tokens
TEXT_LOOKED_AT = 1 << 20  # bytes that tell a text from tokens
MASK_OF_TEN, RANDOM_OF_TEN = 8, 1  # of ten masked places: that hold the mask, that hold any token; the rest are as was
MASKED_TOGETHER = 4096  # samples
MASK = "[MASK]"  # of a tokenizer, in the place of masked tokens
HELD_BACK = 0.1  # of the samples for validation, and as many for the test: the end of the text


@dataclass(frozen=True, eq=False, repr=False)
class Text:
    """Samples of consecutive tokens and the split."""

    name: str  # the spec it was loaded from, without the folder
    description: str  # one line for tables and figures
    # int32, shape (samples * sequence + 1,), 64-byte aligned; sample s begins at token s * sequence; the target of
    # each token is the next one
    tokens: np.ndarray
    sequence: int
    # train, valid, test: int32, one dimension: numbers of samples; disjoint
    train: np.ndarray
    valid: np.ndarray
    test: np.ndarray
    smoke_test: bool = False  # nothing can be learnt from it

    def __repr__(self) -> str:
        return f"<data {self.name!r}: {self.num_samples} samples of {self.sequence} tokens>"

    def fit(self, network: Network) -> Network:
        """Return the network itself: `load_text` refused the texts that it cannot read."""
        return network

    @property
    def num_samples(self) -> int:
        return (len(self.tokens) - 1) // self.sequence

    @property
    def answers(self) -> int:
        """Answers that a network gives to a sample."""
        return self.sequence

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """Buffer of a plan -> the array that it is."""
        return {"dataset.tokens": self.tokens}


@dataclass(frozen=True, eq=False, repr=False)
class LabelledText(Text):
    """Samples with labels of their own.

    Attributes
    ----------
    tokens : int32, shape (samples * sequence,), 64-byte aligned
        What the network sees.
    labels : int32, shape (samples * answers,), 64-byte aligned
        A class of each sample; or the token of each masked place, IGNORED at the others.
    original : int32, shape (samples * sequence,)
        The text where places are masked, else empty.
    """

    labels: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))
    original: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))
    vocabulary: int = 0
    mask: int = -1

    @property
    def num_samples(self) -> int:
        return len(self.tokens) // self.sequence

    @property
    def answers(self) -> int:
        """Answers that a network gives to a sample: of a masked one those at masked places."""
        return masked_places(self.sequence) if len(self.original) else 1

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """Buffer of a plan -> the array that it is."""
        return {"dataset.tokens": self.tokens, "dataset.labels": self.labels}

    def start_epoch(self, seed: int, epoch: int) -> None:
        """Mask other places of the training samples, in the arrays themselves. They depend on seed, epoch and the
        sample's number alone; those of validation and test never change."""
        if len(self.original):
            self._mask(self.train, seed, epoch)

    def _mask(self, samples: np.ndarray, *seed: int) -> None:
        tokens, labels, original = (a.reshape(-1, self.sequence) for a in (self.tokens, self.labels, self.original))
        count = masked_places(self.sequence)
        for start in range(0, self.num_samples, MASKED_TOGETHER):
            chosen = samples[(samples >= start) & (samples < start + MASKED_TOGETHER)]
            # Raw bits of PCG64 are the same in every version of NumPy.
            bits = np.random.PCG64([*seed, start]).random_raw(2 * MASKED_TOGETHER * self.sequence)
            places, kinds = bits.reshape(MASKED_TOGETHER, 2, self.sequence)[chosen - start].swapaxes(0, 1)
            places = np.argsort(places, axis=1, kind="stable")[:, :count]
            kinds = np.take_along_axis(kinds, places, axis=1)
            right = np.take_along_axis(original[chosen], places, axis=1)
            kind, any_token = kinds % 10, kinds // 10 % self.vocabulary
            shown = np.where(kind < MASK_OF_TEN + RANDOM_OF_TEN, any_token, right)
            shown = np.where(kind < MASK_OF_TEN, self.mask, shown)
            rows = chosen[:, None]
            tokens[chosen], labels[chosen] = original[chosen], IGNORED
            tokens[rows, places], labels[rows, places] = shown, right


def tokenizer_of(file: str, network: Network) -> Any:
    """Read the tokenizer of a network, a file tokenizer.json: an object of the package, with `encode`. Raises
    `UsageError`: a file that is missing or damaged, a vocabulary of another size, or the package `tokenizers` is not
    installed."""
    path = home_expanded(file)
    if not path.is_file():
        raise UsageError(f"--tokenizer must be a file tokenizer.json, and there is no file {file!r}; name one")
    tokenizers = optional("tokenizers", f"--tokenizer {file}", "text")
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


def masked_places(sequence: int) -> int:
    """Return how many places of a sample are masked."""
    return max(1, round(MASKED * sequence))


def check_text(spec: str, network: Network) -> None:
    """Raise `UsageError` unless a text's name has one of the forms that a network can learn from."""
    check_spec(spec, SPECS)
    if network.token_input.answers == "class" and not spec.startswith("synthetic:"):
        raise UsageError(
            f"data of the classifier {network.name!r} must be synthetic:N, samples with random classes; got {spec!r}"
        )


def load_text(spec: str, network: Network, sequence: int, tokenizer: str = "") -> Text:
    """Load a text, or make random tokens, as a network takes them: with the next token of each, with some places
    masked, or with random classes.

    Parameters
    ----------
    spec : str
        "text" for the reference texts of the language that come with Python, "text:FILE" for a file; "synthetic:N" for
        N random training samples.
    network : Network
        Whose vocabulary has all tokens; for "text" without a tokenizer one for each byte, and no other but the mask.
    sequence : int
        Tokens of a sample.
    tokenizer : str
        File that encodes "text".

    Raises
    ------
    UsageError
        Unknown spec, a file that cannot be read or is too short, or a vocabulary of other tokens.
    """
    check_text(spec, network)
    answers = network.token_input.answers
    if tokenizer and spec.partition(":")[0] != "text":
        raise UsageError(f"--tokenizer encodes --data text or text:FILE, got --data {spec}; leave it out")
    encoder = tokenizer_of(tokenizer, network) if tokenizer else None
    text = _load_text(spec, network, sequence, encoder, tokenizer)
    if answers == "next":
        return text
    count = text.num_samples
    labels = np.random.default_rng(SPLIT_SEED).integers(network.num_classes, size=count)
    numbers = count * sequence if answers == "masked" else count
    sizes = {"tokens": count * sequence, "labels": numbers}
    values = {name: aligned_empty((size,), np.int32) for name, size in sizes.items()}
    values["tokens"][:] = text.tokens[:-1]
    values["labels"][:] = labels if answers == "class" else IGNORED
    same = {name: getattr(text, name) for name in ("name", "description", "train", "valid", "test", "smoke_test")}
    if answers == "class":
        return LabelledText(**same, **values, sequence=sequence)
    vocabulary, mask = network.token_input.vocabulary, network.token_input.mask
    if encoder is not None and encoder.token_to_id(MASK) is not None:
        mask = encoder.token_to_id(MASK)
    labelled = LabelledText(
        **same, **values, sequence=sequence, original=text.tokens[:-1], vocabulary=vocabulary, mask=mask
    )
    labelled._mask(np.arange(count), SPLIT_SEED)
    return labelled


def _load_text(spec: str, network: Network, sequence: int, encoder: Any, files: str) -> Text:
    """Load the text itself, encoded by the tokenizer of these files if there is one."""
    kind, argument = check_spec(spec, SPECS)
    if kind == "synthetic":
        return _random_tokens(argument, network, sequence)
    content, title = _texts_of_python()
    if argument:
        path = home_expanded(argument)
        content, title = read_regular(path, "text for --data text:FILE", MOST_BYTES), path.name
        stored = _stored_tokens(content, title, network.token_input.vocabulary)
        if stored is not None and encoder is not None:
            raise UsageError(f"{title} must be text for --tokenizer, got tokens; leave --tokenizer out")
        if stored is not None:
            return _cut(spec, f"{title}, {len(stored):,} tokens", stored, sequence)
        if nuls := content.count(0):
            say(f"{title} has {plural(nuls, 'NUL byte')} in {len(content)}, as no text has; each is read as it is")
    # Other tokens than bytes have meanings of their own: what is trained on bytes could not be continued with them.
    if encoder is None and not _reads_bytes(network):
        answers = network.token_input.answers
        others = [other for name in network_names("tokens") if _reads_bytes(other := get_network(name))]
        fitting = [other.name for other in others if other.token_input.answers == answers]
        raise UsageError(
            f"--data text without --tokenizer is bytes, which are the tokens of {' and '.join(fitting)}, got "
            f"{network.name!r} with {network.token_input.vocabulary} tokens; add its --tokenizer, or use a network of "
            f"bytes"
        )
    if encoder is not None:
        tokens = np.array(encoder.encode(content.decode(errors="replace"), add_special_tokens=False).ids, np.int32)
        return _cut(spec, f"{title}, {len(tokens):,} tokens of {files}", tokens, sequence)
    return _cut(spec, f"{title}, {len(content):,} bytes", np.frombuffer(content, np.uint8), sequence)


def _stored_tokens(content: bytes, title: str, vocabulary: int) -> np.ndarray | None:
    """Return the tokens of a file of llm.c, which begins with a magic number, or of nanoGPT, which ends in .bin and has
    tokens of 16 bits alone; None if it is another file. Raises `UsageError`: it is cut off, or has tokens that the
    network does not know."""
    header = np.frombuffer(content[:LLM_C_HEADER_BYTES], "<i4", count=len(content[:LLM_C_HEADER_BYTES]) // 4)
    if len(header) >= 3 and int(header[0]) in LLM_C_TOKENS:
        begin, dtype = LLM_C_HEADER_BYTES, np.dtype(LLM_C_TOKENS[int(header[0])])
        expected = begin + int(header[2]) * dtype.itemsize
    elif title.endswith(".bin") and not _is_utf8(content):
        begin, dtype = 0, np.dtype("<u2")
        expected = len(content) + len(content) % 2
    else:
        return None
    if len(content) != expected:
        raise UsageError(f"{title} must have {expected} bytes of tokens, got {len(content)}; write it again")
    tokens = np.frombuffer(content, dtype, offset=begin)
    if len(tokens) and (largest := int(tokens.max())) >= vocabulary:
        raise UsageError(
            f"tokens of {title} must be below the vocabulary of the network, {vocabulary}, got {largest}; use a "
            f"network of that vocabulary, such as gpt2"
        )
    return tokens


def _is_utf8(content: bytes) -> bool:
    begin = content[:TEXT_LOOKED_AT]
    try:
        codecs.getincrementaldecoder("utf-8")().decode(begin)
    except UnicodeDecodeError:
        return False
    return b"\0" not in begin


def _reads_bytes(network: Network) -> bool:
    """Whether the tokens of a network are the bytes and, where places are masked, the mask."""
    tokens = network.token_input
    return tokens.vocabulary == BYTES + (tokens.answers == "masked")


def _cut(spec: str, description: str, result: np.ndarray, sequence: int) -> Text:
    """Cut tokens into whole samples; what remains at the end is left out."""
    count = (len(result) - 1) // sequence
    held_back = max(1, int(HELD_BACK * count))
    if count < 2 * held_back + 1:
        raise UsageError(
            f"--data {spec} must have at least three samples of {sequence} tokens and one token more, got "
            f"{len(result)}; use a longer text, or a shorter --sequence"
        )
    tokens = aligned_empty((count * sequence + 1,), np.int32)
    tokens[:] = result[: len(tokens)]
    return _split(spec.partition(":")[0], description, tokens, sequence, held_back)


def _split(name: str, description: str, tokens: np.ndarray, sequence: int, held_back: int, **further: bool) -> Text:
    """The last samples are held back for the test, those before them for validation."""
    indices = np.arange((len(tokens) - 1) // sequence, dtype=np.int32)
    parts = np.split(indices, [len(indices) - 2 * held_back, len(indices) - held_back])
    return Text(name, description, tokens, sequence, *parts, **further)


def _texts_of_python() -> tuple[bytes, str]:
    """The topics of `help()`, by name."""
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise UsageError(
            "--data text takes the topics of Python's help(), and this Python has none; name a file: --data text:FILE"
        ) from None
    text = "\n\n".join(topics[name] for name in sorted(topics))
    return text.encode(), f"topics of help() in Python {platform.python_version()}"


def _random_tokens(argument: str, network: Network, sequence: int) -> Text:
    count = synthetic_count(argument)
    held_back = max(count // 10, 1)
    tokens = aligned_empty(((count + 2 * held_back) * sequence + 1,), np.int32)
    tokens[:] = np.random.default_rng(SPLIT_SEED).integers(network.token_input.vocabulary, size=len(tokens))
    description = f"random tokens, {count} samples (nothing can be learnt from it)"
    return _split("synthetic", description, tokens, sequence, held_back, smoke_test=True)
