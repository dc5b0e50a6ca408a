"""Fully connected layers, and the maps that they read as vectors."""

from __future__ import annotations

from ...plan.model import ranges, read, update, write
from .gradients import gradient_map, sent_back
from .state import Lowering, Vector
from .units import Unit

FC_PARTIALS = 4  # partial sums of a fully connected layer's weight gradient


def fully_connected(low: Lowering, unit: Unit) -> None:
    layer = unit.layer
    source, target = features_of(low, unit), low.output_map(unit, False)
    weight, bias = low.parameter(f"{layer.name}.weight"), low.parameter(f"{layer.name}.bias")
    features = source.channels
    blocks = []
    for n in low.image_blocks():
        count = n[1] - n[0]
        accesses = source.read(n), read(weight), read(bias), target.write(n)
        blocks.append(
            (
                {"g0": n[0], "g1": n[1]},
                accesses,
                2.0 * features * layer.out_features * count,
                4.0 * (features + layer.out_features) * count,
            )
        )
    operands = {"input": source.name, "weight": weight, "bias": bias, "output": target.name}
    low.loop(
        layer.name,
        "fc_forward",
        operands,
        blocks,
        unit,
        "forward",
        features=features,
        outputs=layer.out_features,
        lanes=1,
    )


def features_of(low: Lowering, unit: Unit) -> Vector:
    """What a fully connected layer reads; a map with pixels is copied in the order channel, row, column."""
    tensor = unit.sources[0]
    source = low.maps[tensor]
    if isinstance(source, Vector):
        return source
    name = f"{tensor}.flat"
    if name not in low.maps:
        flat = low.maps[name] = low.new_vector(name, source.channels * source.height * source.width)
        low.builder.buffer(name, flat.shape)
        blocks = []
        for n in low.image_blocks():
            size = 8.0 * flat.channels * (n[1] - n[0])
            blocks.append(({"n0": n[0], "n1": n[1]}, (source.read(n), flat.write(n)), 0.0, size))
        low.loop(
            name,
            "channels_flatten",
            {"input": source.name, "output": name},
            blocks,
            unit,
            "forward",
            **source.attributes("in"),
        )
    return low.maps[name]


def fully_connected_backward(low: Lowering, unit: Unit, gradient: Vector) -> None:
    tensor = unit.sources[0]
    if low.learns[tensor] and isinstance(low.maps[tensor], Vector):
        with sent_back(low, unit, tensor) as target:
            data_gradient(low, unit, gradient, target)
    elif low.learns[tensor]:
        flat = low.new_vector(f"{unit.layer.name}.flat_gradient", low.maps[f"{tensor}.flat"].channels)
        low.builder.buffer(flat.name, flat.shape, role="gradient")
        data_gradient(low, unit, gradient, flat)
        spread(low, unit, flat)
    if low.trained(unit):
        weight_gradient(low, unit, gradient)


def data_gradient(low: Lowering, unit: Unit, gradient: Vector, target: Vector) -> None:
    layer = unit.layer
    weight, features = f"{layer.name}.weight", target.channels
    blocks = []
    for n in low.image_blocks():
        count = n[1] - n[0]
        accesses = gradient.read(n), read(weight), target.write(n)
        flops = 2.0 * features * layer.out_features * count
        blocks.append(({"g0": n[0], "g1": n[1]}, accesses, flops, 4.0 * features * count))
    operands = {"gradient": gradient.name, "weight": weight, "output": target.name}
    low.loop(
        f"{layer.name}.data_gradient",
        "fc_backward_data",
        operands,
        blocks,
        unit,
        "backward",
        features=features,
        outputs=layer.out_features,
        lanes=1,
    )


def spread(low: Lowering, unit: Unit, flat: Vector) -> None:
    """The gradient of a flattened map, back in the map's own order."""
    target, accumulate = gradient_map(low, unit.sources[0])
    blocks = []
    size = 4.0 * flat.channels / target.height * (2 + accumulate)
    for n, y, bounds in low.pixels(target):
        accesses = flat.read(n), target.write(n, y, accumulate=accumulate)
        blocks.append((bounds, accesses, 0.0, size * (n[1] - n[0]) * (y[1] - y[0])))
    low.loop(
        f"{unit.layer.name}.flat_gradient",
        "channels_flatten_backward",
        {"gradient": flat.name, "output": target.name},
        blocks,
        unit,
        "backward",
        **target.attributes("out"),
        accumulate=int(accumulate),
    )


def weight_gradient(low: Lowering, unit: Unit, gradient: Vector) -> None:
    layer, b = unit.layer, low.builder
    source = features_of(low, unit)
    features = source.channels
    flops = 2.0 * features * layer.out_features
    groups = low.image_blocks() if low.options.chain else ranges(low.batch, max(1, -(-low.batch // FC_PARTIALS)))
    count = 1 if low.options.chain else len(groups)
    partials = b.buffer(
        f"{layer.name}.partials", (count, layer.out_features, features + 1), role="gradient", carried=count == 1
    )
    for kind in ("weight", "bias"):
        low.partials[f"{layer.name}.{kind}"] = partials, count
    links = [[n] for n in groups] if low.options.chain else [groups]
    for link, part in enumerate(links):
        blocks = []
        for number, n in enumerate(part):
            accesses = (gradient.read(n), source.read(n), (update if link else write)(partials, (number, number + 1)))
            blocks.append(
                (
                    {"partial": number, "g0": n[0], "g1": n[1]},
                    accesses,
                    flops * (n[1] - n[0]),
                    4.0 * features * (n[1] - n[0]),
                )
            )
        low.loop(
            f"{layer.name}.weight_gradient" + (f".{link}" if low.options.chain else ""),
            "fc_backward_weights",
            {"gradient": gradient.name, "input": source.name, "output": partials},
            blocks,
            unit,
            "backward",
            features=features,
            outputs=layer.out_features,
            lanes=1,
            accumulate=int(link > 0),
        )
