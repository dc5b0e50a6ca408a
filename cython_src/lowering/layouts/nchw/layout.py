"""The layouts "nchw16" and "nchw": sixteen images, or pixels, side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from ....kernels.load.load import WIDEST_IMAGE
from ....kernels.maps.nchw import KERNEL, NchwFeatures, NchwMap
from ....kernels.simd.instruction_sets import LANES
from ....networks.layers import Conv2d, Layer, Linear, MaxPool, Network, ReLU
from ... import dense, elementwise
from ...ends import IMAGES
from ...gradients import gradient_map
from ...options import FUSIONS, PlanOptions
from ...state import ImageLayout, Lowering, Maps
from ...units import Unit
from . import convolutions
from .algorithms import CONVOLUTIONS
from .blocks import channel_ranges, group_ranges
from .convolutions import index_before, pixelwise


class Nchw(ImageLayout):
    """Maps are buffers (groups, channels, rows, pitch, lanes); see `NchwMap`.

    What reads a unit's result sends the gradient back past the unit's activation and pooling. A chain of layers has one
    reader for each tensor, so no kernel adds to a gradient.
    """

    fusions = frozenset(FUSIONS)  # those for norms and sums have no meaning here
    ends = IMAGES
    load_kernel = "load_images"
    sample_blocks = staticmethod(group_ranges)
    joint_sgd = True
    loops: ClassVar = {**convolutions.LOOPS, ReLU: elementwise.ACTIVATION, **dense.LOOPS}

    def __init__(self, name: str, lanes: int, conv_options: tuple[str, ...]):
        self.name, self.lanes, self.conv_options = name, lanes, conv_options

    def objections(self, spec: Network, options: PlanOptions) -> Iterator[str]:
        yield from super().objections(spec, options)
        names = ["input", *(layer.name for layer in spec.layers)]
        for before, (name, sources) in zip(names, spec.inputs().items(), strict=False):
            if sources != (before,):
                yield (
                    f"each layer must read the one before it in layout {self.name!r}, {name!r} reads "
                    f"{', '.join(sources)}; use layout 'nhwc'"
                )
        if spec.input_shape[2] > WIDEST_IMAGE:
            yield (
                f"images must be at most {WIDEST_IMAGE} pixels wide in layout {self.name!r}, got "
                f"{spec.input_shape[2]}; use layout 'nhwc'"
            )
        paddings = (2,) if self.lanes == 1 else (0, 1, 2)
        for layer, before, after in spec.shapes():
            if isinstance(layer, Conv2d):
                padding = layer.padding if layer.padding in paddings else paddings[0]
                plain = Conv2d(layer.name, layer.out_channels, KERNEL, padding, after=layer.after)
                if layer != plain or after[1] % 2 or after[2] % 2:
                    yield (
                        f"convolutions must have kernel {KERNEL}, padding {', '.join(map(str, paddings))}, a bias, and "
                        f"a result with even sides in layout {self.name!r}, got {layer} on {before}; "
                        f"use layout 'nhwc'"
                    )
            elif isinstance(layer, MaxPool) and (
                layer != MaxPool(layer.name, 2, after=layer.after) or before[1] % 2 or before[2] % 2
            ):
                yield (
                    f"pooling must have size 2, no overlap, and an input with even sides in layout {self.name!r}, got "
                    f"{layer} on {before}; use layout 'nhwc'"
                )

    def can_join(self, parts: Sequence[Layer], consumers: Mapping[str, Sequence[Layer]]) -> bool:
        """Convolutions take ReLU and pooling together, fully connected layers ReLU, if the reader's kernels send the
        gradient past them."""
        readers = consumers.get(parts[-1].name, ())
        match parts:
            case (Conv2d(), ReLU(), MaxPool()):
                return all(isinstance(reader, Conv2d | Linear) for reader in readers)
            case (Linear(), ReLU()):
                return all(isinstance(reader, Linear) for reader in readers)
        return False

    def update_blocks(self, low: Lowering, outputs: int, row: int) -> list[tuple[int, int]]:
        return channel_ranges(low, outputs)

    def activation(self, low: Lowering, name: str, tensor: str) -> NchwMap:
        shape = low.shapes[tensor]
        padded = [unit.layer.padding for unit in low.readers[tensor] if isinstance(unit.layer, Conv2d)]
        return self._map(low, name, shape, max(padded, default=0))

    def gradient(self, low: Lowering, name: str, tensor: str, before_activation: Unit | None = None) -> NchwMap:
        unit = low.producer[tensor]
        shape, halo = low.shapes[unit.layer.name], 0
        # A data gradient needs a halo; so does the weight gradient in the layout "nchw" where rows are no whole
        # vectors, because it runs on from one row to the next.
        if isinstance(unit.layer, Conv2d):
            runs_on = self.lanes == 1 and shape[2] % LANES
            halo = KERNEL - 1 - unit.layer.padding if low.learns[unit.sources[0]] or runs_on else 0
        return self._map(low, f"{unit.layer.name}.gradient", shape, halo)

    def vector(self, low: Lowering, name: str, length: int) -> NchwFeatures:
        return NchwFeatures(name, low.groups, length, 1, 1, self.lanes, 0, low.batch)

    def _map(self, low: Lowering, name: str, shape: tuple[int, ...], halo: int) -> NchwMap:
        if len(shape) == 1:
            return self.vector(low, name, *shape)
        return NchwMap(name, low.groups, *shape, self.lanes, halo, low.batch)

    def features(self, low: Lowering, unit: Unit) -> NchwMap:
        return low.maps[unit.sources[0]]

    def send_features(self, low: Lowering, unit: Unit, gradient: NchwMap) -> None:
        target, _ = gradient_map(low, unit.sources[0])
        before = low.producer[unit.sources[0]]
        index = index_before(low, unit)
        activation = low.maps[before.target] if before.activation and not index else None
        dense.data_gradient(low, unit, gradient, target, activation=activation, index=index)

    def elementwise(
        self, low: Lowering, unit: Unit, what: str, operation: str, maps: Maps, **attributes: float
    ) -> None:
        pixelwise(low, unit, what, "relu_forward" if operation == "activation" else "relu_backward", maps)


NCHW16_LAYOUT = Nchw("nchw16", LANES, CONVOLUTIONS)
NCHW_LAYOUT = Nchw("nchw", 1, CONVOLUTIONS[:2])
