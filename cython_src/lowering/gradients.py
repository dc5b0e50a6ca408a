"""Where gradients of tensors are kept, who may add to them, and how they are handed on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from .state import Lowering, TensorMap
from .units import Unit


def gradient_map(low: Lowering, tensor: str) -> tuple[TensorMap, bool]:
    """Return where a unit writes what it sends back to a tensor, and whether it adds to what is there."""
    present = low.gradients.get(tensor)
    if present is not None:
        others = low.sharers[present.name] - {tensor}
        if others & low.unfinished:
            raise AssertionError(f"the gradient of {tensor!r} is still read by {others & low.unfinished}")
        return present, True
    return new_gradient(low, tensor, f"{tensor}.gradient"), False


def new_gradient(low: Lowering, tensor: str, name: str) -> TensorMap:
    """Declare a map of this name as the gradient of a tensor."""
    new = low.keep(low.layout.gradient(low, name, tensor), "gradient")
    set_gradient(low, tensor, new)
    return new


def set_gradient(low: Lowering, tensor: str, gradient: TensorMap) -> None:
    """Note that a map is the gradient of a tensor, perhaps of others too."""
    low.gradients[tensor] = gradient
    low.sharers.setdefault(gradient.name, set()).add(tensor)


def add_gradients(low: Lowering, unit: Unit, tensor: str, loop: str, name: str, parts: tuple[TensorMap, ...]) -> None:
    """Append the sum of two parts of a tensor's gradient, in a map of its own."""
    new = low.keep(low.layout.gradient(low, name, tensor), "gradient")
    maps = {"first": parts[0], "second": parts[1], "output": new}
    low.layout.elementwise(low, unit, loop, "add", maps, activation=0)
    set_gradient(low, tensor, new)


def pass_on(low: Lowering, unit: Unit, tensor: str, gradient: TensorMap) -> None:
    """Hand the gradient of a unit's output to one of its inputs unchanged: the buffer is shared where nothing else
    needs it later."""
    if not low.learns[tensor]:
        return
    present = low.gradients.get(tensor)
    if present is None:
        set_gradient(low, tensor, gradient)
        return
    name = f"{tensor}.gradient_{len(low.sharers)}"
    add_gradients(low, unit, tensor, f"{tensor}.gradient_sum", name, (present, gradient))


@contextlib.contextmanager
def sent_back(low: Lowering, unit: Unit, tensor: str) -> Iterator[TensorMap]:
    """Give the map for what a kernel that cannot add sends back to a tensor; what is there already is added after."""
    present = low.gradients.pop(tensor, None)
    target = new_gradient(low, tensor, f"{tensor}.gradient_{unit.layer.name}" if present else f"{tensor}.gradient")
    yield target
    if present is not None:
        name = f"{tensor}.gradient_sum_{unit.layer.name}"
        add_gradients(low, unit, tensor, "gradient_sum", name, (present, target))


@contextlib.contextmanager
def sent_to(low: Lowering, unit: Unit, tensor: str, gradient: TensorMap) -> Iterator[tuple[TensorMap, bool]]:
    """Give the map for what a kernel that reads `gradient` sends back to a tensor, and whether it adds to that map.

    It does not add in place where the map is still needed: by others, or, as `gradient`, by the unit itself.
    """
    present = low.gradients.get(tensor)
    others = low.sharers[present.name] - {tensor} if present is not None else set()
    if present is not None and (present.name == gradient.name or others & low.unfinished):
        with sent_back(low, unit, tensor) as target:
            yield target, False
    else:
        yield gradient_map(low, tensor)


def before_activation(low: Lowering, unit: Unit) -> TensorMap:
    """Return the gradient that a unit's loops backward take: that before its own activation, past which a loop
    appended here sends it unless the unit's kernels do, or those of its readers have done so (`Loops.masks`)."""
    gradient = low.gradients[unit.target]
    if not unit.activation or low.layout.loops[type(unit.layer)].masks:
        return gradient
    name = unit.layer.name
    new = low.keep(low.layout.gradient(low, f"{name}.gradient", unit.target, before_activation=unit), "gradient")
    maps = {"gradient": gradient, "activations": low.maps[unit.target], "output": new}
    own = {"activation": unit.activation, "accumulate": 0}
    low.layout.elementwise(low, unit, "activation_gradient", "activation_backward", maps, **own)
    return new
