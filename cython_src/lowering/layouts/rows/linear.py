"""Linear layers, with a bias, an activation or a sum that is joined to them; and the head, whose weights are those of
an embedding."""

from __future__ import annotations

from dataclasses import dataclass

from ....kernels.interface.arguments import ACTIVATIONS
from ....networks.layers import Linear, TiedHead
from ....plan.builder import block_bounds
from ...gradients import pass_on, sent_to
from ...state import Loops, Lowering, repeated
from ...units import Unit
from .blocks import TokenMap, product_blocks, weight_blocks

SIX_LEAST = 256  # inputs and outputs of a layer that `products=bf16x6` is for


@dataclass(frozen=True)
class Part:
    """Weights of a layer, and the features of its input that they multiply."""

    name: str  # by which its loops are called
    weight: str
    bias: str  # "": none
    features: tuple[int, int]


def parts_of(low: Lowering, unit: Unit) -> list[Part]:
    """Return the parts of a layer: one, or two of a head that multiplies more features than the embedding has."""
    layer, features = unit.layer, low.shapes[unit.sources[0]][-1]
    bias = f"{layer.name}.bias" if layer.bias else ""
    if not isinstance(layer, TiedHead):
        return [Part(layer.name, f"{layer.name}.weight", bias, (0, features))]
    tied = layer.tied_parameters()[0]
    width = low.parameter_shapes[tied][1]
    own = Part(f"{layer.name}.dense", f"{layer.name}.dense.weight", "", (width, features))
    return [Part(layer.name, tied, bias, (0, width)), *([own] if features > width else [])]


def _before(low: Lowering, tensor: str) -> tuple[str, dict[str, int]]:
    """Return the buffer with which the gradient is sent past the activation that is joined to the unit that makes a
    tensor, or "", and the kernel's attributes: what stood before a GELU, what a ReLU left."""
    unit = low.producer.get(tensor)
    if not unit or not isinstance(unit.layer, Linear) or not unit.activation:
        return "", {}
    if unit.activation == ACTIVATIONS.index("relu"):
        return low.maps[tensor].name, {"relu": 1}
    return low.kept[f"{unit.layer.name}.before"], {}


def _six(low: Lowering, inputs: int, outputs: int) -> bool:
    """Return whether a layer's products are six of bfloat16 each: the kernels' attribute "bf16x6"."""
    return low.options.products == "bf16x6" and min(inputs, outputs) >= SIX_LEAST


def _given(**attributes: int) -> dict[str, int]:
    """Attributes that are not 0, the default of kernels."""
    return {name: value for name, value in attributes.items() if value}


def linear(low: Lowering, unit: Unit, recomputed: bool) -> None:
    """Append the layer with what is joined to it; in training the values before an activation are kept."""
    source, target = low.maps[unit.sources[0]], low.output_map(unit, recomputed)
    part, *further = parts_of(low, unit)
    operands = {"input": source, "weight": low.parameter(part.weight), "output": target}
    if part.bias:
        operands["bias"] = low.parameter(part.bias)
    if further:
        operands["further_weight"] = low.parameter(further[0].weight)
    if unit.shortcut:
        operands["residual"] = low.maps[unit.shortcut]
    if unit.activation == ACTIVATIONS.index("gelu") and low.options.training:
        operands["before"] = low.keep_beside(unit, "before", target.shape, recomputed)
    six = _six(low, part.features[1], target.features)
    rows, columns = product_blocks(low, target, 2.0 * source.features * target.features * source.rows, six)
    low.append(
        unit,
        repeated(recomputed),
        "linear_forward",
        operands,
        block_bounds(r=rows, c=columns),
        inputs=part.features[1],
        outputs=target.features,
        output_pitch=target.pitch,
        activation=unit.activation,
        **_given(output_offset=target.offset, further_inputs=source.features - part.features[1], bf16x6=int(six)),
    )


def linear_backward(low: Lowering, unit: Unit, gradient: TokenMap) -> None:
    """Append data gradient and weight gradient."""
    if unit.shortcut:
        pass_on(low, unit, unit.shortcut, gradient)
    if low.learns[unit.sources[0]]:
        with sent_to(low, unit, unit.sources[0], gradient) as (target, accumulate):
            for part in parts_of(low, unit):
                _data_gradient(low, unit, part, gradient, target.columns(*part.features), accumulate)
    for part in parts_of(low, unit):
        if any(low.trains(name) for name in (part.weight, part.bias) if name):
            _weight_gradient(low, unit, part, gradient)


def _data_gradient(
    low: Lowering, unit: Unit, part: Part, gradient: TokenMap, target: TokenMap, accumulate: bool
) -> None:
    weight, (before, form) = part.weight, _before(low, unit.sources[0])
    operands = {"gradient": gradient, "weight": weight, "output": target, "before": before}
    six = _six(low, target.features, gradient.features)
    rows, columns = product_blocks(low, target, 2.0 * gradient.features * target.features * target.rows, six)
    low.loop(
        f"{part.name}.data_gradient",
        "linear_backward_data",
        operands,
        block_bounds(r=rows, c=columns),
        unit.layer.name,
        "backward",
        inputs=target.features,
        outputs=gradient.features,
        gradient_pitch=gradient.pitch,
        accumulate=int(accumulate),
        **_given(
            gradient_offset=gradient.offset,
            output_pitch=target.pitch if target.pitch > target.features else 0,
            output_offset=target.offset,
            bf16x6=int(six),
        ),
        **form,
    )


def _weight_gradient(low: Lowering, unit: Unit, part: Part, gradient: TokenMap) -> None:
    """Append partial weight gradients, or a chain of loops that add to one. To the head's first one the embedding,
    whose loops come later, adds its own."""
    name, weight = part.name, part.weight
    source = low.maps[unit.sources[0]].columns(*part.features)
    outputs, inputs = gradient.features, source.features
    six = _six(low, inputs, outputs)
    row_ranges, output_ranges = weight_blocks(low, gradient, 2.0 * outputs * inputs * source.rows, six)
    count = 1 if low.options.chain else len(row_ranges)
    present = low.partials.get(weight)
    count = present[1] if present else count
    operands = {"gradient": gradient, "input": source}
    operands["weights"] = low.partial_gradients(weight, count, (outputs, inputs))
    if part.bias:
        operands["bias"] = low.partial_gradients(part.bias, count, (outputs,))
    low.weight_loops(
        unit,
        name,
        "linear_backward_weights",
        operands,
        [list(block_bounds(r=[r], o=output_ranges)) for r in row_ranges],
        present is not None,
        inputs=inputs,
        outputs=outputs,
        gradient_pitch=gradient.pitch,
        **_given(
            gradient_offset=gradient.offset,
            input_pitch=source.pitch if source.pitch > source.features else 0,
            input_offset=source.offset,
            bf16x6=int(six),
        ),
    )


LOOPS = dict.fromkeys((Linear, TiedHead), Loops(linear, linear_backward, masks=True))
