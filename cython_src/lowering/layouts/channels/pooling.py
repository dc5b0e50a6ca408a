"""Pooling over windows and over whole maps."""

from __future__ import annotations

from ....networks.layers import MaxPool
from ....plan.model import Access, read, write
from ...gradients import gradient_map, sent_to
from ...state import Lowering, loop_name, phase_of
from ...units import Unit
from .block_sizes import Window
from .maps import FeatureMap, window
from .pixels import image_blocks, pixel_blocks


def pool(low: Lowering, unit: Unit, again: bool) -> None:
    layer = unit.layer
    source, target = low.maps[unit.sources[0]], low.output_map(unit, again)
    windows = window(layer, low.shapes[unit.sources[0]], low.shapes[unit.target])
    largest = isinstance(layer, MaxPool)
    operands = {"input": source.name, "output": target.name}
    if largest:
        operands["index"] = index(low, unit)
    blocks = []
    size = 4.0 * (source.height * source.width + 1.25 * target.height * target.width) * target.pitch
    for n, y, bounds in pixel_blocks(low, target):
        accesses = [clipped_window(source, n, windows, y), target.write(n, y)]
        if largest:
            accesses.append(write(operands["index"], n, y))
        blocks.append((bounds, accesses, 0.0, size * (n[1] - n[0]) * (y[1] - y[0]) / target.height))
    low.loop(
        loop_name(unit, again),
        "channels_max_pool" if largest else "channels_average_pool",
        operands,
        blocks,
        unit.layer.name,
        phase_of(again),
        **source.attributes("in"),
        **target.attributes("out"),
        kernel=layer.size,
        stride=windows.stride,
        padding=windows.padding,
    )


def index(low: Lowering, unit: Unit) -> str:
    channels, height, width = low.shapes[unit.target]
    shape = (low.batch, height, width, FeatureMap("", 1, channels, height, width).pitch)
    return low.builder.buffer(f"{unit.target}.index", shape, "uint8")


def clipped_window(source: FeatureMap, images, windows: Window, rows) -> Access:
    """Return the access to the rows of the interior that windows read; pooling kernels treat the border themselves."""
    first, last = windows.input_rows(rows)
    return source.read(images, (max(first, 0), min(last, source.height)))


def pool_backward(low: Lowering, unit: Unit, gradient: FeatureMap) -> None:
    layer = unit.layer
    largest = isinstance(layer, MaxPool)
    windows = window(layer, low.shapes[unit.sources[0]], low.shapes[unit.target])
    with sent_to(low, unit, unit.sources[0], gradient) as (target, accumulate):
        operands = {"gradient": gradient.name, "output": target.name}
        if largest:
            operands["index"] = f"{unit.target}.index"
        blocks = []
        size = 4.0 * (target.height * target.width + 1.25 * gradient.height * gradient.width) * target.pitch
        for n, y, bounds in pixel_blocks(low, target):
            first, last = windows.gradient_rows(y)
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
            unit.layer.name,
            "backward",
            **gradient.attributes("in"),
            **target.attributes("out"),
            kernel=layer.size,
            stride=windows.stride,
            padding=windows.padding,
            accumulate=int(accumulate),
        )


def global_pool(low: Lowering, unit: Unit, again: bool) -> None:
    source = low.maps[unit.sources[0]]
    target = low.output_map(unit, again)
    size = 4.0 * source.height * source.width * source.pitch
    blocks = [
        (
            {"n0": n[0], "n1": n[1], "c0": 0, "c1": source.channels},
            (source.read(n), target.write(n)),
            0.0,
            size * (n[1] - n[0]),
        )
        for n in image_blocks(low)
    ]
    low.loop(
        unit.layer.name,
        "channels_global_pool",
        {"input": source.name, "output": target.name},
        blocks,
        unit.layer.name,
        "forward",
        **source.attributes("in"),
    )


def global_pool_backward(low: Lowering, unit: Unit, gradient: FeatureMap) -> None:
    target, accumulate = gradient_map(low, unit.sources[0])
    blocks = []
    size = 4.0 * target.height * target.width * target.pitch
    for n, y, bounds in pixel_blocks(low, target):
        accesses = gradient.read(n), target.write(n, y, accumulate=accumulate)
        blocks.append((bounds, accesses, 0.0, size * (n[1] - n[0]) * (y[1] - y[0]) / target.height))
    operands = {"gradient": gradient.name, "output": target.name}
    low.loop(
        f"{unit.layer.name}.gradient",
        "channels_global_pool_backward",
        operands,
        blocks,
        unit.layer.name,
        "backward",
        **target.attributes("out"),
        accumulate=int(accumulate),
    )
