"""A network from a module of PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, overload

import numpy as np

from ...cython_src.errors import UsageError, optional
from ...cython_src.networks.layers import Network

EXAMPLES = 2  # samples with which a module is read: that one alone mixes nothing would say little

Weights = dict[str, np.ndarray]


@overload
def from_torch(
    module: Any, example_input: Any, *, name: str = "", mask: int | None = None, weights: Literal[False] = False
) -> Network: ...


@overload
def from_torch(
    module: Any, example_input: Any, *, name: str = "", mask: int | None = None, weights: Literal[True]
) -> tuple[Network, Weights]: ...


def from_torch(
    module: Any, example_input: Any, *, name: str = "", mask: int | None = None, weights: bool = False
) -> Network | tuple[Network, Weights]:
    """Return the network that a module of PyTorch is.

    Parameters
    ----------
    module : torch.nn.Module
        Takes samples and answers with logits, or with something that has them as `logits`. It is read as it trains,
        with its dropout, and not changed.
    example_input : tensor
        Some samples, of which shape and type count: images or vectors of floating point, or tokens.
    name : str
        Of the network; default: the module's class.
    mask : int, optional
        Of a network in which tokens see later ones: the token in the place of masked ones.
    weights : bool
        Return its parameters and statistics too, for `initialise(bound, weights=...)`, under the network's names.

    Raises
    ------
    UsageError
        An operation that is no layer: one sentence with the operation, the module's path, and what would do instead.
        Or PyTorch cannot trace the module.

    Examples
    --------
    >>> network = from_torch(torchvision.models.resnet18(), torch.zeros(1, 3, 224, 224))
    >>> comparison = compare(network, batch=16)
    """
    network, parts = read_module(module, example_input, name, mask)
    if not weights:
        return network
    return network, {own: array.astype(np.float32) for own, array in gathered(parts, module.state_dict()).items()}


def read_module(module: Any, example_input: Any, name: str, mask: int | None) -> tuple[Network, dict[str, Any]]:
    """Return a network and, for each of its parameters and statistics, the elements of the module's that it consists
    of, for `gathered`; as `from_torch`."""
    torch = optional("torch", "from_torch", "peers")
    if not isinstance(module, torch.nn.Module):
        raise UsageError(f"from_torch takes a torch.nn.Module, got {type(module).__name__}; make one")
    samples = torch.as_tensor(example_input)
    if samples.numel() == 0 or samples.ndim not in ((2, 4) if samples.is_floating_point() else (2,)):
        raise UsageError(
            f"example_input of from_torch must be images (samples, channels, height, width), vectors (samples, "
            f"features) or tokens (samples, tokens), got shape {tuple(samples.shape)} of {samples.dtype}; give such"
        )
    if elsewhere := {str(p.device) for p in module.parameters()} - {"cpu"}:
        raise UsageError(f"from_torch reads a module on the CPU, got one on {elsewhere.pop()}; call module.cpu()")
    from .torch_graph import Logits, Reader

    samples = samples[:1].expand(EXAMPLES, *samples.shape[1:]).contiguous()
    training = {part: part.training for part in module.modules()}
    module.train()
    try:
        exported = torch.export.export(Logits(module), (samples,), strict=False)
    except Exception as error:  # of each kind of failure another one
        raise UsageError(
            f"torch.export must trace a module before it can be read, and {type(module).__name__} fails: "
            f"{str(error).strip().partition(chr(10))[0]:.300}; check the shape of example_input, and let no operation "
            f"depend on the samples' values"
        ) from error
    finally:
        for part, was in training.items():
            part.training = was
    reader = Reader(module, exported, samples)
    return reader.read(name or type(module).__name__, mask), reader.weights


def gathered(parts: Mapping[str, Any], tensors: Mapping[str, Any]) -> Weights:
    """Return the parts of a module's tensors that a network's are; a parameter without a tensor is left out."""
    result = {own: (tensors.get(part.source), part.at) for own, part in parts.items()}
    return {own: whole.detach().flatten()[at].numpy() for own, (whole, at) in result.items() if whole is not None}
