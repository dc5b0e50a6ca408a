"""A network from a module of PyTorch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, overload

import numpy as np

from ...cython_src.networks.layers import Network
from .torch_check import Weights, check_reading, gathered, read_module


@overload
def from_torch(
    module: Any,
    example_input: Any,
    *,
    name: str = "",
    mask: int | None = None,
    weights: Literal[False] = False,
    check: bool = True,
) -> Network: ...


@overload
def from_torch(
    module: Any,
    example_input: Any,
    *,
    name: str = "",
    mask: int | None = None,
    weights: Literal[True],
    check: bool = True,
) -> tuple[Network, Weights]: ...


def from_torch(
    module: Any,
    example_input: Any,
    *,
    name: str = "",
    mask: int | None = None,
    weights: bool = False,
    check: bool = True,
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
    check : bool
        Compare loss, gradients, and parameters and statistics after a step with the module's: of two random batches in
        float64 or, of large networks, of one in float32, within ten seconds. False: the module is read unchecked, and
        rows of samples say so.
    weights : bool
        Return its parameters and statistics too, for `initialise(bound, weights=...)`, under the network's names.

    Raises
    ------
    UsageError
        An operation that is no layer: one sentence with the operation, the module's path, and what would do instead.
        PyTorch cannot trace the module, the network computes something else, or it has no kernels (see `lower`).

    Examples
    --------
    >>> network = from_torch(torchvision.models.resnet18(), torch.zeros(1, 3, 224, 224))
    >>> comparison = compare(network, batch=16)
    """
    network, parts = read_module(module, example_input, name, mask)
    if check:
        check_reading(module, network, parts, example_input.shape)
    network = replace(network, unchecked=not check)
    if not weights:
        return network
    return network, {own: array.astype(np.float32) for own, array in gathered(parts, module.state_dict()).items()}
