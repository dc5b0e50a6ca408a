"""Text from a network of tokens, one token after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from ...cython_src.errors import UsageError
from ...cython_src.lowering.lower import lower
from ...cython_src.networks.layers import Network
from ...cython_src.networks.registry import get_network
from ..sampling.models import bind_for, make_executor
from .checkpoints import set_arrays
from .safetensors import read_safetensors
from .text import BYTES


def generate(
    network: Network,
    parameters: Mapping[str, np.ndarray],
    prompt: bytes,
    count: int,
    *,
    sequence: int,
    temperature: float = 0.8,
    seed: int = 0,
    model: str = "serial",
    threads: int = 1,
    source: str = "the parameters",
) -> Iterator[int]:
    """Continue a text of bytes.

    Each token comes from a forward pass over the last `sequence` tokens; those of a causal network do not depend on
    what stands after them.

    Parameters
    ----------
    network : Network
        Of 256 tokens, the bytes.
    parameters : mapping of str to ndarray
    prompt : bytes
        One at least.
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

    Yields
    ------
    int
        The added tokens.

    Raises
    ------
    UsageError
        A network whose tokens are no bytes, an empty prompt, or parameters of another network.
    """
    if network.tokens is None or network.tokens.vocabulary != BYTES:
        raise UsageError(f"generate takes a network of {BYTES} tokens, the bytes; got {network.name!r}")
    if not prompt:
        raise UsageError("the prompt must have at least one byte, got none")
    plan = lower(network, batch=1, sequence=sequence, phase="forward")
    bound = bind_for(model, plan)
    set_arrays(bound.arrays, parameters, plan.attributes["parameters"], source)
    random = np.random.Generator(np.random.PCG64(seed))
    tokens = [*prompt]
    with make_executor(model, threads) as executor:
        executor.prepare(bound)
        for _ in range(count):
            seen = tokens[-sequence:]
            bound.arrays["dataset.tokens"][: len(seen)] = seen
            executor.run(1)
            tokens.append(_choose(bound.view("logits")[0, len(seen) - 1], temperature, random.random()))
            yield tokens[-1]


def _choose(logits: np.ndarray, temperature: float, draw: float) -> int:
    """Token at `draw` in [0, 1) of the cumulated probabilities."""
    if not temperature:
        return int(logits.argmax())
    shifted = (logits.astype(np.float64) - logits.max()) / temperature
    cumulated = np.cumsum(np.exp(shifted))
    return min(int(np.searchsorted(cumulated, draw * cumulated[-1], side="right")), len(logits) - 1)


def as_text(tokens: bytes) -> str:
    """Bytes as text; what is no UTF-8 is shown as the replacement character."""
    return tokens.decode(errors="replace")


def read_network(path: Path) -> tuple[Network, dict[str, np.ndarray]]:
    """Return network and parameters of a file that `forktask train` left.

    Raises
    ------
    UsageError
        No such file, or one that does not name its network.
    """
    if not path.is_file():
        raise UsageError(
            f"--checkpoint must be a safetensors file, and there is no file {str(path)!r}; `forktask train` leaves "
            f"parameters-seed-N.safetensors"
        )
    parameters, metadata = read_safetensors(path)
    if "network" not in metadata:
        raise UsageError(f"{path} must name its network, as the files of `forktask train` do; it does not")
    return get_network(metadata["network"]), parameters
