"""Pooling over windows and over whole maps."""

from __future__ import annotations

from ...networks.layers import MaxPool
from ...plan.model import Access, read, write
from .block_sizes import Window
from .gradients import gradient_map, sent_to
from .state import FeatureMap, Lowering, phase_of
from .units import Unit


def pool(low: Lowering, unit: Unit, again: bool) -> None:
    layer = unit.layer
    source, target = low.maps[unit.sources[0]], low.output_map(unit, again)
    window = low.window(layer, low.shapes[unit.sources[0]], low.shapes[unit.target])
    largest = isinstance(layer, MaxPool)
    operands = {"input": source.name, "output": target.name}
    if largest:
        operands["index"] = index(low, unit)
    blocks = []
    size = 4.0 * (source.height * source.width + 1.25 * target.height * target.width) * target.pitch
    for n, y, bounds in low.pixels(target):
        accesses = [clipped_window(low, source, n, window, y), target.write(n, y)]
        if largest:
            accesses.append(write(operands["index"], n, y))
        blocks.append((bounds, accesses, 0.0, size * (n[1] - n[0]) * (y[1] - y[0]) / target.height))
    low.loop(
        f"{layer.name}.again" if again else layer.name,
        "channels_max_pool" if largest else "channels_average_pool",
        operands,
        blocks,
        unit,
        phase_of(again),
        **source.attributes("in"),
        **target.attributes("out"),
        kernel=layer.size,
        stride=window.stride,
        padding=window.padding,
    )


def index(low: Lowering, unit: Unit) -> str:
    channels, height, width = low.shapes[unit.target]
    shape = (low.batch, height, width, FeatureMap("", 1, channels, height, width).pitch)
    return low.builder.buffer(f"{unit.target}.index", shape, "uint8")


def clipped_window(low: Lowering, source: FeatureMap, images, window: Window, rows) -> Access:
    """What a window needs of the interior: pooling treats the border itself."""
    first, last = window.input_rows(rows)
    return source.read(images, (max(first, 0), min(last, source.height)))


def pool_backward(low: Lowering, unit: Unit, gradient: FeatureMap) -> None:
    layer = unit.layer
    largest = isinstance(layer, MaxPool)
    window = low.window(layer, low.shapes[unit.sources[0]], low.shapes[unit.target])
    with sent_to(low, unit, unit.sources[0], gradient) as (target, accumulate):
        operands = {"gradient": gradient.name, "output": target.name}
        if largest:
            operands["index"] = f"{unit.target}.index"
        blocks = []
        size = 4.0 * (target.height * target.width + 1.25 * gradient.height * gradient.width) * target.pitch
        for n, y, bounds in low.pixels(target):
            first, last = window.gradient_rows(y)
            rows = max(first, 0), min(last, gradient.height)
            accesses = [target.write(n, y, accumulate=accumulate)]
            if rows[0] < rows[1]:
                accesses.append(gradient.read(n, rows))
                if largest:
                    accesses.append(read(operands["index"], n, rows))
            blocks.append((bounds, accesses, 0.0, size * (n[1] - n[0]) * (y[1] - y[0]) / target.height))
        low.loop(
            f"{layer.name}.gradient",
            "channels_max_pool_backward" if largest else "channels_average_pool_backward",
            operands,
            blocks,
            unit,
            "backward",
            **gradient.attributes("in"),
            **target.attributes("out"),
            kernel=layer.size,
            stride=window.stride,
            padding=window.padding,
            accumulate=int(accumulate),
        )


def global_pool(low: Lowering, unit: Unit) -> None:
    source = low.maps[unit.sources[0]]
    target = low.output_map(unit, False)
    size = 4.0 * source.height * source.width * source.pitch
    blocks = [
        (
            {"n0": n[0], "n1": n[1], "c0": 0, "c1": source.channels},
            (source.read(n), target.write(n)),
            0.0,
            size * (n[1] - n[0]),
        )
        for n in low.image_blocks()
    ]
    low.loop(
        unit.layer.name,
        "channels_global_pool",
        {"input": source.name, "output": target.name},
        blocks,
        unit,
        "forward",
        **source.attributes("in"),
    )


def global_pool_backward(low: Lowering, unit: Unit, gradient: FeatureMap) -> None:
    target, accumulate = gradient_map(low, unit.sources[0])
    blocks = []
    size = 4.0 * target.height * target.width * target.pitch
    for n, y, bounds in low.pixels(target):
        accesses = gradient.read(n), target.write(n, y, accumulate=accumulate)
        blocks.append((bounds, accesses, 0.0, size * (n[1] - n[0]) * (y[1] - y[0]) / target.height))
    operands = {"gradient": gradient.name, "output": target.name}
    low.loop(
        f"{unit.layer.name}.gradient",
        "channels_global_pool_backward",
        operands,
        blocks,
        unit,
        "backward",
        **target.attributes("out"),
        accumulate=int(accumulate),
    )
