"""The smallest case that fails as a given one does: layers leave, options go back to their defaults, sizes shrink."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator

from random_networks.cases import Case

from forktask.cython_src.errors import UsageError
from forktask.cython_src.networks.layers import Add, Layer, Network

SMALLER = ("out_channels", "out_features", "features", "kernel", "padding", "stride", "groups", "dilation", "size")


def shrink(case: Case, fails: Callable[[Case], bool], most_tries: int = 400) -> Case:
    """Return the smallest case that is found for which `fails` is true; it is for `case`."""
    tries = 0
    while True:
        for smaller in _smaller(case):
            tries += 1
            if tries > most_tries:
                return case
            if fails(smaller):
                case = smaller
                break
        else:
            return case


def _smaller(case: Case) -> Iterator[Case]:
    network = case.network
    for index in reversed(range(len(network.layers) - 1)):
        yield from _changed(case, layers=_without(network, index))
    for name, value in case.options.items():
        if name not in ("batch", "sequence"):
            yield dataclasses.replace(case, options={k: v for k, v in case.options.items() if k != name})
        elif value > 1 and name == "batch":
            for less in (1, value // 2, value - 1):
                yield dataclasses.replace(case, options={**case.options, name: less})
    for axis, size in enumerate(network.input_shape):
        for less in (1, size // 2, size - 1):
            if network.tokens is None and 0 < less < size:
                shape = (*network.input_shape[:axis], less, *network.input_shape[axis + 1 :])
                yield from _changed(case, input_shape=shape)
    for index, layer in enumerate(network.layers):
        for field in SMALLER:
            value = getattr(layer, field, None)
            if isinstance(value, int) and value > 0:
                for less in {0, 1, value // 2, value - 1} - {value}:
                    with contextlib.suppress(UsageError):
                        changed = dataclasses.replace(layer, **{field: less})
                        layers = (*network.layers[:index], changed, *network.layers[index + 1 :])
                        yield from _changed(case, layers=layers)


def _without(network: Network, index: int) -> tuple[Layer, ...]:
    """Return the layers without one of them; those that read it read what it reads."""
    gone, inputs = network.layers[index], network.inputs()
    source = inputs[gone.name][0]
    layers: list[Layer] = []
    for layer in network.layers:
        if layer is gone:
            continue
        sources = tuple(source if name == gone.name else name for name in inputs[layer.name])
        if isinstance(layer, Add) or getattr(layer, "inputs", ()):
            layer = dataclasses.replace(layer, inputs=sources)
        else:
            before = layers[-1].name if layers else "input"
            layer = dataclasses.replace(layer, after="" if sources[0] == before else sources[0])
        layers.append(layer)
    return tuple(layers)


def _changed(case: Case, **fields) -> Iterator[Case]:
    """Yield the case with a changed network, where that can be made at all."""
    with contextlib.suppress(UsageError):
        yield dataclasses.replace(case, network=dataclasses.replace(case.network, **fields))
