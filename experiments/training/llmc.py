"""The binary files of llm.c: models, debug states, token files and tokenizers.

Each file begins with 256 integers of 4 bytes, little-endian: a number that names the format, its version, and sizes;
those not used are 0. llm.c pads the vocabulary with rows of zeros. The rows have no meaning: they are dropped when a
file is read and are zeros in what is written.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ...cython_src.errors import UsageError
from ...cython_src.networks import gpt2
from ...cython_src.networks.layers import Attention, Embedding, LayerNorm, Network
from ...cython_src.reading import open_regular
from ..machine.disturbance import read_memory
from ..sampling.files import write_atomically

HEADER_INTS = 256
HEADER_BYTES = 4 * HEADER_INTS
PADDING = 128  # llm.c rounds the vocabulary up to a multiple
MAX_TOKEN_BYTES = 255
MAX_INT32 = 2**31 - 1
FIRST_LAYER = "h.0."


@dataclass(frozen=True)
class _Format:
    """Title of a kind of file, and the first two numbers of such a file."""

    title: str
    magic: int
    version: int


MODEL = _Format("model file", 20240326, 3)
DEBUG_STATE = _Format("debug state", 20240327, 2)
TOKENIZER = _Format("tokenizer file", 20240328, 2)
TOKENS = _Format("token file", 20240520, 1)
_TITLES = {form.magic: form.title for form in (MODEL, DEBUG_STATE, TOKENIZER, TOKENS)}


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of a GPT-2 in llm.c's files.

    Attributes
    ----------
    positions, vocabulary, num_layers, heads, features : int
        As in `networks.gpt2`.
    padded_vocabulary : int
        Rows of the token embedding in the file; 0 stands for the next multiple of 128.

    Raises
    ------
    UsageError
        A size below 1 or above what 4 bytes hold, features that heads do not divide, or a padded vocabulary below the
        vocabulary.
    """

    positions: int
    vocabulary: int
    num_layers: int
    heads: int
    features: int
    padded_vocabulary: int = 0

    def __post_init__(self) -> None:
        if not self.padded_vocabulary:
            object.__setattr__(self, "padded_vocabulary", -(-self.vocabulary // PADDING) * PADDING)
        _check_config(self)

    @property
    def sizes(self) -> dict[str, int]:
        """The arguments of `networks.gpt2.network`."""
        return {name: value for name, value in vars(self).items() if name != "padded_vocabulary"}

    @property
    def num_values(self) -> int:
        """Numbers in a file, padding included; does not take time or memory that grow with the sizes."""
        once, layer, last = self._shapes()
        repeated = self.num_layers * sum(map(math.prod, layer.values()))
        return repeated + sum(math.prod(shape) for part in (once, last) for shape in part.values())

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield name and shape of each parameter in the order of the files; the first has the padded rows."""
        once, layer, last = self._shapes()
        yield from once.items()
        for name, shape in layer.items():
            for number in range(self.num_layers):
                yield f"h.{number}.{name}", shape
        yield from last.items()

    def _shapes(self) -> tuple[dict[str, tuple[int, ...]], ...]:
        """Parameters before the layers, of a layer, and after them: as the network has them with one layer."""
        before: dict[str, tuple[int, ...]] = {}
        layer: dict[str, tuple[int, ...]] = {}
        after: dict[str, tuple[int, ...]] = {}
        one = gpt2.network("one layer", **{**self.sizes, "num_layers": 1}).parameter_shapes()
        for name, shape in one.items():
            if name.startswith(FIRST_LAYER):
                layer[name.removeprefix(FIRST_LAYER)] = shape
            else:
                (after if layer else before)[name] = shape
        return before | {"wte.weight": (self.padded_vocabulary, self.features)}, layer, after

    @property
    def network(self) -> Network:
        """The network of these sizes, with the name of a shipped one where there is one."""
        names = [name for name, sizes in gpt2.SIZES.items() if sizes == self.sizes]
        return gpt2.network(names[0] if names else "gpt2 of other sizes", **self.sizes)


@dataclass(frozen=True, eq=False)
class DebugState:
    """One step of a model, with which llm.c compares its own.

    Attributes
    ----------
    tokens, targets : int32, shape (batch, sequence)
    logits : float32, shape (batch, sequence, vocabulary)
    loss : float32
    gradients : dict of str to float32 ndarray
        By the names of `networks.gpt2`, in its shapes.
    """

    tokens: np.ndarray
    targets: np.ndarray
    logits: np.ndarray
    loss: np.float32
    gradients: dict[str, np.ndarray]


@dataclass(frozen=True)
class Tokenizer:
    """The bytes of each token; enough to decode, not to encode.

    Attributes
    ----------
    tokens : tuple of bytes
    end_of_text : int
        The token between texts.
    """

    tokens: tuple[bytes, ...]
    end_of_text: int

    @property
    def size(self) -> int:
        """Tokens of the vocabulary."""
        return len(self.tokens)

    def decode(self, tokens: Sequence[int]) -> bytes:
        """Return the bytes of tokens.

        Raises
        ------
        UsageError
            A token that is not in the vocabulary.
        """
        wrong = [token for token in tokens if not 0 <= token < len(self.tokens)]
        if wrong:
            raise UsageError(
                f"tokens must be in [0, {len(self.tokens)}), got {wrong[0]}; use the tokenizer of the model"
            )
        return b"".join(self.tokens[token] for token in tokens)


def config_of(network: Network) -> ModelConfig:
    """Return the sizes of a GPT-2.

    Raises
    ------
    UsageError
        The network is no GPT-2.
    """
    embedding, heads = network.layers[0], {layer.heads for layer in network.layers if isinstance(layer, Attention)}
    if network.tokens is not None and isinstance(embedding, Embedding) and len(heads) == 1:
        norms = sum(isinstance(layer, LayerNorm) for layer in network.layers)
        tokens = network.tokens
        config = ModelConfig(tokens.positions, tokens.vocabulary, max(norms // 2, 1), heads.pop(), embedding.features)
        if network.layers == config.network.layers:
            return config
    raise UsageError(f"llm.c's files are of GPT-2 networks, such as gpt2, and {network.name!r} is none; use one")


def read_model(path: Path | str) -> tuple[dict[str, np.ndarray], ModelConfig]:
    """Read a model.

    Returns
    -------
    parameters : dict of str to float32 ndarray
        By the names of `networks.gpt2`, in its shapes; parts of one array.
    config : ModelConfig

    Raises
    ------
    UsageError
        A file that cannot be read, is of another format or version, or whose sizes contradict each other or its length.
    """
    with _opened(path, MODEL) as (file, size, header):
        names = ("positions", "vocabulary", "num_layers", "heads", "features", "padded_vocabulary")
        sizes = dict(zip(names, map(int, header[2 : 2 + len(names)]), strict=True))
        if not sizes["padded_vocabulary"]:
            raise UsageError(f"{path} must have a padded vocabulary at byte 28, got 0; write it again as version 3")
        try:
            config = ModelConfig(**sizes)
        except UsageError as error:
            raise UsageError(f"the header of {path} is damaged: {error}") from None
        _check_size(path, size, HEADER_BYTES + 4 * config.num_values)
        return _read_parameters(path, file, config), config


def write_model(path: Path | str, parameters: Mapping[str, np.ndarray], config: ModelConfig) -> None:
    """Write a model, as a whole or not at all.

    Raises
    ------
    UsageError
        A parameter that is missing, of another shape or not float32, or a file that cannot be written.
    """
    sizes = (config.positions, config.vocabulary, config.num_layers, config.heads, config.features)
    header = _header(MODEL, *sizes, config.padded_vocabulary)
    write_atomically(path, header, *_parameter_parts(parameters, config))


def read_debug_state(path: Path | str, config: ModelConfig) -> DebugState:
    """Read a debug state.

    Parameters
    ----------
    path : path
    config : ModelConfig
        Sizes of the model that it belongs to, which the file does not tell.

    Raises
    ------
    UsageError
        As `read_model`, a state of another model, or a token outside the vocabulary.
    """
    with _opened(path, DEBUG_STATE) as (file, size, header):
        batch, sequence = map(int, header[2:4])
        if not (batch >= 1 and 1 <= sequence <= config.positions):
            raise UsageError(
                f"the debug state {path} must have a batch of at least 1 and a sequence in [1, {config.positions}], "
                f"got {batch} and {sequence}; give the sizes of its model"
            )
        rows, vocabulary = batch * sequence, config.vocabulary
        _check_size(path, size, HEADER_BYTES + 4 * (rows * (2 + vocabulary) + 1 + config.num_values))
        tokens, targets = (
            _read_array(path, file, "<i4", rows).reshape(batch, sequence).astype(np.int32, copy=False) for _ in range(2)
        )
        _check_tokens(tokens, targets, vocabulary, f"the debug state {path}")
        logits = _read_array(path, file, "<f4", rows * vocabulary).reshape(batch, sequence, vocabulary)
        loss = np.float32(_read_array(path, file, "<f4", 1)[0])
        return DebugState(tokens, targets, logits, loss, _read_parameters(path, file, config))


def write_debug_state(path: Path | str, state: DebugState, config: ModelConfig) -> None:
    """Write a debug state, as a whole or not at all.

    Raises
    ------
    UsageError
        Shapes or types that do not belong to the model, or a file that cannot be written.
    """
    shape = state.tokens.shape
    if len(shape) != 2 or not shape[0] or not 1 <= shape[1] <= config.positions or state.targets.shape != shape:
        raise UsageError(
            f"tokens and targets of a debug state must have one shape (batch, sequence up to {config.positions}), got "
            f"{shape} and {state.targets.shape}; give those of one step"
        )
    _check_tokens(state.tokens, state.targets, config.vocabulary, "a debug state")
    if state.logits.shape != (*shape, config.vocabulary) or state.logits.dtype != np.float32:
        raise UsageError(
            f"logits of a debug state must be float32 of shape {(*shape, config.vocabulary)}, got {state.logits.dtype} "
            f"of shape {state.logits.shape}; leave out the padding"
        )
    integers = [np.ascontiguousarray(array, "<i4") for array in (state.tokens, state.targets)]
    numbers = [np.ascontiguousarray(state.logits, "<f4"), np.array([state.loss], "<f4")]
    parts = _parameter_parts(state.gradients, config)
    write_atomically(path, _header(DEBUG_STATE, *shape), *integers, *numbers, *parts)


def read_tokens(path: Path | str) -> np.ndarray:
    """Read a token file: uint16, one dimension.

    Raises
    ------
    UsageError
        As `read_model`.
    """
    with _opened(path, TOKENS) as (file, size, header):
        count = int(header[2])
        if count < 1:
            raise UsageError(
                f"the token file {path} must have at least one token, got {count} at byte 8; write it again"
            )
        _check_size(path, size, HEADER_BYTES + 2 * count)
        return _read_array(path, file, "<u2", count)


def write_tokens(path: Path | str, tokens: Sequence[int] | np.ndarray) -> None:
    """Write a token file, as a whole or not at all.

    Raises
    ------
    UsageError
        No tokens, too many, or such as two bytes do not hold.
    """
    array = np.asarray(tokens)
    if array.ndim != 1 or not 1 <= array.size <= MAX_INT32 or array.dtype.kind not in "iu":
        raise UsageError(
            f"tokens must be integers in one dimension, 1 to {MAX_INT32} of them, got {array.dtype} of shape "
            f"{array.shape}; convert them"
        )
    if array.min() < 0 or array.max() > 0xFFFF:
        raise UsageError(f"tokens of a token file must be in [0, 65536), got {array.min()} to {array.max()}; use fewer")
    write_atomically(path, _header(TOKENS, array.size), np.ascontiguousarray(array, "<u2"))


def read_tokenizer(path: Path | str) -> Tokenizer:
    """Read a tokenizer file.

    Raises
    ------
    UsageError
        As `read_model`, or a token without bytes.
    """
    with _opened(path, TOKENIZER, unsigned=True) as (file, size, header):
        count, end_of_text = map(int, header[2:4])
        if not 0 <= end_of_text < count:
            raise UsageError(
                f"the token at the end of texts must be one of the {count} tokens of {path}, got {end_of_text} at byte "
                f"12; write the file again"
            )
        least, most = (HEADER_BYTES + count * (1 + length) for length in (1, MAX_TOKEN_BYTES))
        if not least <= size <= most:
            raise UsageError(
                f"{path} must have {least} to {most} bytes with {count} tokens, got {size}; it is damaged, write it "
                f"again"
            )
        _check_memory(path, size)
        content = file.read(size - HEADER_BYTES)
    tokens, at = [], 0
    for number in range(count):
        length = content[at] if at < len(content) else 0
        if not length or at + 1 + length > len(content):
            raise UsageError(
                f"token {number} at byte {HEADER_BYTES + at} of {path} must have a length of at least 1 and as many "
                f"bytes, got length {length} and {max(len(content) - at - 1, 0)} bytes to the end; it is damaged, "
                f"write it again"
            )
        tokens.append(content[at + 1 : at + 1 + length])
        at += 1 + length
    _check_size(path, size, HEADER_BYTES + at)
    return Tokenizer(tuple(tokens), end_of_text)


def write_tokenizer(path: Path | str, tokenizer: Tokenizer) -> None:
    """Write a tokenizer file, as a whole or not at all.

    Raises
    ------
    UsageError
        A token without bytes or of more than 255, or a token at the end of texts that is none of them.
    """
    wrong = [token for token in tokenizer.tokens if not 1 <= len(token) <= MAX_TOKEN_BYTES]
    if wrong:
        raise UsageError(
            f"tokens of a tokenizer file must have 1 to {MAX_TOKEN_BYTES} bytes, got one of {len(wrong[0])}; leave it "
            f"out"
        )
    count = len(tokenizer.tokens)
    if not 0 <= tokenizer.end_of_text < count:
        raise UsageError(
            f"the token at the end of texts must be in [0, {count}), got {tokenizer.end_of_text}; give one of them"
        )
    parts = b"".join(bytes([len(token)]) + token for token in tokenizer.tokens)
    write_atomically(path, _header(TOKENIZER, count, tokenizer.end_of_text), parts)


def _check_config(config: ModelConfig) -> None:
    """Raise `UsageError` for sizes that no model has."""
    for name, value in vars(config).items():
        if not 1 <= value <= MAX_INT32:
            raise UsageError(f"{name} must be in [1, {MAX_INT32}], got {value}; give the sizes of a model")
    if config.features % config.heads:
        raise UsageError(
            f"features must be a multiple of heads, got {config.features} and {config.heads}; give the sizes of a model"
        )
    if config.padded_vocabulary < config.vocabulary:
        raise UsageError(
            f"padded_vocabulary must be at least the vocabulary, {config.vocabulary}, got {config.padded_vocabulary}; "
            f"round it up"
        )


def _header(form: _Format, *sizes: int) -> np.ndarray:
    header = np.zeros(HEADER_INTS, "<i4")
    header[: 2 + len(sizes)] = (form.magic, form.version, *sizes)
    return header


@contextmanager
def _opened(path: Path | str, form: _Format, unsigned: bool = False) -> Iterator[tuple[BinaryIO, int, Any]]:
    """Open a file, check what it is, and give it with its size and header."""
    with open_regular(path, f"{form.title} of llm.c") as (file, size):
        content = file.read(HEADER_BYTES)
        if len(content) < HEADER_BYTES:
            raise UsageError(
                f"{path} must have a header of {HEADER_BYTES} bytes, got a file of {len(content)}; name a {form.title} "
                f"of llm.c"
            )
        header = np.frombuffer(content, "<u4" if unsigned else "<i4")
        if header[0] != form.magic:
            found = _TITLES.get(int(header[0]), "no file of llm.c")
            raise UsageError(
                f"{path} must begin with {form.magic}, as each {form.title} of llm.c, got {header[0]}, {found}; name a "
                f"{form.title}"
            )
        if header[1] != form.version:
            raise UsageError(
                f"{path} must be a {form.title} of version {form.version}, got {header[1]} at byte 4; write it again "
                f"with that version"
            )
        yield file, size, header


def _check_size(path: Path | str, size: int, wanted: int) -> None:
    """Raise `UsageError` unless a file is as long as its header says and fits in memory."""
    if size != wanted:
        state = "truncated" if size < wanted else "too long"
        raise UsageError(f"{path} must have {wanted} bytes by its header, got {size}: it is {state}; fetch it again")
    _check_memory(path, size)


def _check_memory(path: Path | str, needed: int) -> None:
    free = read_memory()["available_bytes"]
    if free is not None and needed > free:
        raise UsageError(
            f"{path} must fit in the free memory, {free / 2**30:.1f} GiB, got {needed / 2**30:.1f} GiB; free some"
        )


def _check_tokens(tokens: np.ndarray, targets: np.ndarray, vocabulary: int, what: str) -> None:
    for array in (tokens, targets):
        if array.dtype.kind not in "iu" or array.min() < 0 or array.max() >= vocabulary:
            raise UsageError(
                f"tokens and targets of {what} must be integers in [0, {vocabulary}), got {array.min()} to "
                f"{array.max()}; give the sizes of its model"
            )


def _read_array(path: Path | str, file: BinaryIO, dtype: str, count: int) -> np.ndarray:
    array = np.fromfile(file, dtype, count)
    if len(array) != count:
        raise UsageError(f"{path} became shorter while it was read; read it again once it is written")
    return array


def _read_parameters(path: Path | str, file: BinaryIO, config: ModelConfig) -> dict[str, np.ndarray]:
    """Read the parameters, or their gradients, of a whole model."""
    values = _read_array(path, file, "<f4", config.num_values)
    parameters, at = {}, 0
    for name, shape in config.tensors():
        parameters[name] = values[at : at + math.prod(shape)].reshape(shape)
        at += math.prod(shape)
    parameters["wte.weight"] = parameters["wte.weight"][: config.vocabulary]
    return parameters


def _parameter_parts(parameters: Mapping[str, np.ndarray], config: ModelConfig) -> list[np.ndarray]:
    """Arrays to write one after the other, the padding among them."""
    parts = []
    for name, shape in config.tensors():
        padding = config.padded_vocabulary - config.vocabulary if name == "wte.weight" else 0
        wanted = (shape[0] - padding, *shape[1:])
        if name not in parameters:
            raise UsageError(f"a model of llm.c must have {name!r}, and it is missing; is it of another network?")
        array = np.asarray(parameters[name])
        if array.shape != wanted or array.dtype != np.float32:
            raise UsageError(
                f"{name!r} must be float32 of shape {wanted}, got {array.dtype} of shape {array.shape}; is it of "
                f"another network?"
            )
        parts.append(np.ascontiguousarray(array, "<f4"))
        if padding:
            parts.append(np.zeros((padding, *shape[1:]), "<f4"))
    further = sorted(set(parameters) - {name for name, _ in config.tensors()})
    if further:
        raise UsageError(f"a model of llm.c has no {further[0]!r}, and it was given; is it of another network?")
    return parts
