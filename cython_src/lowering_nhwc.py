"""Lowering of networks that are graphs of layers, in the layout "channels": the channels of a pixel side by side.

A feature map is a buffer (batch, height + 2 halo, width + 2 halo, pitch); see `ChannelMap`. Layers that have one
consumer are joined with it where that saves bytes (`FUSIONS`); each such unit knows its loops forward and backward.
The gradient of a map that several layers read is the sum of what they send back, added in the reverse order of the
layers: it depends on the network alone.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from . import blocks_nhwc, kernel_table, nhwc_conv
from .blocks_nhwc import Window
from .errors import UsageError
from .granularity import Granularity
from .network import (
    Add,
    AveragePool,
    BatchNorm,
    Convolution,
    Dropout,
    FullyConnected,
    GlobalPool,
    Layer,
    MaxPool,
    NetworkSpec,
    ReLU,
    ReLU6,
    Softmax,
)
from .nhwc_arrays import STATISTICS_ROWS, ChannelMap, statistics_shape
from .plan import Access, Block, PlanBuilder, block_grid, ranges, read, update, write

# What can be joined, each a switch of its own:
# activation   ReLU into the convolution or norm before it
# residual     the addition of a shortcut into the norm before it
# statistics   sums for batch norm into the convolution before it
FUSIONS = ("activation", "residual", "statistics")
ACTIVATIONS = {ReLU: 1, ReLU6: 2}
BLOCKS_OF_PACK = BLOCKS_OF_UPDATE = 16
PACK_BYTES = 262144  # of a block that packs weights, at least
FC_PARTIALS = 4  # partial sums of a fully connected layer's weight gradient
UPDATE_ELEMENTS = 65536  # parameters of a block of the update, at least


@dataclass(frozen=True)
class FeatureMap(ChannelMap):
    """A `ChannelMap` that declares accesses to itself."""

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


class _Vector(FeatureMap):
    """A vector of features (batch, length, 1) as a map of one pixel."""

    @property
    def pitch(self) -> int:
        return self.channels

    def box(self, images, rows, channels=None):
        return (images,)


def parse_fusion(fusion: bool | str) -> frozenset[str]:
    """The set of what is joined, from True, False, "all", "none" or names with commas between.

    Raises
    ------
    UsageError
        A name that is not one of `FUSIONS`.
    """
    if fusion in (True, "all"):
        return frozenset(FUSIONS)
    names = [] if fusion in (False, "none") else [name.strip() for name in str(fusion).split(",")]
    for name in names:
        if name not in FUSIONS:
            raise UsageError(f"fusion must be all, none or some of {', '.join(FUSIONS)}; got {fusion!r}")
    return frozenset(names)


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
class Unit:
    """A layer with what is joined to it.

    Attributes
    ----------
    layer : Layer
        The one that gives its name to loops and parameters.
    sources : tuple of str
        Tensors it reads; a tensor has the name of the last layer of the unit that writes it.
    target : str
    activation : int
        0 none, 1 ReLU, 2 ReLU6.
    shortcut : str
        What a norm adds.
    shortcut_norm : str
        The norm of the shortcut that is applied on the fly; `shortcut` is then what that norm reads.
    applied : bool
        Of a norm: whether it writes a map; false where it is applied by the unit that adds its result.
    statistics : str
        The norm for which a convolution sums.
    """

    layer: Layer
    sources: tuple[str, ...]
    target: str
    activation: int = 0
    shortcut: str = ""
    shortcut_norm: str = ""
    applied: bool = True
    statistics: str = ""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Tensors to which it sends a gradient."""
        shortcut = self.shortcut_norm or self.shortcut
        return (*self.sources, shortcut) if shortcut else self.sources


def join_layers(spec: NetworkSpec, fusion: frozenset[str]) -> list[Unit]:
    """Units in the order of their last layers."""
    inputs = spec.inputs()
    consumers: dict[str, list[Layer]] = {}
    for layer in spec.layers:
        for name in inputs[layer.name]:
            consumers.setdefault(name, []).append(layer)
    position = {layer.name: i for i, layer in enumerate(spec.layers)}
    layers = {layer.name: layer for layer in spec.layers} | {"input": None}
    taken: set[str] = set()
    unapplied: set[str] = set()
    units: list[Unit] = []
    for layer in spec.layers:
        if layer.name in taken:
            continue
        unit = Unit(layer, inputs[layer.name], layer.name)
        if layer.name in unapplied:
            unit.applied = False
            units.append(unit)
            continue

        def following(kinds, unit=unit) -> Layer | None:
            after = consumers.get(unit.target, [])
            return after[0] if len(after) == 1 and isinstance(after[0], kinds) else None

        add = following(Add) if isinstance(layer, BatchNorm) and "residual" in fusion else None
        if add and add.name not in taken and add.inputs[0] != add.inputs[1]:
            unit.shortcut = next(name for name in add.inputs if name != unit.target)
            other = layers[unit.shortcut]
            if isinstance(other, BatchNorm) and len(consumers[unit.shortcut]) == 1:
                unit.shortcut_norm, unit.shortcut = unit.shortcut, inputs[unit.shortcut][0]
                unapplied.add(other.name)
            unit.target = add.name
            taken.add(add.name)
        joins = isinstance(layer, BatchNorm | Add | Convolution)
        if joins and "activation" in fusion and (activation := following((ReLU, ReLU6))):
            unit.activation = ACTIVATIONS[type(activation)]
            unit.target = activation.name
            taken.add(activation.name)
        if isinstance(layer, Convolution) and not unit.activation and "statistics" in fusion:
            norms = [after for after in consumers.get(layer.name, []) if isinstance(after, BatchNorm)]
            unit.statistics = norms[0].name if norms else ""
        units.append(unit)
    return sorted(units, key=lambda unit: position[unit.target])


@dataclass
class _Lowering:
    """State of one lowering; the methods append loops in plan order."""

    spec: NetworkSpec
    options: ChannelOptions
    builder: PlanBuilder
    maps: dict[str, FeatureMap] = field(default_factory=dict)  # of feature maps that are kept, by tensor
    vectors: dict[str, tuple[str, int]] = field(
        default_factory=dict
    )  # buffer and length of tensors without pixels
    gradients: dict[str, FeatureMap | str] = field(default_factory=dict)
    sharers: dict[str, set[str]] = field(
        default_factory=dict
    )  # gradient buffer -> tensors that it belongs to
    unfinished: set[str] = field(default_factory=set)  # tensors whose producer has not run backward yet
    partials: dict[str, tuple[str, int]] = field(default_factory=dict)  # parameter -> partial gradients
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
                raise UsageError(
                    f"frozen must name layers with parameters of {self.spec.name!r}, got {prefix!r}"
                )
        self.learns: dict[str, bool] = {"input": False}  # tensor -> whether a parameter before it is trained
        for unit in self.units:
            self.learns[unit.target] = self.trained(unit) or any(self.learns[name] for name in unit.inputs)

    # ---- names, buffers, blocks ----

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
        padded = [
            layer.padding
            for layer in layers
            if isinstance(layer, Convolution) and not self.is_depthwise(layer)
        ]
        return max(padded, default=0)

    def map(self, name: str, tensor: str, halo: int, role: str = "activation") -> FeatureMap:
        new = FeatureMap(name, self.batch, *self.shapes[tensor], halo)
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

    def pixels(
        self, feature_map: FeatureMap
    ) -> list[tuple[tuple[int, int], tuple[int, int], dict[str, int]]]:
        """Blocks of images and rows of loops without windows: images, rows, bounds with the block's number."""
        images, rows = blocks_nhwc.pixel_blocks(self.options.granularity, self.batch, feature_map.height)
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

    # ---- forward ----

    def load(self) -> str:
        o, b = self.options, self.builder
        target = FeatureMap("input", self.batch, *self.spec.input_shape, self.halo("input"), image=True)
        b.buffer(target.name, target.shape, role="input")
        self.maps["input"] = target
        self.aliases["input"] = target.natural()
        images = b.buffer(f"{o.prefix}dataset.images", (o.num_images, *self.spec.input_shape), role="dataset")
        all_labels = b.buffer(f"{o.prefix}dataset.labels", (o.num_images,), "int32", role="dataset")
        order = b.buffer(f"{o.prefix}batch_order", (o.num_batches, self.batch), "int32", role="table")
        labels = b.buffer("labels", (self.batch, 1), "int32", role="input")
        size = math.prod(self.spec.input_shape)
        blocks = []
        for n in ranges(self.batch, blocks_nhwc.pixel_blocks(o.granularity, self.batch, 1)[0]):
            accesses = read(images), read(all_labels), read(order), target.write(n), write(labels, n)
            blocks.append(({"n0": n[0], "n1": n[1]}, accesses, 0.0, 8.0 * (n[1] - n[0]) * size))
        operands = {
            "images": images, "dataset_labels": all_labels, "batch_order": order, "output": target.name,
            "labels": labels,
        }  # fmt: skip
        self.loop(
            "load", "nhwc_load_images", operands, blocks, Unit(Softmax("input"), (), "input"), "load",
            **target.attributes("out"), batch=self.batch, num_batches=o.num_batches, num_images=o.num_images,
        )  # fmt: skip
        return labels

    def forward(self, unit: Unit, again: bool = False) -> None:
        """Loops of a unit; `again`: of its recomputation, into buffers of their own."""
        match unit.layer:
            case Convolution():
                self.convolution(unit, again)
            case BatchNorm():
                self.norm(unit, again)
            case Add():
                self.add(unit, again)
            case ReLU() | ReLU6():
                self.activation(unit, again)
            case MaxPool() | AveragePool():
                self.pool(unit, again)
            case GlobalPool():
                self.global_pool(unit)
            case Dropout():
                self.dropout(unit, again)
            case FullyConnected():
                self.fully_connected(unit)
        if not again and unit.target in self.maps:
            self.aliases[unit.target] = self.maps[unit.target].natural()

    def output_map(self, unit: Unit, again: bool) -> FeatureMap:
        name = f"{unit.target}.again" if again else unit.target
        new = self.map(name, unit.target, self.halo(unit.target))
        self.maps[unit.target] = new
        return new

    def source_map(self, name: str) -> FeatureMap:
        if name not in self.maps:
            raise UsageError(
                f"in layout 'channels' a layer after pixels are gone must be FullyConnected, Dropout or Softmax, got one "
                f"that reads {name!r}; move it"
            )
        return self.maps[name]

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

    def convolution(self, unit: Unit, again: bool) -> None:
        layer, b = unit.layer, self.builder
        source, target = self.source_map(unit.sources[0]), self.output_map(unit, again)
        weight = self.parameter(f"{layer.name}.weight")
        shape = self.parameter_shapes[weight]
        window = self.window(layer, self.shapes[unit.sources[0]], self.shapes[unit.target])
        depthwise = self.is_depthwise(layer)
        flops = 2.0 * math.prod(shape[1:]) * target.channels * target.height * target.width * self.batch
        images, rows, part = blocks_nhwc.output_blocks(
            self.options.granularity, self.batch, window, target.height, target.channels, 4.0 * math.prod(shape),
            4.0 * source.pitch * source.width, 4.0 * target.pitch * target.width, flops,
        )  # fmt: skip
        operands = {"input": source.name, "output": target.name}
        if depthwise:
            operands["weight"] = weight
        else:
            algorithm = self.algorithm(layer, source, target, "forward")
            packed = self.pack(unit, weight, 0, algorithm, again)
            operands["packed"] = packed
        if layer.bias:
            operands["bias"] = self.parameter(f"{layer.name}.bias")
        cuts = ranges(self.batch, images), ranges(target.height, rows)
        statistics = unit.statistics and not again and self.options.training
        if statistics:
            partials = self.statistics_buffer(unit.statistics, len(cuts[0]) * len(cuts[1]), target)
            operands["statistics"] = partials
        blocks = []
        for number, (n, y) in enumerate(block_grid(*cuts)):
            for c in ranges(target.channels, part):
                share = (n[1] - n[0]) * (y[1] - y[0]) * (c[1] - c[0])
                share /= self.batch * target.height * target.channels
                accesses = [source.read_window(n, window, y, c if depthwise else None), target.write(n, y, c)]
                if depthwise:
                    accesses.append(read(weight, c))
                else:
                    accesses.append(read(packed, *nhwc_conv.packed_box(algorithm, 0, c, shape, layer.groups)))
                if layer.bias:
                    accesses.append(read(operands["bias"], c))
                if statistics:
                    accesses.append(
                        write(partials, (number, number + 1), (0, STATISTICS_ROWS), target.channel_box(*c))
                    )
                bounds = {
                    "n0": n[0],
                    "n1": n[1],
                    "y0": y[0],
                    "y1": y[1],
                    "c0": c[0],
                    "c1": c[1],
                    "partial": number,
                }
                size = 4.0 * (
                    self.batch * (source.pitch * source.height * source.width / len(ranges(target.channels, part))
                                  + target.pitch * target.height * target.width) + math.prod(shape)
                )  # fmt: skip
                blocks.append((bounds, accesses, flops * share, size * share))
        attributes = {**source.attributes("in"), **target.attributes("out"), **self.geometry(layer)}
        attributes["activation"] = unit.activation
        kernel = "nhwc_depthwise_forward"
        if not depthwise:
            kernel = "nhwc_conv_forward"
            attributes |= {"groups": layer.groups, "algorithm": algorithm}
            b.scratch(nhwc_conv.scratch_bytes(algorithm, 0, attributes, images, rows, part))
        self.loop(f"{layer.name}.again" if again else layer.name, kernel, operands, blocks, unit, phase_of(again),
                  **attributes)  # fmt: skip

    def algorithm(self, layer: Convolution, source: FeatureMap, target: FeatureMap, direction: str) -> int:
        names = ("dy", "in") if direction == "weights" else ("in", "out")
        maps = (target, source) if direction == "weights" else (source, target)
        attributes = {**maps[0].attributes(names[0]), **maps[1].attributes(names[1]), **self.geometry(layer)}
        return nhwc_conv.choose_algorithm(
            self.options.conv, direction, {**attributes, "groups": layer.groups}, self.batch
        )

    def pack(self, unit: Unit, weight: str, direction: int, algorithm: int, again: bool = False) -> str:
        """Copy of the weights in the order of the inner loops: once for each direction and step."""
        name = f"{weight}.packed{'_transposed' if direction else ''}"
        if again:
            return name
        layer, shape = unit.layer, self.parameter_shapes[weight]
        packed_shape = nhwc_conv.packed_shape(algorithm, direction, shape, layer.groups)
        self.builder.buffer(name, packed_shape, role="packed")
        size = 8.0 * math.prod(shape)
        blocks = []
        pieces = ranges(
            packed_shape[0], -(-packed_shape[0] // max(1, min(BLOCKS_OF_PACK, int(size / PACK_BYTES))))
        )
        for o in pieces:
            accesses = (
                read(weight, *nhwc_conv.weight_box(algorithm, direction, o, shape, layer.groups)),
                write(name, o),
            )
            blocks.append(({"o0": o[0], "o1": o[1]}, accesses, 0.0, size / len(pieces)))
        self.loop(
            name, "nhwc_conv_pack", {"weight": weight, "packed": name}, blocks, unit, phase_of(direction == 1),
            out_channels=shape[0], in_channels=shape[1] * layer.groups, kernel=shape[2], groups=layer.groups,
            direction=direction, algorithm=algorithm,
        )  # fmt: skip
        self.builder.scratch(nhwc_conv.pack_scratch_bytes(algorithm, direction, shape, layer.groups))
        return name

    def vector_buffer(self, name: str, feature_map: FeatureMap) -> str:
        return self.builder.buffer(name, (feature_map.pitch,), role="temporary")

    def statistics_buffer(self, norm: str, count: int, feature_map: FeatureMap) -> str:
        return self.builder.buffer(
            f"{norm}.partials", statistics_shape(count, feature_map.pitch), role="temporary"
        )

    def elementwise(
        self, name: str, kernel: str, unit: Unit, phase: str, cut: FeatureMap, operands: Mapping[str, str],
        maps: Mapping[str, FeatureMap], constant: Sequence[Access] = (), accumulated: Sequence[str] = (),
        partials: str = "", **attributes: float,
    ) -> None:  # fmt: skip
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

    def norm(self, unit: Unit, again: bool) -> None:
        layer, b, o = unit.layer, self.builder, self.options
        name = layer.name
        source = self.source_map(unit.sources[0])
        scale, shift = (self.vector_buffer(f"{name}.{kind}", source) for kind in ("scale", "shift"))
        if not again:
            weight, bias = self.parameter(f"{name}.weight"), self.parameter(f"{name}.bias")
            running = {kind: self.statistic(f"{name}.{kind}") for kind in ("running_mean", "running_var")}
            all_channels = {"c0": 0, "c1": source.channels}
            if o.training:
                partials = f"{name}.partials"
                if self.producer[unit.sources[0]].statistics != name:
                    count = len(self.pixels(source))
                    self.statistics_buffer(name, count, source)
                    self.elementwise(
                        f"{name}.statistics", "nhwc_norm_statistics", unit, "forward", source,
                        {"input": source.name, "partials": partials}, {"input": source}, partials=partials,
                        **source.attributes("in"),
                    )  # fmt: skip
                count = b.shape(partials)[0]
                operands = {
                    "partials": partials, "weight": weight, "bias": bias, **running, "scale": scale, "shift": shift,
                    "mean": self.vector_buffer(f"{name}.mean", source),
                    "inv_std": self.vector_buffer(f"{name}.inv_std", source),
                }  # fmt: skip
                accesses = [read(partials), read(weight), read(bias)]
                accesses += [update(buffer) for buffer in running.values()]
                accesses += [write(operands[kind]) for kind in ("scale", "shift", "mean", "inv_std")]
                self.loop(
                    f"{name}.finish", "nhwc_norm_finish", operands,
                    [(all_channels, accesses, 0.0, 8.0 * count * source.pitch)], unit, "forward",
                    channels=source.channels, num_partials=count, count=self.batch * source.height * source.width,
                    eps=layer.eps, momentum=layer.momentum,
                )  # fmt: skip
            else:
                operands = {"weight": weight, "bias": bias, **running, "scale": scale, "shift": shift}
                accesses = [
                    read(operands[kind]) for kind in ("weight", "bias", "running_mean", "running_var")
                ]
                accesses += [write(scale), write(shift)]
                self.loop(
                    f"{name}.finish", "nhwc_norm_evaluate", operands,
                    [(all_channels, accesses, 0.0, 24.0 * source.pitch)], unit, "forward",
                    channels=source.channels, eps=layer.eps,
                )  # fmt: skip
        if not unit.applied:
            return
        target = self.output_map(unit, again)
        operands = {"input": source.name, "scale": scale, "shift": shift, "output": target.name}
        maps = {"input": source, "output": target}
        constant = [read(scale), read(shift)]
        if unit.shortcut:
            maps["residual"] = self.source_map(unit.shortcut)
            operands["residual"] = maps["residual"].name
        if unit.shortcut_norm:
            for kind in ("scale", "shift"):
                operands[f"residual_{kind}"] = f"{unit.shortcut_norm}.{kind}"
                constant.append(read(operands[f"residual_{kind}"]))
        self.elementwise(
            f"{name}.again" if again else name, "nhwc_norm_apply", unit, phase_of(again), target, operands, maps,
            constant, **source.attributes("in"), residual_halo=maps.get("residual", source).halo, out_halo=target.halo,
            activation=unit.activation,
        )  # fmt: skip

    def add(self, unit: Unit, again: bool) -> None:
        first, second = (self.source_map(name) for name in unit.sources)
        target = self.output_map(unit, again)
        self.sum_maps(f"{unit.layer.name}.again" if again else unit.layer.name, unit, phase_of(again), first, second,
                      target, unit.activation)  # fmt: skip

    def sum_maps(self, name: str, unit: Unit, phase: str, first: FeatureMap, second: FeatureMap, target: FeatureMap,
                 activation: int = 0) -> None:  # fmt: skip
        maps = {"first": first, "second": second, "output": target}
        self.elementwise(
            name, "nhwc_add", unit, phase, target, {k: m.name for k, m in maps.items()}, maps,
            **first.attributes("in"), second_halo=second.halo, out_halo=target.halo, activation=activation,
        )  # fmt: skip

    def activation(self, unit: Unit, again: bool) -> None:
        maps = {"input": self.source_map(unit.sources[0]), "output": self.output_map(unit, again)}
        self.elementwise(
            f"{unit.layer.name}.again" if again else unit.layer.name, "nhwc_activation", unit, phase_of(again),
            maps["output"], {k: m.name for k, m in maps.items()}, maps, **maps["input"].attributes("in"),
            out_halo=maps["output"].halo, activation=ACTIVATIONS[type(unit.layer)],
        )  # fmt: skip

    def pool(self, unit: Unit, again: bool) -> None:
        layer = unit.layer
        source, target = self.source_map(unit.sources[0]), self.output_map(unit, again)
        window = self.window(layer, self.shapes[unit.sources[0]], self.shapes[unit.target])
        largest = isinstance(layer, MaxPool)
        operands = {"input": source.name, "output": target.name}
        if largest:
            operands["index"] = self.index(unit)
        blocks = []
        size = 4.0 * (source.height * source.width + 1.25 * target.height * target.width) * target.pitch
        for n, y, bounds in self.pixels(target):
            accesses = [self.clipped_window(source, n, window, y), target.write(n, y)]
            if largest:
                accesses.append(write(operands["index"], n, y))
            blocks.append((bounds, accesses, 0.0, size * (n[1] - n[0]) * (y[1] - y[0]) / target.height))
        self.loop(
            f"{layer.name}.again" if again else layer.name, "nhwc_max_pool" if largest else "nhwc_average_pool", operands,
            blocks, unit, phase_of(again), **source.attributes("in"), **target.attributes("out"), kernel=layer.size,
            stride=window.stride, padding=window.padding,
        )  # fmt: skip

    def index(self, unit: Unit) -> str:
        channels, height, width = self.shapes[unit.target]
        shape = (self.batch, height, width, FeatureMap("", 1, channels, height, width).pitch)
        return self.builder.buffer(f"{unit.target}.index", shape, "uint8")

    def clipped_window(self, source: FeatureMap, images, window: Window, rows) -> Access:
        """What a window needs of the interior: pooling treats the border itself."""
        first, last = window.input_rows(rows)
        return source.read(images, (max(first, 0), min(last, source.height)))

    def image_blocks(self) -> list[tuple[int, int]]:
        return ranges(self.batch, blocks_nhwc.pixel_blocks(self.options.granularity, self.batch, 1)[0])

    def global_pool(self, unit: Unit) -> None:
        source = self.source_map(unit.sources[0])
        output = self.builder.buffer(unit.target, (self.batch, source.channels, 1))
        self.vectors[unit.target] = output, source.channels
        self.aliases[unit.target] = _rows(output)
        size = 4.0 * source.height * source.width * source.pitch
        blocks = [
            ({"n0": n[0], "n1": n[1], "c0": 0, "c1": source.channels}, (source.read(n), write(output, n)), 0.0,
             size * (n[1] - n[0]))
            for n in self.image_blocks()
        ]  # fmt: skip
        self.loop(unit.layer.name, "nhwc_global_pool", {"input": source.name, "output": output}, blocks, unit, "forward",
                  **source.attributes("in"))  # fmt: skip

    def fully_connected(self, unit: Unit) -> None:
        layer = unit.layer
        source, features = self.vector(unit.sources[0])
        weight, bias = self.parameter(f"{layer.name}.weight"), self.parameter(f"{layer.name}.bias")
        output = self.builder.buffer(unit.target, (self.batch, layer.out_features, 1))
        self.vectors[unit.target] = output, layer.out_features
        self.aliases[unit.target] = _rows(output)
        blocks = []
        for n in self.image_blocks():
            count = n[1] - n[0]
            accesses = read(source, n), read(weight), read(bias), write(output, n)
            blocks.append(({"g0": n[0], "g1": n[1]}, accesses, 2.0 * features * layer.out_features * count,
                           4.0 * (features + layer.out_features) * count))  # fmt: skip
        self.loop(
            layer.name, "fc_forward", {"input": source, "weight": weight, "bias": bias, "output": output}, blocks, unit,
            "forward", features=features, outputs=layer.out_features, lanes=1,
        )  # fmt: skip

    def vector(self, name: str) -> tuple[str, int]:
        if name not in self.vectors:
            raise UsageError(
                f"in layout 'channels' FullyConnected and Softmax must come after GlobalPool, got one that reads "
                f"{name!r}, which has pixels; pool first, or use layout 'auto'"
            )
        return self.vectors[name]

    def dropout(self, unit: Unit, again: bool) -> None:
        name = unit.sources[0]
        if not self.options.training:
            if name in self.maps:
                self.maps[unit.target] = self.maps[name]
            else:
                self.vectors[unit.target] = self.vector(name)
            return
        if name in self.vectors:
            source = self.vector_as_map(*self.vectors[name])
            self.vectors[unit.target] = unit.target, source.channels
            self.builder.buffer(unit.target, (self.batch, source.channels, 1))
            self.aliases[unit.target] = _rows(unit.target)
            target = self.vector_as_map(*self.vectors[unit.target])
        else:
            source, target = self.source_map(name), self.output_map(unit, again)
        self.dropout_loop(
            f"{unit.layer.name}.again" if again else unit.layer.name, unit, phase_of(again), source, target
        )

    def vector_as_map(self, buffer: str, length: int) -> FeatureMap:
        """A vector of features as a map of one pixel, for kernels that treat each element alone."""
        return _Vector(buffer, self.batch, length, 1, 1)

    def dropout_loop(self, name: str, unit: Unit, phase: str, source: FeatureMap, target: FeatureMap) -> None:
        """The same kernel forward and backward: its random numbers are a function of place and iteration."""
        maps = {"input": source, "output": target}
        self.elementwise(
            name, "nhwc_dropout", unit, phase, target, {k: m.name for k, m in maps.items()}, maps,
            **source.attributes("in"), out_halo=target.halo, seed=self.options.seed, layer=self.units.index(unit),
            rate=unit.layer.rate,
        )  # fmt: skip

    def dropout_backward(self, unit: Unit, gradient: FeatureMap | str) -> None:
        name = unit.sources[0]
        loop = f"{unit.layer.name}.gradient"
        if isinstance(gradient, str):
            length = self.vectors[name][1]
            target = self.gradients[name] = self.builder.buffer(
                f"{name}.gradient", (self.batch, length, 1), role="gradient"
            )
            maps = (self.vector_as_map(buffer, length) for buffer in (gradient, target))
            self.dropout_loop(loop, unit, "backward", *maps)
            return
        with self.sent_back(unit, name) as target:
            self.dropout_loop(loop, unit, "backward", gradient, target)

    # ---- the loss ----

    def softmax(self, logits: str, classes: int, unit: Unit) -> None:
        b, prefix = self.builder, self.options.prefix
        probabilities = b.buffer(f"{prefix}probabilities", (self.batch, classes), role="log")
        predictions = b.buffer(f"{prefix}predictions", (self.batch,), "int32", role="log")
        self.aliases["softmax"] = lambda arrays: arrays[probabilities]
        blocks = []
        for n in self.image_blocks():
            accesses = read(logits, n), write(probabilities, n), write(predictions, n)
            blocks.append(({"g0": n[0], "g1": n[1]}, accesses, 0.0, 8.0 * classes * (n[1] - n[0])))
        operands = {"logits": logits, "probabilities": probabilities, "predictions": predictions}
        self.loop(
            "softmax",
            "softmax",
            operands,
            blocks,
            unit,
            "forward",
            classes=classes,
            lanes=1,
            batch=self.batch,
        )

    def loss(self, logits: str, labels: str, classes: int, unit: Unit, phase: str) -> str:
        b, o = self.builder, self.options
        gradient = b.buffer(f"{unit.sources[0]}.gradient", (self.batch, classes, 1), role="gradient")
        losses = b.buffer("image_losses", (self.batch,), role="temporary")
        correct = b.buffer("image_correct", (self.batch,), "int32", role="temporary")
        log = b.buffer(f"{o.prefix}losses", (o.num_iterations_logged,), role="log")
        correct_log = b.buffer(f"{o.prefix}correct", (o.num_iterations_logged,), "int32", role="log")
        blocks = []
        for n in self.image_blocks():
            accesses = (
                read(logits, n),
                read(labels, n),
                write(gradient, n),
                write(losses, n),
                write(correct, n),
            )
            blocks.append(({"g0": n[0], "g1": n[1]}, accesses, 0.0, 8.0 * classes * (n[1] - n[0])))
        operands = {
            "logits": logits,
            "labels": labels,
            "gradient": gradient,
            "losses": losses,
            "correct": correct,
        }
        self.loop("softmax", "softmax_loss", operands, blocks, unit, phase, classes=classes, lanes=1, batch=self.batch,
                  label_smoothing=o.label_smoothing)  # fmt: skip
        accesses = read(losses), read(correct), update(log), update(correct_log)
        operands = {"losses": losses, "correct": correct, "loss_log": log, "correct_log": correct_log}
        self.loop("loss", "loss_sum", operands, [({}, accesses, 0.0, 8.0 * self.batch)], unit, phase, groups=self.batch,
                  batch=self.batch, length=o.num_iterations_logged, check_finite=b.attributes["check_finite"])  # fmt: skip
        return gradient

    # ---- backward ----

    def gradient_map(self, tensor: str, name: str = "") -> tuple[FeatureMap, bool]:
        """Where a unit writes what it sends back to a tensor, and whether it adds to what is there."""
        present = self.gradients.get(tensor)
        if present is not None:
            others = self.sharers[present.name] - {tensor}
            if others & self.unfinished:
                raise AssertionError(
                    f"the gradient of {tensor!r} is still read by {others & self.unfinished}"
                )
            return present, True
        new = self.map(name or f"{tensor}.gradient", tensor, self.gradient_halo(tensor), "gradient")
        self.set_gradient(tensor, new)
        return new, False

    def gradient_halo(self, tensor: str) -> int:
        """Halo around a tensor's gradient, for the data gradient of the convolution that made it, or of one that made
        an input of sums, to which the gradient is passed on."""
        unit = self.producer.get(tensor)
        if unit is None or not self.learns[tensor]:
            return 0
        return 0 if unit.activation else self.gradient_halo_within(unit)

    def gradient_halo_within(self, unit: Unit) -> int:
        """Halo around the gradient before a unit's activation."""
        match unit.layer:
            case Convolution() if self.learns[unit.sources[0]] and not self.is_depthwise(unit.layer):
                source, target = self.shapes[unit.sources[0]], self.shapes[unit.target]
                sizes = {
                    "in_height": target[1],
                    "in_width": target[2],
                    "out_height": source[1],
                    "out_width": source[2],
                }
                return nhwc_conv.required_halo(nhwc_conv.DATA, {**sizes, **self.geometry(unit.layer)})
            case Add():
                return max(self.gradient_halo(name) for name in unit.sources)
            case BatchNorm() if unit.shortcut:
                return self.gradient_halo(unit.shortcut_norm or unit.shortcut)
        return 0

    def set_gradient(self, tensor: str, gradient: FeatureMap) -> None:
        self.gradients[tensor] = gradient
        self.sharers.setdefault(gradient.name, set()).add(tensor)

    def pass_on(self, unit: Unit, tensor: str, gradient: FeatureMap) -> None:
        """A unit hands its output's gradient to one of its inputs unchanged: the buffer is shared where nothing else
        needs it later."""
        if not self.learns[tensor]:
            return
        present = self.gradients.get(tensor)
        name = f"{unit.layer.name}.{tensor}.gradient_sum"
        if present is not None:
            new = self.map(
                f"{tensor}.gradient_{len(self.sharers)}", tensor, self.gradient_halo(tensor), "gradient"
            )
            self.sum_maps(name, unit, "backward", present, gradient, new)
            self.gradients.pop(tensor)
            self.set_gradient(tensor, new)
            return
        self.set_gradient(tensor, gradient)

    def backward(self, unit: Unit) -> None:
        """Loops that send a unit's gradient back. Its own gradient is complete: all readers came before."""
        self.unfinished.discard(unit.target)
        if not self.learns[unit.target]:
            return
        gradient = self.gradients[unit.target]
        match unit.layer:
            case Convolution():
                self.convolution_backward(unit, gradient)
            case BatchNorm():
                self.norm_backward(unit, gradient)
            case Add():
                for name in unit.sources:
                    self.pass_on(unit, name, self.masked(unit, gradient))
            case ReLU() | ReLU6():
                self.activation_backward(unit, gradient)
            case MaxPool() | AveragePool():
                self.pool_backward(unit, gradient)
            case GlobalPool():
                self.global_pool_backward(unit, gradient)
            case Dropout():
                self.dropout_backward(unit, gradient)
            case FullyConnected():
                self.fully_connected_backward(unit, gradient)

    def segments(self, units: Sequence[Unit]) -> list[Sequence[Unit]]:
        """Cut units where a single tensor leads from one part to the next: such a tensor is kept, the others of a part
        are computed again before its backward pass. About as many parts as units in a part; without recomputation,
        and in the last part, every unit is a part of its own."""
        if not self.options.recompute:
            return [[unit] for unit in units]
        last_reader = {name: i for i, unit in enumerate(units) for name in (*unit.inputs, unit.shortcut)}
        open_until, cuts = last_reader["input"], []
        for i, unit in enumerate(units):
            if open_until <= i and unit.target in self.maps and unit.applied:
                cuts.append(i + 1)
            open_until = max(open_until, last_reader.get(unit.target, i))
        wanted = math.isqrt(len(units))
        chosen: list[int] = []
        for cut in cuts:
            if cut - (chosen[-1] if chosen else 0) >= wanted:
                chosen.append(cut)
        result = [units[start:stop] for start, stop in itertools.pairwise((0, *chosen))]
        return [*result, *([unit] for unit in units[chosen[-1] if chosen else 0 :])]

    def masked(self, unit: Unit, gradient: FeatureMap) -> FeatureMap:
        """The gradient before a unit's own activation, in a map of its own where there is one."""
        if not unit.activation:
            return gradient
        new = self.map(
            f"{unit.layer.name}.gradient", unit.target, self.gradient_halo_within(unit), "gradient"
        )
        output = self.maps[unit.target]
        self.elementwise(
            f"{unit.layer.name}.activation_gradient", "nhwc_activation_backward", unit, "backward", new,
            {"gradient": gradient.name, "activations": output.name, "output": new.name},
            {"gradient": gradient, "activations": output, "output": new}, **gradient.attributes("in"),
            activations_halo=output.halo, out_halo=new.halo, activation=unit.activation, accumulate=0,
        )  # fmt: skip
        return new

    def activation_backward(self, unit: Unit, gradient: FeatureMap) -> None:
        output = self.maps[unit.target]
        target, accumulate = self.gradient_map(unit.sources[0])
        self.elementwise(
            f"{unit.layer.name}.gradient", "nhwc_activation_backward", unit, "backward", target,
            {"gradient": gradient.name, "activations": output.name, "output": target.name},
            {"gradient": gradient, "activations": output, "output": target},
            accumulated=("output",) if accumulate else (), **gradient.attributes("in"), activations_halo=output.halo,
            out_halo=target.halo, activation=ACTIVATIONS[type(unit.layer)], accumulate=int(accumulate),
        )  # fmt: skip

    def convolution_backward(self, unit: Unit, gradient: FeatureMap) -> None:
        layer = unit.layer
        gradient = self.masked(unit, gradient)
        source = self.maps[unit.sources[0]]
        weight = f"{layer.name}.weight"
        shape = self.parameter_shapes[weight]
        window = self.window(layer, self.shapes[unit.sources[0]], self.shapes[unit.target])
        flops = 2.0 * math.prod(shape[1:]) * gradient.channels * gradient.height * gradient.width * self.batch
        if self.learns[unit.sources[0]]:
            self.convolution_data_gradient(unit, gradient, window, flops)
        if self.trained(unit):
            self.convolution_weight_gradient(unit, gradient, source, flops)

    def convolution_data_gradient(
        self, unit: Unit, gradient: FeatureMap, window: Window, flops: float
    ) -> None:
        layer = unit.layer
        weight = f"{layer.name}.weight"
        shape = self.parameter_shapes[weight]
        depthwise = self.is_depthwise(layer)
        target, accumulate = self.gradient_map(unit.sources[0])
        operands = {"gradient": gradient.name, "output": target.name}
        if depthwise:
            operands["weight"] = weight
        else:
            algorithm = self.algorithm(layer, gradient, target, "data")
            packed = operands["packed"] = self.pack(unit, weight, 1, algorithm)
        images, rows, part = blocks_nhwc.output_blocks(
            self.options.granularity, self.batch, window, target.height, target.channels, 4.0 * math.prod(shape),
            4.0 * gradient.pitch * gradient.width, 4.0 * target.pitch * target.width, flops,
        )  # fmt: skip
        channels = ranges(target.channels, part)
        size = 4.0 * (
            self.batch * (gradient.pitch * gradient.height * gradient.width
                          + (1 + accumulate) * target.pitch * target.height * target.width) + math.prod(shape)
        )  # fmt: skip
        blocks = []
        for n, y, c in block_grid(ranges(self.batch, images), ranges(target.height, rows), channels):
            share = (
                (n[1] - n[0]) * (y[1] - y[0]) * (c[1] - c[0]) / (self.batch * target.height * target.channels)
            )
            first, last = window.gradient_rows(y)
            first, last = max(first, -gradient.halo), min(last, gradient.height + gradient.halo)
            accesses = [gradient.read(n, (first, max(last, first + 1)), c if depthwise else None),
                        target.write(n, y, c, accumulate)]  # fmt: skip
            if depthwise:
                accesses.append(read(weight, c))
            else:
                accesses.append(read(packed, *nhwc_conv.packed_box(algorithm, 1, c, shape, layer.groups)))
            bounds = {"n0": n[0], "n1": n[1], "y0": y[0], "y1": y[1], "c0": c[0], "c1": c[1]}
            blocks.append((bounds, accesses, flops * share, size * share))
        attributes = {**gradient.attributes("in"), **target.attributes("out"), **self.geometry(layer)}
        attributes["accumulate"] = int(accumulate)
        kernel = "nhwc_depthwise_backward_data"
        if not depthwise:
            kernel = "nhwc_conv_backward_data"
            attributes |= {"groups": layer.groups, "algorithm": algorithm}
            self.builder.scratch(nhwc_conv.scratch_bytes(algorithm, 1, attributes, images, rows, part))
        self.loop(f"{layer.name}.data_gradient", kernel, operands, blocks, unit, "backward", **attributes)

    def convolution_weight_gradient(
        self, unit: Unit, gradient: FeatureMap, source: FeatureMap, flops: float
    ) -> None:
        layer, b = unit.layer, self.builder
        shape = self.parameter_shapes[f"{layer.name}.weight"]
        row = math.prod(shape[1:])
        depthwise = self.is_depthwise(layer)
        map_bytes = [4.0 * m.pitch * m.height * m.width for m in (gradient, source)]
        images, part_out, part_in = blocks_nhwc.weight_blocks(
            self.options.granularity, self.batch, shape[0], shape[1] * layer.groups, 4.0 * math.prod(shape), *map_bytes,
            flops, not depthwise, layer.groups == 1,
        )  # fmt: skip
        groups = ranges(self.batch, images)
        count = 1 if self.options.chain else len(groups)
        partials = b.buffer(
            f"{layer.name}.weight.partials", (count, shape[0], row), role="gradient", carried=count == 1
        )
        self.partials[f"{layer.name}.weight"] = partials, count
        operands = {"gradient": gradient.name, "input": source.name, "output": partials}
        if layer.bias:
            operands["bias_output"] = b.buffer(f"{layer.name}.bias.partials", (count, shape[0]), role="gradient",
                                               carried=count == 1)  # fmt: skip
            self.partials[f"{layer.name}.bias"] = operands["bias_output"], count
        prefix = "gradient" if depthwise else "dy"
        attributes = {**gradient.attributes(prefix), **source.attributes("in"), **self.geometry(layer)}
        kernel = "nhwc_depthwise_backward_weights"
        if not depthwise:
            kernel = "nhwc_conv_backward_weights"
            attributes |= {
                "groups": layer.groups,
                "algorithm": self.algorithm(layer, source, gradient, "weights"),
            }
            b.scratch(
                nhwc_conv.scratch_bytes(attributes["algorithm"], 2, attributes, images, part_out, part_in)
            )
        outs, ins = ranges(shape[0], part_out), ranges(shape[1] * layer.groups, part_in)
        window = self.window(layer, self.shapes[unit.sources[0]], self.shapes[unit.target])
        links = [[n] for n in groups] if self.options.chain else [groups]
        for link, part in enumerate(links):
            blocks = []
            for n, o, i in block_grid(part, outs, ins):
                number = 0 if self.options.chain else groups.index(n)
                share = (n[1] - n[0]) / self.batch / len(outs) / len(ins)
                written = update if link else write
                elements = (
                    (0, row) if len(ins) == 1 else (i[0] * shape[2] * shape[3], i[1] * shape[2] * shape[3])
                )
                accesses = [gradient.read(n, None, o), written(partials, (number, number + 1), o, elements),
                            source.read_window(n, window, (0, gradient.height), i if layer.groups == 1 else o if depthwise else None)]  # fmt: skip
                if layer.bias and i[0] == 0:
                    accesses.append(written(operands["bias_output"], (number, number + 1), o))
                bounds = {"n0": n[0], "n1": n[1], "o0": o[0], "o1": o[1], "i0": i[0], "i1": i[1], "y0": 0, "y1": gradient.height,
                              "c0": o[0], "c1": o[1], "partial": number}  # fmt: skip
                size = sum(map_bytes) * self.batch + 4.0 * math.prod(shape) * len(part)
                blocks.append((bounds, accesses, flops * share, size * share))
            self.loop(
                f"{layer.name}.weight_gradient" + (f".{link}" if self.options.chain else ""), kernel, operands, blocks,
                unit, "backward", **attributes, accumulate=int(link > 0),
            )  # fmt: skip

    def norm_backward(self, unit: Unit, gradient: FeatureMap) -> None:
        layer, b = unit.layer, self.builder
        name = layer.name
        source = self.maps[unit.sources[0]]
        mean, inv_std = f"{name}.mean", f"{name}.inv_std"
        count = len(self.pixels(source))
        partials = b.buffer(f"{name}.gradient_partials", (count, 2, source.pitch), role="temporary")
        common = {"gradient": gradient.name, "input": source.name, "mean": mean}
        maps = {"gradient": gradient, "input": source}
        constant = [read(mean)]
        activations_halo = 0
        if unit.activation and unit.shortcut:
            output = self.maps[unit.target]
            common["activations"], maps["activations"], activations_halo = output.name, output, output.halo
        elif unit.activation:  # the mask is found again from the norm's input: a map less to read
            common |= {"scale": f"{name}.scale", "shift": f"{name}.shift"}
            constant += [read(common["scale"]), read(common["shift"])]
        shapes = {**source.attributes("in"), "gradient_halo": gradient.halo, "activations_halo": activations_halo,
                  "activation": unit.activation}  # fmt: skip
        self.elementwise(
            f"{name}.gradient_statistics", "nhwc_norm_backward_statistics", unit, "backward", source,
            {**common, "inv_std": inv_std, "partials": partials}, maps, [*constant, read(inv_std)], partials=partials,
            **shapes,
        )  # fmt: skip
        weight = f"{name}.weight"
        coefficients = b.buffer(f"{name}.coefficients", (3, source.pitch), role="temporary")
        results = {
            kind: b.buffer(f"{name}.{kind}.partials", (1, source.channels), role="gradient", carried=True)
            for kind in ("weight", "bias")
        }
        operands = {
            "partials": partials, "weight": weight, "inv_std": inv_std, "gradient_weight": results["weight"],
            "gradient_bias": results["bias"], "coefficients": coefficients,
        }  # fmt: skip
        accesses = [read(operands[kind]) for kind in ("partials", "weight", "inv_std")]
        accesses += [write(buffer) for buffer in (*results.values(), coefficients)]
        self.loop(
            f"{name}.gradient_finish", "nhwc_norm_backward_finish", operands,
            [({"c0": 0, "c1": source.channels}, accesses, 0.0, 8.0 * count * source.pitch)], unit, "backward",
            channels=source.channels, num_partials=count, count=self.batch * source.height * source.width, evaluation=0,
        )  # fmt: skip
        if self.trained(unit):
            for kind, buffer in results.items():
                self.partials[f"{name}.{kind}"] = buffer, 1
        shortcut = unit.shortcut_norm or unit.shortcut
        learns = self.learns[unit.sources[0]], bool(shortcut) and self.learns[shortcut]
        if shortcut and not unit.activation:
            self.pass_on(unit, shortcut, gradient)
        if not any(learns):
            return
        with self.sent_back(unit, unit.sources[0]) as target:
            common |= {"coefficients": coefficients, "output": target.name}
            maps["output"] = target
            branch, added = target, False
            if learns[1] and unit.activation:
                branch, added = self.gradient_map(shortcut)
                common["branch"], maps["branch"] = branch.name, branch
            self.elementwise(
                f"{name}.gradient", "nhwc_norm_backward_apply", unit, "backward", source, common, maps,
                [*constant, read(coefficients)], ["branch"] if added else [], **shapes, out_halo=target.halo,
                branch_halo=branch.halo, accumulate_branch=int(added),
            )  # fmt: skip

    @contextlib.contextmanager
    def sent_back(self, unit: Unit, tensor: str) -> Iterator[FeatureMap]:
        """The map for what a kernel that cannot add sends back to a tensor; what is there already is added after."""
        present = self.gradients.pop(tensor, None)
        target, _ = self.gradient_map(tensor, f"{tensor}.gradient_{unit.layer.name}" if present else "")
        yield target
        if present is not None:
            new = self.map(
                f"{tensor}.gradient_sum_{unit.layer.name}", tensor, self.gradient_halo(tensor), "gradient"
            )
            self.sum_maps(f"{unit.layer.name}.gradient_sum", unit, "backward", present, target, new)
            self.gradients.pop(tensor)
            self.set_gradient(tensor, new)

    def pool_backward(self, unit: Unit, gradient: FeatureMap) -> None:
        layer = unit.layer
        largest = isinstance(layer, MaxPool)
        window = self.window(layer, self.shapes[unit.sources[0]], self.shapes[unit.target])
        target, accumulate = self.gradient_map(unit.sources[0])
        operands = {"gradient": gradient.name, "output": target.name}
        if largest:
            operands["index"] = f"{unit.target}.index"
        blocks = []
        size = 4.0 * (target.height * target.width + 1.25 * gradient.height * gradient.width) * target.pitch
        for n, y, bounds in self.pixels(target):
            first, last = window.gradient_rows(y)
            rows = max(first, 0), min(last, gradient.height)
            accesses = [target.write(n, y, accumulate=accumulate)]
            if rows[0] < rows[1]:
                accesses.append(gradient.read(n, rows))
                if largest:
                    accesses.append(read(operands["index"], n, rows))
            blocks.append((bounds, accesses, 0.0, size * (n[1] - n[0]) * (y[1] - y[0]) / target.height))
        self.loop(
            f"{layer.name}.gradient", "nhwc_max_pool_backward" if largest else "nhwc_average_pool_backward", operands,
            blocks, unit, "backward", **gradient.attributes("in"), **target.attributes("out"), kernel=layer.size,
            stride=window.stride, padding=window.padding, accumulate=int(accumulate),
        )  # fmt: skip

    def global_pool_backward(self, unit: Unit, gradient: str) -> None:
        target, accumulate = self.gradient_map(unit.sources[0])
        blocks = []
        size = 4.0 * target.height * target.width * target.pitch
        for n, y, bounds in self.pixels(target):
            accesses = read(gradient, n), target.write(n, y, accumulate=accumulate)
            blocks.append((bounds, accesses, 0.0, size * (n[1] - n[0]) * (y[1] - y[0]) / target.height))
        self.loop(
            f"{unit.layer.name}.gradient", "nhwc_global_pool_backward", {"gradient": gradient, "output": target.name},
            blocks, unit, "backward", **target.attributes("out"), accumulate=int(accumulate),
        )  # fmt: skip

    def fully_connected_backward(self, unit: Unit, gradient: str) -> None:
        layer, b = unit.layer, self.builder
        source, features = self.vectors[unit.sources[0]]
        shape = {"features": features, "outputs": layer.out_features, "lanes": 1}
        flops = 2.0 * features * layer.out_features
        if self.learns[unit.sources[0]]:
            target = b.buffer(f"{unit.sources[0]}.gradient", (self.batch, features, 1), role="gradient")
            self.gradients[unit.sources[0]] = target
            weight = f"{layer.name}.weight"
            blocks = []
            for n in self.image_blocks():
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
            self.loop(
                f"{layer.name}.data_gradient", "fc_backward_data", operands, blocks, unit, "backward", **shape
            )
        if not self.trained(unit):
            return
        groups = (
            self.image_blocks()
            if self.options.chain
            else ranges(self.batch, max(1, -(-self.batch // FC_PARTIALS)))
        )
        count = 1 if self.options.chain else len(groups)
        partials = b.buffer(f"{layer.name}.partials", (count, layer.out_features, features + 1), role="gradient",
                            carried=count == 1)  # fmt: skip
        for kind in ("weight", "bias"):
            self.partials[f"{layer.name}.{kind}"] = partials, count
        links = [[n] for n in groups] if self.options.chain else [groups]
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
            self.loop(
                f"{layer.name}.weight_gradient" + (f".{link}" if self.options.chain else ""), "fc_backward_weights",
                {"gradient": gradient, "input": source, "output": partials}, blocks, unit, "backward", **shape,
                accumulate=int(link > 0),
            )  # fmt: skip

    # ---- update ----

    def update(self) -> None:
        """Sum the partial gradients of every trained parameter and take the optimiser's step."""
        o, b = self.options, self.builder
        rates = b.buffer("learning_rates", (o.num_learning_rates,), role="table")
        parts = []  # layer, parameter, gradient buffer, how to sum, ranges of outputs
        for name, (partials, count) in self.partials.items():
            shape = self.parameter_shapes[name]
            row, outputs = math.prod(shape[1:]), shape[0]
            stored = self.builder.shape(partials)
            # A fully connected layer's bias gradient is the last column of its weight gradient.
            combined = len(stored) == 3 and name.endswith(".bias")
            row_stride = math.prod(stored[2:])
            elements = {
                "num_partials": count, "partial_stride": outputs * row_stride, "row_length": row,
                "row_stride": row_stride, "row_offset": row_stride - 1 if combined else 0,
            }  # fmt: skip
            if count == 1 and row == row_stride:
                gradient, partials = partials, ""
            else:
                gradient = b.buffer(f"{name}.gradient_sum", shape, role="gradient", carried=True)
            cut = ranges(
                outputs, max(1, min(outputs, max(UPDATE_ELEMENTS // row, -(-outputs // BLOCKS_OF_UPDATE))))
            )
            parts.append((name, partials, gradient, elements, cut))
            self.aliases[f"{name}.grad"] = _parameter_view(gradient, shape)
        scale = self.clip(parts) if o.clip_norm else ""
        for name, partials, gradient, elements, cut in parts:
            self.optimizer_step(name, partials, gradient, elements, cut, rates, scale)

    def summed(
        self, name: str, partials: str, gradient: str, elements: Mapping[str, int], o: tuple[int, int]
    ):
        """Accesses of a loop that sums partials into the gradient, or reads the gradient where there are none."""
        where = (0, 1) if self.builder.shape(gradient) != self.parameter_shapes[name] else None
        box = (where, o) if where else (o,)
        if not partials:
            return [read(gradient, *box)]
        return [read(partials, (0, elements["num_partials"]), o), write(gradient, *box)]

    def clip(self, parts) -> str:
        """Sum all gradients first, take their norm, and the factor that every step then waits for."""
        o, b = self.options, self.builder
        total = sum(len(cut) for *_, cut in parts)
        squares = b.buffer("gradient_squares", (total,), role="temporary")
        scale = b.buffer("gradient_scale", (1,), role="temporary")
        log = b.buffer("gradient_norms", (o.num_iterations_logged,), role="log")
        number = 0
        for i, (name, partials, gradient, elements, cut) in enumerate(parts):
            row = elements["row_length"]
            blocks = []
            for c in cut:
                accesses = [
                    *self.summed(name, partials, gradient, elements, c),
                    write(squares, (number, number + 1)),
                ]
                bounds = {"e0": c[0] * row, "e1": c[1] * row, "partial": number}
                size = 4.0 * (c[1] - c[0]) * row * (elements["num_partials"] + 1)
                blocks.append((bounds, accesses, 0.0, size))
                number += 1
            operands = {"gradient": gradient, "squares": squares} | (
                {"partials": partials} if partials else {}
            )
            self.loop(
                f"{name}.gradient_sum",
                "gradient_sum",
                operands,
                blocks,
                self.unit_of(name),
                "update",
                **elements,
            )
            parts[i] = (name, "", gradient, elements, cut)
        accesses = read(squares), write(scale), update(log)
        self.loop("gradient_scale", "gradient_scale", {"squares": squares, "scale": scale, "norm_log": log},
                  [({}, accesses, 0.0, 4.0 * total)], self.units[-1], "update", num_squares=total,
                  length=o.num_iterations_logged, max_norm=o.clip_norm)  # fmt: skip
        return scale

    def unit_of(self, parameter: str) -> Unit:
        name = parameter.rpartition(".")[0]
        return next(unit for unit in self.units if unit.layer.name == name)

    def optimizer_step(self, name, partials, gradient, elements, cut, rates: str, scale: str) -> None:
        o, b = self.options, self.builder
        parameter, shape, row = name, self.parameter_shapes[name], elements["row_length"]
        operands = {"gradient": gradient, "parameter": parameter, "learning_rates": rates}
        if partials:
            operands["partials"] = partials
        if scale:
            operands["scale"] = scale
        attributes = {**elements, "num_rates": o.num_learning_rates, "weight_decay": o.weight_decay}
        if o.optimizer == "sgd":
            states = {"velocity": f"{name}.momentum"} if o.momentum else {}
            attributes["momentum"] = o.momentum
        else:
            states = {"first_moment": f"{name}.exp_avg", "second_moment": f"{name}.exp_avg_sq"}
            attributes |= {
                "beta1": o.betas[0],
                "beta2": o.betas[1],
                "eps": o.eps,
                "decoupled": int(o.optimizer == "adamw"),
            }
        for operand, state in states.items():
            operands[operand] = b.buffer(state, shape, role="optimizer_state")
        blocks = []
        for c in cut:
            accesses = [
                *self.summed(name, partials, gradient, elements, c),
                read(rates),
                update(parameter, c),
            ]
            accesses += [update(state, c) for state in states.values()]
            if scale:
                accesses.append(read(scale))
            count = (c[1] - c[0]) * row
            moved = elements["num_partials"] + 1 if partials else 1
            bounds = {"e0": c[0] * row, "e1": c[1] * row}
            blocks.append((bounds, accesses, 0.0, 4.0 * count * (moved + 2 + 2 * len(states))))
        self.loop(f"{name}.update", f"optimizer_{'sgd' if o.optimizer == 'sgd' else 'adam'}", operands, blocks,
                  self.unit_of(name), "update", **attributes)  # fmt: skip


def phase_of(backward: bool) -> str:
    """Recomputation and packing for data gradients belong to the backward pass."""
    return "backward" if backward else "forward"


def _rows(buffer: str) -> Callable:
    """View function of a buffer (batch, n, 1) as (batch, n)."""
    return lambda arrays: arrays[buffer].reshape(len(arrays[buffer]), -1)


def _parameter_view(buffer: str, shape: tuple[int, ...]) -> Callable:
    return lambda arrays: arrays[buffer].reshape(shape)


def lower_channels(spec: NetworkSpec, options: ChannelOptions, builder: PlanBuilder) -> None:
    """Append the loops of one step to a builder, and set its attribute "aliases"."""
    *_, last = spec.layers
    if not isinstance(last, Softmax) or not isinstance(spec.layers[-2], FullyConnected):
        raise UsageError(
            f"a network must end with FullyConnected and Softmax, {spec.name!r} does not; add them"
        )
    low = _Lowering(spec, options, builder)
    labels = low.load()
    *units, head = low.units
    for unit in units:
        low.forward(unit)
    logits, classes = low.vector(head.sources[0])
    if options.phase == "forward":
        low.softmax(logits, classes, head)
    elif options.phase == "evaluate":
        low.loss(logits, labels, classes, head, "forward")
    else:
        low.gradients[head.sources[0]] = low.loss(logits, labels, classes, head, "backward")
        low.aliases[f"{head.sources[0]}.grad"] = _rows(low.gradients[head.sources[0]])
        low.unfinished = {unit.target for unit in units}
        for segment in reversed(low.segments(units)):
            if any(low.learns[unit.target] for unit in segment):
                for unit in segment[:-1]:
                    low.forward(unit, again=True)
            for unit in reversed(segment):
                low.backward(unit)
        low.update()
    builder.attributes["aliases"] = low.aliases
