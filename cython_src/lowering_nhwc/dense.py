"""Fully connected layers, whose inputs have no pixels."""

from __future__ import annotations

from ..plan import ranges, read, update, write
from .state import Lowering, rows_of
from .units import Unit

FC_PARTIALS = 4  # partial sums of a fully connected layer's weight gradient


def fully_connected(low: Lowering, unit: Unit) -> None:
    layer = unit.layer
    source, features = low.vector(unit.sources[0])
    weight, bias = low.parameter(f"{layer.name}.weight"), low.parameter(f"{layer.name}.bias")
    output = low.builder.buffer(unit.target, (low.batch, layer.out_features, 1))
    low.vectors[unit.target] = output, layer.out_features
    low.aliases[unit.target] = rows_of(output)
    blocks = []
    for n in low.image_blocks():
        count = n[1] - n[0]
        accesses = read(source, n), read(weight), read(bias), write(output, n)
        blocks.append(({"g0": n[0], "g1": n[1]}, accesses, 2.0 * features * layer.out_features * count,
                       4.0 * (features + layer.out_features) * count))  # fmt: skip
    low.loop(layer.name, "fc_forward", {"input": source, "weight": weight, "bias": bias, "output": output}, blocks, unit,
        "forward", features=features, outputs=layer.out_features, lanes=1,
    )  # fmt: skip


def fully_connected_backward(low: Lowering, unit: Unit, gradient: str) -> None:
    layer, b = unit.layer, low.builder
    source, features = low.vectors[unit.sources[0]]
    shape = {"features": features, "outputs": layer.out_features, "lanes": 1}
    flops = 2.0 * features * layer.out_features
    if low.learns[unit.sources[0]]:
        target = b.buffer(f"{unit.sources[0]}.gradient", (low.batch, features, 1), role="gradient")
        low.gradients[unit.sources[0]] = target
        weight = f"{layer.name}.weight"
        blocks = []
        for n in low.image_blocks():
            accesses = read(gradient, n), read(weight), write(target, n)
            blocks.append(
                (
                    {"g0": n[0], "g1": n[1]},
                    accesses,
                    flops * (n[1] - n[0]),
                    4.0 * features * (n[1] - n[0]),
                )
            )
        operands = {"gradient": gradient, "weight": weight, "output": target}
        low.loop(
            f"{layer.name}.data_gradient", "fc_backward_data", operands, blocks, unit, "backward", **shape
        )
    if not low.trained(unit):
        return
    groups = (
        low.image_blocks() if low.options.chain else ranges(low.batch, max(1, -(-low.batch // FC_PARTIALS)))
    )
    count = 1 if low.options.chain else len(groups)
    partials = b.buffer(f"{layer.name}.partials", (count, layer.out_features, features + 1), role="gradient",
                        carried=count == 1)  # fmt: skip
    for kind in ("weight", "bias"):
        low.partials[f"{layer.name}.{kind}"] = partials, count
    links = [[n] for n in groups] if low.options.chain else [groups]
    for link, part in enumerate(links):
        blocks = []
        for number, n in enumerate(part):
            accesses = (
                read(gradient, n),
                read(source, n),
                (update if link else write)(partials, (number, number + 1)),
            )
            blocks.append(({"partial": number, "g0": n[0], "g1": n[1]}, accesses, flops * (n[1] - n[0]),
                           4.0 * features * (n[1] - n[0])))  # fmt: skip
        low.loop(f"{layer.name}.weight_gradient" + (f".{link}" if low.options.chain else ""), "fc_backward_weights",
            {"gradient": gradient, "input": source, "output": partials}, blocks, unit, "backward", **shape,
            accumulate=int(link > 0),
        )  # fmt: skip
