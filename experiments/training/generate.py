"""Text from a network of tokens, one token after the other."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from ...cython_src.errors import UsageError
from ...cython_src.lowering.lower import lower
from ...cython_src.networks.layers import Network
from ...cython_src.networks.registry import get_network
from ..sampling.models import bind_for, make_executor
from .checkpoints import set_arrays
from .decoding import NextToken, can_decode
from .llmc import read_model
from .safetensors import read_safetensors
from .text import BYTES
from .tokenizer import Encoder, Tokenizer
from .weights import LLMC_ENDING, read_weights


def generate(
    network: Network,
    parameters: Mapping[str, np.ndarray],
    prompt: Sequence[int],
    count: int,
    *,
    sequence: int,
    temperature: float = 0.8,
    seed: int = 0,
    model: str = "serial",
    threads: int = 1,
    source: str = "the parameters",
    cache: bool = True,
) -> Iterator[int]:
    """Continue a text.

    Each token comes from the last `sequence` tokens. Keys and values of the tokens before it are kept, so that only its
    own row is computed, as long as the text is no longer than `sequence`; then all places move, and each token takes a
    whole forward pass. Both leave the same bits.

    Parameters
    ----------
    network : Network
        Of tokens.
    parameters : mapping of str to ndarray
    prompt : bytes or sequence of int
        Tokens, one at least; bytes are those of a network of 256 tokens.
    count : int
        Tokens to add.
    sequence : int
        Tokens that the network sees.
    temperature : float
        Divides the logits; 0 takes the most probable token.
    seed : int
    model : str
        Execution model.
    threads : int
    source : str
        What messages call the parameters.
    cache : bool
        Keep keys and values; False computes all tokens anew for each.

    Yields
    ------
    int
        The added tokens.

    Raises
    ------
    UsageError
        A network of images, bytes for a network whose tokens they are not, a prompt that is empty or has tokens of
        another vocabulary, or parameters of another network.
    """
    if network.tokens is None:
        raise UsageError(f"generate takes a network of tokens, got {network.name!r}; use one, such as gpt2_tiny")
    if network.tokens.answers != "next":
        raise UsageError(
            f"generate takes a network that tells the next token, got {network.name!r}; use one, such as gpt2_tiny"
        )
    vocabulary = network.tokens.vocabulary
    if isinstance(prompt, bytes) and vocabulary != BYTES:
        raise UsageError(
            f"a prompt of bytes is for a network of {BYTES} tokens, the bytes; got {network.name!r} of {vocabulary}; "
            f"give tokens"
        )
    if not len(prompt) or not all(0 <= token < vocabulary for token in prompt):
        raise UsageError(f"the prompt must have at least one token, all in [0, {vocabulary}), got {list(prompt)}")
    plan = lower(network, batch=1, sequence=sequence, phase="forward")
    bound = bind_for(model, plan)
    set_arrays(bound.arrays, parameters, plan.attributes["parameters"], source)
    random = np.random.Generator(np.random.PCG64(seed))
    tokens = [*prompt]
    with ExitStack() as stack:
        executor = stack.enter_context(make_executor(model, threads))
        executor.prepare(bound)
        next_token = NextToken(network, bound, model, threads, stack) if cache and can_decode(network, model) else None
        kept = 0  # tokens whose keys and values are there, from the first on
        for _ in range(count):
            seen = tokens[-sequence:]
            bound.arrays["dataset.tokens"][: len(seen)] = seen
            if next_token and 0 < kept == len(seen) - 1:
                next_token.run(kept)
            else:
                executor.run(1)
            kept = len(seen) if len(tokens) <= sequence else 0
            tokens.append(_choose(bound.view("logits")[0, len(seen) - 1], temperature, random.random()))
            yield tokens[-1]


def _choose(logits: np.ndarray, temperature: float, draw: float) -> int:
    """Token at `draw` in [0, 1) of the cumulated probabilities."""
    if not temperature:
        return int(logits.argmax())
    shifted = (logits.astype(np.float64) - logits.max()) / temperature
    cumulated = np.cumsum(np.exp(shifted))
    return min(int(np.searchsorted(cumulated, draw * cumulated[-1], side="right")), len(logits) - 1)


def prompt_of(network: Network, tokenizer: Tokenizer | None, text: str | None, tokens: str | None) -> list[int]:
    """Return the tokens to begin with, from what the command line gives of `--prompt` and `--prompt-tokens`.

    Raises
    ------
    UsageError
        No numbers, no tokenizer where bytes are no tokens, or one that cannot encode the text or tell its end.
    """
    vocabulary = network.token_input.vocabulary
    if tokenizer is None and vocabulary != BYTES:
        raise UsageError(
            f"--tokenizer must be given for {network.name!r}, whose {vocabulary} tokens are no bytes, got none; name "
            f"its files"
        )
    if tokens is not None:
        words = tokens.split(",")
        if not all(word.isascii() and word.isdigit() and len(word) < 10 for word in words):
            raise UsageError(f"--prompt-tokens must be numbers with commas between, got {tokens!r}; such as 15496,11")
        return [int(word) for word in words]
    if tokenizer is None:
        return [*("\n" if text is None else text).encode()]
    if text is not None and not isinstance(tokenizer, Encoder):
        raise UsageError(
            f"--prompt must be encoded, and llm.c's tokenizer file only decodes, got {text!r}; use tokenizer.json, or "
            f"give --prompt-tokens"
        )
    if text is not None:
        return tokenizer.encode(text)
    if tokenizer.end_of_text < 0:
        raise UsageError("--prompt must be given with a tokenizer that has no token for the end of a text, got none")
    return [tokenizer.end_of_text]


def as_text(tokens: bytes) -> str:
    """Bytes as text for a terminal: bytes that are no UTF-8, and control characters, are replacement characters."""
    text = tokens.decode(errors="replace").replace("\r\n", "\n")
    return "".join(c if c in "\n\t" or unicodedata.category(c) != "Cc" else "\ufffd" for c in text)


def read_network(path: Path, name: str = "") -> tuple[Network, dict[str, np.ndarray]]:
    """Return network and parameters of a file that `forktask train` left, or of a model file of llm.c (.bin).

    Parameters
    ----------
    path : path
    name : str
        Name of the network; "" if the file tells it. Files of Hugging Face do not.

    Raises
    ------
    UsageError
        No such file, one that does not tell its network and `name` does not either, or one of another network.
    """
    if not path.is_file():
        inside = sorted(path.glob("parameters-*.safetensors"))
        remedy = f"name {inside[0]}" if inside else "`forktask train` leaves parameters-seed-N.safetensors"
        raise UsageError(
            f"--checkpoint must be a safetensors file, or a model file of llm.c (.bin), and there is no file "
            f"{str(path)!r}; {remedy}"
        )
    if name:
        network = get_network(name)
        return network, read_weights(path, network)
    if path.suffix == LLMC_ENDING:
        parameters, config = read_model(path)
        return config.network, parameters
    parameters, metadata = read_safetensors(path)
    if "network" not in metadata:
        raise UsageError(
            f"{path} must name its network, as the files of `forktask train` do; it does not, so add --network NAME"
        )
    return get_network(metadata["network"]), parameters
