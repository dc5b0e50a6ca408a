"""Networks by name. A new one is a file of this package and its name in a table here."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from ..errors import UsageError, did_you_mean
from .layers import Network
from .own import is_own, own_network, write_network

# Modules that describe one network: `network(name)`.
SINGLE = ("cifar10_cnn", "lenet5", "starpu_cnn")
# Modules that describe a network for images of any size: `network(name, size, num_classes)`.
FAMILIES = ("resnet18", "preact_resnet18", "resnext29_2x64d", "mobilenet_v1", "mobilenet_v2")
# Modules that describe networks of tokens, each with its SIZES by name: `network(name, **sizes)`.
TOKENS = ("gpt2", "mobilebert")
# Ending of a family's name -> size and number of classes: CIFAR-10; and the ImageNet stem for Tiny ImageNet and for
# ImageNet.
SUFFIXES = {"": (32, 10), "_64": (64, 200), "_224": (224, 1000)}


def network_names(kind: Literal["", "images", "tokens"] = "") -> tuple[str, ...]:
    """Return all names that `get_network` knows, or those of one kind: "images" or "tokens"."""
    images = (*SINGLE, *(family + suffix for family in FAMILIES for suffix in SUFFIXES))
    return {"": (*images, *_sizes()), "images": images, "tokens": tuple(_sizes())}[kind]


@cache
def _sizes() -> dict[str, tuple[str, dict]]:
    """Name of each network of tokens -> its module and its sizes."""
    return {
        name: (module, sizes)
        for module in TOKENS
        for name, sizes in import_module(f".{module}", __package__).SIZES.items()
    }


@cache
def get_network(name: str) -> Network:
    """Return the network called `name`, or the one that a function named `module:function` or `file.py:function` makes.

    Raises
    ------
    UsageError
        No network has this name; or as in `own_network`.
    """
    if is_own(name):
        return own_network(name)
    named = {family + suffix: (family, sizes) for family in FAMILIES for suffix, sizes in SUFFIXES.items()}
    if name in _sizes():
        module, options = _sizes()[name]
        return import_module(f".{module}", __package__).network(name, **options)
    module, sizes = named.get(name, (name, ()))
    if module not in SINGLE + FAMILIES:
        known = network_names()
        raise UsageError(
            f"network must be one of {', '.join(known)}, or module:function or file.py:function of your own; got "
            f"{name!r}{did_you_mean(name, known)}"
        )
    return import_module(f".{module}", __package__).network(name, *sizes)


def named_network(network: Any, folder: Path) -> Any:
    """Return the name by which other processes can make a network again; one that has none is written into a folder."""
    if not isinstance(network, Network):
        return network
    if network.name in network_names() and get_network(network.name) == network:
        return network.name
    return write_network(network, folder)
