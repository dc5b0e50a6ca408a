"""What all parts of a lowering share: maps, buffers, names, blocks, and the loops without windows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ...binding import kernel_table
from ...errors import UsageError
from ...kernels.maps.channels import ChannelsMap, statistics_shape
from ...networks.layers import BatchNorm, Convolution, Dropout, FullyConnected, Layer, MaxPool, NetworkSpec
from ...plan.model import Access, Block, PlanBuilder, block_grid, ranges, read, update, write
from ..granularity import Granularity
from . import block_sizes
from .block_sizes import Window
from .units import Unit, join_layers


@dataclass(frozen=True)
class FeatureMap(ChannelsMap):
    """A `ChannelsMap` that declares accesses to itself."""

    def box(self, images: tuple[int, int], rows: tuple[int, int], channels: tuple[int, int] | None = None):
        """Region: images, physical rows, all columns, channels (all of them where none are given)."""
        if channels is None or channels == (0, self.channels):
            return (images, rows)
        return (images, rows, (0, self.columns), self.channel_box(*channels))

    def read(self, images, rows=None, channels=None) -> Access:
        """Read interior rows."""
        first, last = rows or (0, self.height)
        return read(self.name, *self.box(images, (first + self.halo, last + self.halo), channels))

    def read_window(self, images, window: Window, rows: tuple[int, int], channels=None) -> Access:
        """Read what a window needs for its output rows, halo included."""
        first, last = window.input_rows(rows)
        first, last = max(first, -self.halo), min(last, self.height + self.halo)
        return read(self.name, *self.box(images, (first + self.halo, last + self.halo), channels))

    def write(self, images, rows=None, channels=None, accumulate: bool = False) -> Access:
        """Write interior rows and the halo beside them; or add to the interior."""
        first, last = rows or (0, self.height)
        if accumulate:
            return update(self.name, *self.box(images, (first + self.halo, last + self.halo), channels))
        return write(self.name, *self.box(images, self.written_rows(first, last), channels))


class Vector(FeatureMap):
    """Features without pixels, (batch, length, 1): a map of one pixel for kernels that treat each element alone."""

    @property
    def pitch(self) -> int:
        return self.channels

    @property
    def shape(self) -> tuple[int, int, int]:
        return (self.batch, self.channels, 1)

    def box(self, images, rows, channels=None):
        return (images,)

    def natural(self) -> Callable:
        return lambda arrays: arrays[self.name].reshape(self.batch, self.channels)


@dataclass(frozen=True)
class ChannelOptions:
    """Arguments of `lowering.lower` that concern this layout; explained there."""

    batch: int
    phase: str
    granularity: Granularity
    chain: bool
    fusion: frozenset[str]
    conv: str
    optimizer: str
    momentum: float
    weight_decay: float
    betas: tuple[float, float]
    eps: float
    label_smoothing: float
    clip_norm: float
    frozen: tuple[str, ...]
    recompute: bool
    seed: int
    num_images: int
    num_batches: int
    num_iterations_logged: int
    num_learning_rates: int
    prefix: str

    @property
    def training(self) -> bool:
        return self.phase == "train"


@dataclass
class Lowering:
    """State of one lowering; the methods append loops in plan order."""

    spec: NetworkSpec
    options: ChannelOptions
    builder: PlanBuilder
    maps: dict[str, FeatureMap] = field(default_factory=dict)  # that are kept, by tensor
    gradients: dict[str, FeatureMap] = field(default_factory=dict)
    sharers: dict[str, set[str]] = field(default_factory=dict)  # gradient's buffer -> tensors that it belongs to
    unfinished: set[str] = field(default_factory=set)  # tensors whose producer has not run backward yet
    partials: dict[str, tuple[str, int]] = field(default_factory=dict)  # parameter -> partial gradients
    gradient_sums: dict[str, str] = field(
        default_factory=dict
    )  # norm -> partial sums of its gradient, if taken already
    aliases: dict[str, Callable] = field(default_factory=dict)

    def __post_init__(self):
        self.shapes = {layer.name: shape for layer, _, shape in self.spec.shapes()}
        self.shapes["input"] = self.spec.input_shape
        self.units = join_layers(self.spec, self.options.fusion)
        self.producer = {unit.target: unit for unit in self.units}
        self.readers: dict[str, list[Unit]] = {}
        for unit in self.units:
            for name in unit.inputs:
                self.readers.setdefault(name, []).append(unit)
        self.parameter_shapes = self.spec.parameter_shapes()
        self.statistic_shapes = self.spec.statistic_shapes()
        for prefix in self.options.frozen:
            if not any(name.startswith(f"{prefix}.") for name in self.parameter_shapes):
                raise UsageError(f"frozen must name layers with parameters of {self.spec.name!r}, got {prefix!r}")
        self.learns: dict[str, bool] = {"input": False}  # tensor -> whether a parameter before it is trained
        for unit in self.units:
            self.learns[unit.target] = self.trained(unit) or any(self.learns[name] for name in unit.inputs)
        for unit in self.units:
            if isinstance(unit.layer, Convolution) and self.is_depthwise(unit.layer):
                self.join_norms(unit)

    def join_norms(self, unit: Unit) -> None:
        """Decide what of the norms before and after a depthwise convolution its own loops do."""
        fusion, options = self.options.fusion, self.options
        before = self.producer.get(unit.sources[0])
        alone = self.readers[unit.sources[0]] == [unit]
        after = self.readers.get(unit.target, [])
        unit.joins_backward = (
            "depthwise" in fusion
            and options.training
            and not options.chain
            and alone
            and len(after) == 1
            and isinstance(after[0].layer, BatchNorm)
            and not after[0].shortcut
            and after[0].applied
            and not unit.layer.bias
            and not unit.activation
            and self.trained(unit)
            and self.learns[unit.sources[0]]
        )
        if before and isinstance(before.layer, BatchNorm) and not before.shortcut and alone and "normalise" in fusion:
            unit.normalises = unit.joins_backward or not options.training
            before.applied = not unit.normalises

    def source_map(self, unit: Unit) -> FeatureMap:
        """The map that a convolution reads: of its source, or of what the norm that it applies reads."""
        if unit.normalises:
            return self.maps[self.producer[unit.sources[0]].sources[0]]
        return self.maps[unit.sources[0]]

    @property
    def batch(self) -> int:
        return self.options.batch

    def trained(self, unit: Unit) -> bool:
        """Whether a unit has parameters that are not frozen."""
        name = unit.layer.name
        has = isinstance(unit.layer, Convolution | BatchNorm | FullyConnected)
        return has and not any(name == f or name.startswith(f"{f}.") for f in self.options.frozen)

    def parameter(self, name: str) -> str:
        return self.builder.buffer(name, self.parameter_shapes[name], role="parameter")

    def statistic(self, name: str) -> str:
        return self.builder.buffer(name, self.statistic_shapes[name], role="statistic")

    def halo(self, tensor: str) -> int:
        """Widest padding that a reader of a tensor needs."""
        readers = [unit for unit in self.readers.get(tensor, ()) if tensor in unit.sources]
        if not self.options.training:  # dropout hands on what it gets
            for unit in [unit for unit in readers if isinstance(unit.layer, Dropout)]:
                return max(self.halo(unit.target), *(self.halo_of([other]) for other in readers), 0)
        return self.halo_of(readers)

    def halo_of(self, readers: Sequence[Unit]) -> int:
        layers = [unit.layer for unit in readers]
        padded = [layer.padding for layer in layers if isinstance(layer, Convolution) and not self.is_depthwise(layer)]
        return max(padded, default=0)

    def map(self, name: str, tensor: str, halo: int, role: str = "activation") -> FeatureMap:
        shape = self.shapes[tensor]
        new = FeatureMap(name, self.batch, *shape, halo) if len(shape) == 3 else self.new_vector(name, *shape)
        self.builder.buffer(name, new.shape, role=role)
        return new

    def loop(
        self,
        name: str,
        kernel: str,
        operands: Mapping[str, str],
        blocks: Iterable[tuple[Mapping[str, int], Sequence[Access], float, float]],
        unit: Unit,
        phase: str,
        /,
        **attributes: float,
    ) -> None:
        """Append a loop; `blocks` are (bounds by name, accesses, flops, bytes)."""
        spec = kernel_table.get(kernel)
        self.builder.loop(
            name,
            kernel,
            operands,
            [Block(tuple(b[n] for n in spec.bounds), tuple(a), flops, size) for b, a, flops, size in blocks],
            attributes=attributes,
            layer=unit.layer.name,
            phase=phase,
        )

    def pixels(self, feature_map: FeatureMap) -> list[tuple[tuple[int, int], tuple[int, int], dict[str, int]]]:
        """Blocks of images and rows of loops without windows: images, rows, bounds with the block's number."""
        images, rows = block_sizes.pixel_blocks(self.options.granularity, self.batch, feature_map.height)
        grid = block_grid(ranges(self.batch, images), ranges(feature_map.height, rows))
        return [
            (
                n,
                y,
                {
                    "n0": n[0],
                    "n1": n[1],
                    "y0": y[0],
                    "y1": y[1],
                    "c0": 0,
                    "c1": feature_map.channels,
                    "partial": number,
                },
            )
            for number, (n, y) in enumerate(grid)
        ]

    def output_map(self, unit: Unit, again: bool) -> FeatureMap:
        name = f"{unit.target}.again" if again else unit.target
        new = self.map(name, unit.target, self.halo(unit.target))
        self.maps[unit.target] = new
        return new

    def window(self, layer: Layer, source: tuple[int, ...], target: tuple[int, ...]) -> Window:
        if isinstance(layer, Convolution):
            return Window(layer.kernel, layer.stride, layer.padding, layer.dilation, source[1], target[1])
        padding = layer.padding if isinstance(layer, MaxPool) else 0
        return Window(layer.size, layer.stride or layer.size, padding, 1, source[1], target[1])

    def geometry(self, layer: Convolution) -> dict[str, int]:
        """Attributes of a convolution beside its maps."""
        result = {"kernel": layer.kernel, "stride": layer.stride, "padding": layer.padding}
        return result if self.is_depthwise(layer) else {**result, "dilation": layer.dilation}

    def is_depthwise(self, layer: Convolution) -> bool:
        shape = self.parameter_shapes[f"{layer.name}.weight"]
        return shape[0] == layer.groups > 1 and shape[1] == 1 and layer.dilation == 1

    def vector_buffer(self, name: str, feature_map: FeatureMap) -> str:
        return self.builder.buffer(name, (feature_map.pitch,), role="temporary")

    def statistics_buffer(self, norm: str, count: int, feature_map: FeatureMap) -> str:
        return self.builder.buffer(f"{norm}.partials", statistics_shape(count, feature_map.pitch), role="temporary")

    def elementwise(
        self,
        name: str,
        kernel: str,
        unit: Unit,
        phase: str,
        cut: FeatureMap,
        operands: Mapping[str, str],
        maps: Mapping[str, FeatureMap],
        constant: Sequence[Access] = (),
        accumulated: Sequence[str] = (),
        partials: str = "",
        **attributes: float,
    ) -> None:
        """Loop that treats each pixel alone. `maps`: operand -> map; those called output or branch are written, or
        added to where `accumulated` names them."""
        blocks = []
        size = 4.0 * cut.height * cut.width * cut.pitch * len(maps)
        for n, y, bounds in self.pixels(cut):
            accesses = list(constant)
            for operand, m in maps.items():
                if operand in ("output", "branch"):
                    accesses.append(m.write(n, y, accumulate=operand in accumulated))
                else:
                    accesses.append(m.read(n, y))
            if partials:
                accesses.append(write(partials, (bounds["partial"], bounds["partial"] + 1)))
            share = (n[1] - n[0]) * (y[1] - y[0]) / cut.height
            blocks.append((bounds, accesses, 0.0, size * share))
        self.loop(name, kernel, operands, blocks, unit, phase, **attributes)

    def sum_maps(
        self,
        name: str,
        unit: Unit,
        phase: str,
        first: FeatureMap,
        second: FeatureMap,
        target: FeatureMap,
        activation: int = 0,
    ) -> None:
        maps = {"first": first, "second": second, "output": target}
        self.elementwise(
            name,
            "channels_add",
            unit,
            phase,
            target,
            {k: m.name for k, m in maps.items()},
            maps,
            **first.attributes("in"),
            second_halo=second.halo,
            out_halo=target.halo,
            activation=activation,
        )

    def image_blocks(self) -> list[tuple[int, int]]:
        return ranges(self.batch, block_sizes.pixel_blocks(self.options.granularity, self.batch, 1)[0])

    def new_vector(self, name: str, length: int) -> Vector:
        return Vector(name, self.batch, length, 1, 1)


def phase_of(backward: bool) -> str:
    """Recomputation and packing for data gradients belong to the backward pass."""
    return "backward" if backward else "forward"


def parameter_view(buffer: str, shape: tuple[int, ...]) -> Callable:
    return lambda arrays: arrays[buffer].reshape(shape)
