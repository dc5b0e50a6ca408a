"""Where gradients of maps are kept, who may add to them, and how they are handed on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ...kernels.convolution import algorithms
from ...networks.layers import Add, BatchNorm, Convolution
from .state import FeatureMap, Lowering
from .units import Unit


def gradient_map(low: Lowering, tensor: str, name: str = "") -> tuple[FeatureMap, bool]:
    """Where a unit writes what it sends back to a tensor, and whether it adds to what is there."""
    present = low.gradients.get(tensor)
    if present is not None:
        others = low.sharers[present.name] - {tensor}
        if others & low.unfinished:
            raise AssertionError(f"the gradient of {tensor!r} is still read by {others & low.unfinished}")
        return present, True
    new = low.map(name or f"{tensor}.gradient", tensor, gradient_halo(low, tensor), "gradient")
    set_gradient(low, tensor, new)
    return new, False


def gradient_halo(low: Lowering, tensor: str) -> int:
    """Halo around a tensor's gradient, for the data gradient of the convolution that made it, or of one that made
    an input of sums, to which the gradient is passed on."""
    unit = low.producer.get(tensor)
    if unit is None or not low.learns[tensor]:
        return 0
    return 0 if unit.activation else gradient_halo_within(low, unit)


def gradient_halo_within(low: Lowering, unit: Unit) -> int:
    """Halo around the gradient before a unit's activation."""
    match unit.layer:
        case Convolution() if unit.shortcut:
            return max(gradient_halo(low, unit.shortcut), _data_gradient_halo(low, unit))
        case Convolution() if low.learns[unit.sources[0]] and not low.is_depthwise(unit.layer):
            return _data_gradient_halo(low, unit)
        case Add():
            return max(gradient_halo(low, name) for name in unit.sources)
        case BatchNorm() if unit.shortcut:
            return gradient_halo(low, unit.shortcut_norm or unit.shortcut)
    return 0


def _data_gradient_halo(low: Lowering, unit: Unit) -> int:
    source, target = low.shapes[unit.sources[0]], low.shapes[unit.target]
    if not low.learns[unit.sources[0]]:
        return 0
    sizes = {"in_height": target[1], "in_width": target[2], "out_height": source[1], "out_width": source[2]}
    return algorithms.required_halo(algorithms.DATA, {**sizes, **low.geometry(unit.layer)})


def set_gradient(low: Lowering, tensor: str, gradient: FeatureMap) -> None:
    low.gradients[tensor] = gradient
    low.sharers.setdefault(gradient.name, set()).add(tensor)


def pass_on(low: Lowering, unit: Unit, tensor: str, gradient: FeatureMap) -> None:
    """A unit hands its output's gradient to one of its inputs unchanged: the buffer is shared where nothing else
    needs it later."""
    if not low.learns[tensor]:
        return
    present = low.gradients.get(tensor)
    name = f"{unit.layer.name}.{tensor}.gradient_sum"
    if present is not None:
        new = low.map(f"{tensor}.gradient_{len(low.sharers)}", tensor, gradient_halo(low, tensor), "gradient")
        low.sum_maps(name, unit, "backward", present, gradient, new)
        low.gradients.pop(tensor)
        set_gradient(low, tensor, new)
        return
    set_gradient(low, tensor, gradient)


@contextlib.contextmanager
def sent_back(low: Lowering, unit: Unit, tensor: str) -> Iterator[FeatureMap]:
    """The map for what a kernel that cannot add sends back to a tensor; what is there already is added after."""
    present = low.gradients.pop(tensor, None)
    target, _ = gradient_map(low, tensor, f"{tensor}.gradient_{unit.layer.name}" if present else "")
    yield target
    if present is not None:
        new = low.map(f"{tensor}.gradient_sum_{unit.layer.name}", tensor, gradient_halo(low, tensor), "gradient")
        low.sum_maps(f"{unit.layer.name}.gradient_sum", unit, "backward", present, target, new)
        low.gradients.pop(tensor)
        set_gradient(low, tensor, new)


@contextlib.contextmanager
def sent_to(low: Lowering, unit: Unit, tensor: str, gradient: FeatureMap) -> Iterator[tuple[FeatureMap, bool]]:
    """The map for what a kernel that reads `gradient` sends back to a tensor, and whether it adds to what is there.

    It does not add in place where the map is still needed: by others, or, as `gradient`, by the unit itself.
    """
    present = low.gradients.get(tensor)
    others = low.sharers[present.name] - {tensor} if present is not None else set()
    if present is not None and (present.name == gradient.name or others & low.unfinished):
        with sent_back(low, unit, tensor) as target:
            yield target, False
    else:
        yield gradient_map(low, tensor)


def masked(low: Lowering, unit: Unit, gradient: FeatureMap) -> FeatureMap:
    """The gradient before a unit's own activation, in a map of its own where there is one."""
    if not unit.activation:
        return gradient
    new = low.map(f"{unit.layer.name}.gradient", unit.target, gradient_halo_within(low, unit), "gradient")
    output = low.maps[unit.target]
    low.elementwise(
        f"{unit.layer.name}.activation_gradient",
        "channels_activation_backward",
        unit,
        "backward",
        new,
        {"gradient": gradient.name, "activations": output.name, "output": new.name},
        {"gradient": gradient, "activations": output, "output": new},
        **gradient.attributes("in"),
        activations_halo=output.halo,
        out_halo=new.halo,
        activation=unit.activation,
        accumulate=0,
    )
    return new
