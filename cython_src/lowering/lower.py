"""Lowering: a network, a batch and a granularity become a plan."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import UsageError
from ..kernels.convolution.algorithms import CODES, ERROR_LIMIT, RELATIVE_ERROR
from ..kernels.convolution.lanes_forms import FORMS, form_scratch_bytes
from ..kernels.convolution.lanes_winograd import gradient_scratch_bytes, transform_scratch_bytes
from ..kernels.maps.lanes import interior
from ..networks.layers import Convolution, FullyConnected, MaxPool, NetworkSpec, ReLU, Softmax
from ..networks.registry import get_network
from ..plan.model import Access, Block, Plan, PlanBuilder, block_grid, ranges, read, update, write
from .granularity import Granularity
from .options import PlanOptions

UNIT = 16  # images of a group in the lane layout; floats of a unit in the inner loops
KERNEL = 5  # side of the convolutions' kernels
TAPS = KERNEL * KERNEL
SCRATCH_BYTES = 5 * 8192 * 4  # what the convolutions need: rows of five channels
# Blocks of a loop that the default granularity aims at: enough for eight threads. Blocks of few channels read
# their input again: at batch 64, sixteen blocks made the serial step 2 to 3 % slower than uncut channels. More only
# where groups of images are enough by themselves.
BLOCKS_WANTED = 8
BLOCKS_OF_IMAGES = 32
CHANNEL_TILES = (5, 4)  # output channels that the inner loops take at a time
CONVOLUTIONS = ("auto", "direct", "winograd", *FORMS)  # of the layout "lanes"; "flat" has the first two
WINOGRAD_TILE = 4  # side of a tile of results
POINTS = 64  # products of a tile
DRAWN_TOGETHER = 1 << 16  # random initial weights


@dataclass(frozen=True)
class FeatureMap:
    """A buffer (groups, channels, rows, pitch, lanes) and its geometry; see kernels/maps/lanes.pxd.

    In the flat layout (lanes = 1) the right halo of a row is the left halo of the next, and spare rows follow,
    so that the inner loops may read past the last row.
    """

    name: str
    groups: int
    channels: int
    height: int
    width: int
    lanes: int
    halo: int

    @property
    def rows(self) -> int:
        spare = max(2, math.ceil((UNIT + 2) / self.pitch)) if self.flat and self.halo else 0
        return self.height + 2 * self.halo + spare

    @property
    def pitch(self) -> int:
        return self.width + (self.halo if self.flat else 2 * self.halo)

    @property
    def flat(self) -> bool:
        return self.lanes == 1

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.groups, self.channels, self.rows, self.pitch, self.lanes)

    def attributes(self, prefix: str) -> dict[str, int]:
        """The kernel attributes that describe this map."""
        names = ("channels", "height", "width", "rows", "pitch", "halo", "lanes")
        return {f"{prefix}_{name}": getattr(self, name) for name in names}

    def written_rows(self, y0: int, y1: int) -> tuple[int, int]:
        """Physical rows that the producer of interior rows [y0, y1) writes, halo included."""
        return (0 if y0 == 0 else y0 + self.halo, self.rows if y1 == self.height else y1 + self.halo)

    def read_rows(self, y0: int, y1: int) -> tuple[int, int]:
        """Physical rows that rows [y0, y1) of the result of a convolution need; its padding is the halo."""
        stop = y1 + KERNEL - 1
        return (y0, self.rows if stop >= self.height + 2 * self.halo else stop + self.flat)

    def interior_rows(self, y0: int, y1: int) -> tuple[int, int]:
        return (y0 + self.halo, y1 + self.halo)

    def natural(self, batch: int) -> Callable[[Mapping[str, np.ndarray]], np.ndarray]:
        """Function of the arrays that gives the map as (batch, channels, height, width): a view where that is
        possible."""
        attributes = self.attributes("map")

        def view(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
            inside = interior(arrays[self.name], attributes, "map")
            if self.lanes == 1:
                return inside[..., 0]
            images = np.moveaxis(inside, -1, 1)
            return images.reshape(-1, *images.shape[2:])[:batch]

        return view


def direct_cost(channels_in: int, channels_out: int, height: int, width: int) -> int:
    """Multiply-adds of vectors that a convolution of sixteen images takes in direct form; height and width are those
    of the result."""
    return TAPS * channels_in * channels_out * height * width


def winograd_cost(channels_in: int, channels_out: int, height: int, width: int) -> int:
    """Time of a convolution of sixteen images in Winograd form, in the unit of `direct_cost`.

    To transform a tile takes as long as 700 multiply-adds for a channel of the input, 530 for one of the output
    (fitted to the forward passes of the CIFAR-10 network, AVX-512).
    """
    tiles = math.ceil(height / WINOGRAD_TILE) * math.ceil(width / WINOGRAD_TILE)
    return tiles * (POINTS * channels_in * channels_out + 700 * channels_in + 530 * channels_out)


def choose_convolution(channels_in: int, channels_out: int, height: int, width: int) -> str:
    """The cheaper form of a convolution in the lane layout whose error is within the limit, "direct" or "winograd": with
    few channels on both sides the transforms outweigh the products saved."""
    shape = (channels_in, channels_out, height, width)
    if RELATIVE_ERROR["winograd"] > ERROR_LIMIT:
        return "direct"
    return "winograd" if winograd_cost(*shape) < direct_cost(*shape) else "direct"


def choose_lanes(
    batch: int, granularity: Granularity, convolutions: Sequence[tuple[int, int, int, int]], conv: str
) -> int:
    """Images in the lanes (16) or pixels (1): what costs less, if blocks can be cut as asked.

    A last group of images that is not full wastes lanes. Narrow rows of the flat layout run on through the halo,
    its loads cross cache lines, and it sums lanes more often: together some 10 % of a step. And it has the direct
    form alone; `convolutions` are arguments of `choose_convolution`.
    """
    if granularity.images % UNIT:
        return 1
    flat = 1.1 * batch / UNIT * sum(direct_cost(*shape) for shape in convolutions)
    costs = {"direct": direct_cost, "winograd": winograd_cost}
    lanes = math.ceil(batch / UNIT) * sum(
        costs[choose_convolution(*shape) if conv == "auto" else conv](*shape) for shape in convolutions
    )
    return UNIT if lanes <= flat else 1


@dataclass
class _Lowering:
    """State of one lowering; the methods append loops in plan order."""

    network: NetworkSpec
    batch: int
    lanes: int
    granularity: Granularity
    fusion: bool
    chain: bool
    conv: str
    builder: PlanBuilder
    prefix: str
    aliases: dict[str, Callable] = field(default_factory=dict)
    # Layer -> partial gradients of it; loop of a convolution -> its form.
    partials: dict[str, int] = field(default_factory=dict)
    convolutions: dict[str, str] = field(default_factory=dict)

    @property
    def groups(self) -> int:
        return math.ceil(self.batch / self.lanes)

    # ---- buffers ----

    def map(self, name: str, shape: tuple[int, int, int], halo: int, role: str = "activation") -> FeatureMap:
        new = FeatureMap(name, self.groups, *shape, self.lanes, halo)
        self.builder.buffer(name, new.shape, role=role)
        return new

    def index(self, name: str, shape: tuple[int, int, int]) -> str:
        return self.builder.buffer(name, (self.groups, *shape, self.lanes), "uint8")

    # ---- blocks ----

    def group_ranges(self) -> list[tuple[int, int]]:
        """Groups of a block."""
        per_block = self.granularity.images
        if per_block and per_block % self.lanes:
            raise UsageError(
                f"images of a block must be a multiple of {self.lanes} in layout 'lanes', got {per_block}; "
                f"use a multiple, or layout 'auto' or 'flat'"
            )
        if not per_block:
            per_block = self.lanes * math.ceil(self.groups / (BLOCKS_OF_IMAGES if self.lanes > 1 else BLOCKS_WANTED))
        return ranges(self.groups, per_block // self.lanes)

    def channel_ranges(self, channels: int) -> list[tuple[int, int]]:
        if self.granularity.channels:
            return ranges(channels, self.granularity.channels)
        if self.granularity == Granularity():
            pieces = math.ceil(BLOCKS_WANTED / len(self.group_ranges()))
            tile = next((t for t in CHANNEL_TILES if channels % t == 0), channels)
            return ranges(channels, tile * max(1, channels // tile // pieces))
        return [(0, channels)]

    def row_ranges(self, height: int, scale: int = 1) -> list[tuple[int, int]]:
        """Rows of a block; `scale` rows of the convolution are one of the map that is cut."""
        if not self.granularity.rows:
            return [(0, height)]
        return ranges(height, max(1, self.granularity.rows // scale))

    def form(self, loop: str, channels_in: int, channels_out: int, height: int, width: int) -> str:
        """Form of a convolution, noted under the name of its loop."""
        if self.lanes == 1:
            form = "direct"
        elif self.conv == "auto":
            form = choose_convolution(channels_in, channels_out, height, width)
        else:
            form = self.conv
        self.convolutions[loop] = form
        return form

    def kernel(self, form: str, what: str) -> str:
        """Name of the kernel that computes a part of a convolution in a form."""
        return f"{'conv_form' if form in FORMS else 'winograd' if form == 'winograd' else 'conv'}_{what}"

    def form_attributes(self, form: str, channels: int, width: int) -> dict[str, int]:
        """Further attributes of the kernels in a form, for which it asks scratch memory; see `form_scratch_bytes`."""
        if form not in FORMS:
            return {}
        self.builder.scratch(form_scratch_bytes(form, channels, width))
        return {"algorithm": CODES[form]}

    def winograd_ranges(self, channels: int, height: int) -> tuple[list, list]:
        """Channels and rows (of the convolution's result) of blocks in Winograd form, by cost: rows first,
        since blocks of fewer channels transform the same input again."""
        pieces = math.ceil(BLOCKS_WANTED / len(self.group_ranges()))
        tiles = math.ceil(height / WINOGRAD_TILE)
        rows = ranges(height, WINOGRAD_TILE * math.ceil(tiles / min(pieces, tiles)))
        return ranges(channels, math.ceil(channels / math.ceil(pieces / len(rows)))), rows

    def convolution_ranges(self, form: str, channels: int, height: int, scale: int) -> tuple[list, list]:
        """Channels and rows of blocks of a convolution; `scale` rows of its result are one of the map that is
        cut, which has `height`."""
        if form == "winograd" and self.granularity == Granularity():
            channel_ranges, rows = self.winograd_ranges(channels, height * scale)
            return channel_ranges, [(y0 // scale, y1 // scale) for y0, y1 in rows]
        return self.channel_ranges(channels), self.row_ranges(height, scale)

    def transformed_weights(self, layer: str, flip: bool) -> str:
        """Weights in Winograd form (points, channels in, channels out) of the convolution or, flipped, of its
        data gradient; a loop of its own makes them anew in each iteration."""
        weight, _ = self.parameters(layer)
        outputs, inputs = self.network.parameter_shapes()[weight][:2]
        if flip:
            outputs, inputs = inputs, outputs
        name = f"{layer}.data_gradient.transform" if flip else f"{layer}.transform"
        result = self.builder.buffer(f"{name}ed", (POINTS, inputs, outputs), role="temporary")
        blocks = []
        for part in ranges(inputs, math.ceil(inputs / 4)):
            source = (part,) if flip else ((0, outputs), part)
            blocks.append(
                Block(
                    part,
                    (read(weight, *source), write(result, (0, POINTS), part)),
                    bytes=4.0 * (TAPS + POINTS) * outputs * (part[1] - part[0]),
                )
            )
        self.builder.loop(
            name,
            "winograd_weights",
            {"weight": weight, "transformed": result},
            blocks,
            layer=layer,
            phase="backward" if flip else "forward",
            attributes={"outputs": outputs, "inputs": inputs, "flip": int(flip)},
        )
        return result

    def images_in(self, group: tuple[int, int]) -> int:
        """Images, not lanes."""
        return min(group[1] * self.lanes, self.batch) - group[0] * self.lanes

    # ---- forward ----

    def load(self, target: FeatureMap, num_images: int, num_batches: int) -> str:
        b = self.builder
        images = b.buffer(f"{self.prefix}dataset.images", (num_images, *self.network.input_shape), role="dataset")
        all_labels = b.buffer(f"{self.prefix}dataset.labels", (num_images,), "int32", role="dataset")
        order = b.buffer(f"{self.prefix}batch_order", (num_batches, self.batch), "int32", role="table")
        labels = b.buffer("labels", (self.groups, self.lanes), "int32", role="input")
        blocks = [
            Block(
                g,
                (read(images), read(all_labels), read(order), write(target.name, g), write(labels, g)),
                bytes=8.0 * self.images_in(g) * math.prod(self.network.input_shape),
            )
            for g in self.group_ranges()
        ]
        b.loop(
            "load",
            "load_images",
            {
                "images": images,
                "dataset_labels": all_labels,
                "batch_order": order,
                "output": target.name,
                "labels": labels,
            },
            blocks,
            layer="input",
            phase="load",
            attributes={
                **target.attributes("out"),
                "batch": self.batch,
                "num_batches": num_batches,
                "num_images": num_images,
            },
        )
        return labels

    def parameters(self, layer: str) -> tuple[str, str]:
        shapes = self.network.parameter_shapes()
        return tuple(
            self.builder.buffer(f"{layer}.{kind}", shapes[f"{layer}.{kind}"], role="parameter")
            for kind in ("weight", "bias")
        )

    def convolution(self, name: str, source: FeatureMap, target: FeatureMap, index: str | None = None) -> None:
        """Convolution alone, or with ReLU and pooling when `index` is given."""
        weight, bias = self.parameters(name)
        scale = 2 if index else 1
        form = self.form(name, source.channels, target.channels, target.height * scale, target.width * scale)
        winograd = form == "winograd"
        if winograd:
            weight = self.transformed_weights(name, False)
        blocks = []
        for g, c, y in block_grid(
            self.group_ranges(), *self.convolution_ranges(form, target.channels, target.height, scale)
        ):
            rows = (y[1] - y[0]) * scale
            channels, images = c[1] - c[0], self.images_in(g)
            accesses = [
                read(source.name, g, (0, source.channels), source.read_rows(y[0] * scale, y[1] * scale)),
                read(weight, (0, POINTS), (0, source.channels), c) if winograd else read(weight, c),
                read(bias, c),
                write(target.name, g, c, target.written_rows(*y)),
            ]
            if index:
                accesses.append(write(index, g, c, y))
            blocks.append(
                Block(
                    (*g, *c, *y),
                    tuple(accesses),
                    flops=2.0 * TAPS * source.channels * channels * rows * target.width * scale * images,
                    bytes=4.0
                    * images
                    * (
                        source.channels * rows * target.width * scale
                        + channels * (y[1] - y[0]) * target.width * (1.25 if index else 1)
                    ),
                )
            )
        weight_operand = "transformed" if winograd else "weight"
        operands = {"input": source.name, weight_operand: weight, "bias": bias, "output": target.name}
        if index:
            operands["index"] = index
        self.builder.loop(
            name,
            self.kernel(form, "relu_pool" if index else "forward"),
            operands,
            blocks,
            layer=name,
            phase="forward",
            attributes={
                **source.attributes("in"),
                **target.attributes("out"),
                **self.form_attributes(form, source.channels, target.width * scale),
            },
        )
        self.builder.scratch(transform_scratch_bytes(source.channels, target.channels) if winograd else SCRATCH_BYTES)

    def elementwise(
        self,
        name: str,
        layer: str,
        kernel: str,
        phase: str,
        operands: dict[str, str],
        source: FeatureMap,
        target: FeatureMap,
        cut: FeatureMap,
        index: str | None = None,
    ) -> None:
        """ReLU or pooling, either way; blocks are cut by groups, channels and rows of the smaller map,
        `cut`."""
        blocks = []
        for g, c, y in block_grid(
            self.group_ranges(), self.channel_ranges(cut.channels), self.row_ranges(cut.height, 2)
        ):
            accesses = []
            for operand, buffer in operands.items():
                if buffer == index:
                    accesses.append(Access(1 if operand == "index" and phase == "forward" else 0, index, (g, c, y)))
                    continue
                feature_map = target if buffer == target.name else source
                scale = feature_map.height // cut.height
                rows = y[0] * scale, y[1] * scale
                if operand == "output":
                    accesses.append(write(buffer, g, c, feature_map.written_rows(*rows)))
                else:
                    accesses.append(read(buffer, g, c, feature_map.interior_rows(*rows)))
            size = (c[1] - c[0]) * (y[1] - y[0]) * cut.width * self.images_in(g)
            moved = sum((m.height // cut.height) ** 2 for m in (source, target))
            blocks.append(Block((*g, *c, *y), tuple(accesses), bytes=4.0 * size * moved))
        self.builder.loop(
            name,
            kernel,
            operands,
            blocks,
            layer=layer,
            phase=phase,
            attributes={**source.attributes("in"), **target.attributes("out")},
        )

    def fully_connected(
        self, name: str, source: FeatureMap, features: int, outputs: int, relu: str | None, last: bool
    ) -> FeatureMap:
        """Fully connected layer alone, or with the ReLU of that name; its result is a map of single pixels."""
        weight, bias = self.parameters(name)
        result = FeatureMap(relu or name, self.groups, outputs, 1, 1, self.lanes, 0)
        # Logits are no map for the kernels after them.
        self.builder.buffer(result.name, (self.groups, outputs, self.lanes) if last else result.shape)
        blocks = [
            Block(
                g,
                (read(source.name, g), read(weight), read(bias), write(result.name, g)),
                flops=2.0 * features * outputs * self.images_in(g),
                bytes=4.0 * features * self.images_in(g),
            )
            for g in self.group_ranges()
        ]
        self.builder.loop(
            name,
            "fc_relu_forward" if relu else "fc_forward",
            {"input": source.name, "weight": weight, "bias": bias, "output": result.name},
            blocks,
            attributes={"features": features, "outputs": outputs, "lanes": self.lanes},
            layer=name,
            phase="forward",
        )
        self.aliases[result.name] = _rows_by_image(result.name, self.batch)
        return result

    def softmax(self, logits: str, classes: int) -> None:
        b = self.builder
        probabilities = b.buffer(f"{self.prefix}probabilities", (self.batch, classes), role="log")
        predictions = b.buffer(f"{self.prefix}predictions", (self.batch,), "int32", role="log")
        blocks = []
        for g in self.group_ranges():
            images = (g[0] * self.lanes, min(g[1] * self.lanes, self.batch))
            blocks.append(
                Block(
                    g,
                    (read(logits, g), write(probabilities, images), write(predictions, images)),
                    bytes=8.0 * classes * self.images_in(g),
                )
            )
        b.loop(
            "softmax",
            "softmax",
            {"logits": logits, "probabilities": probabilities, "predictions": predictions},
            blocks,
            attributes={"classes": classes, "lanes": self.lanes, "batch": self.batch},
            layer="softmax",
            phase="forward",
        )

    # ---- backward ----

    def backward(
        self,
        stages: list[_Stage],
        dense: list[_Dense],
        dlogits: str,
        inputs: list[FeatureMap],
        relus: list[FeatureMap],
        indices: list[str],
        hidden: list[FeatureMap],
    ) -> None:
        """From the gradient of the logits to all weight gradients. `inputs` are those of the convolutions, `hidden`
        those of the fully connected layers but the first."""
        last = stages[-1]
        gradient = dlogits
        for i in reversed(range(len(dense))):
            layer = dense[i]
            shape = {"features": layer.features, "outputs": layer.outputs, "lanes": self.lanes}
            below = hidden[i - 1] if i else None
            if below:
                # Gradient of the layer below: at once, or that of its ReLU first.
                dy = self.map(f"{dense[i - 1].name}.gradient", (layer.features, 1, 1), 0, "gradient")
                target = dy
                if not self.fusion:
                    target = self.map(f"{dense[i - 1].relu}.gradient", (layer.features, 1, 1), 0, "gradient")
                self.dense_data_gradient(layer.name, gradient, target, shape, None, below if self.fusion else None)
            elif self.fusion:
                dy = self.stage_gradient(stages, len(stages) - 1)
                self.dense_data_gradient(layer.name, gradient, dy, shape, indices[-1])
            else:
                pooled = self.map(
                    f"{last.pool}.gradient", (last.channels, last.height // 2, last.width // 2), 0, "gradient"
                )
                self.dense_data_gradient(layer.name, gradient, pooled, shape)
            self.weight_gradient(
                layer.name,
                "fc_backward_weights",
                {"gradient": gradient, "input": below.name if below else last.pool},
                shape,
                layer.outputs,
                layer.features,
                None,
                2.0 * layer.features * layer.outputs,
                4.0 * layer.features,
            )
            if below:
                if not self.fusion:
                    self.relu_gradient(dense[i - 1].relu, target, below, dy)
                gradient = dy.name
        for i in reversed(range(len(stages))):
            stage = stages[i]
            if not self.fusion:
                after = (stage.channels, stage.height, stage.width)
                positive = self.map(f"{stage.relu}.gradient", after, 0, "gradient")
                dy = self.stage_gradient(stages, i)
                self.elementwise(
                    f"{stage.pool}.gradient",
                    stage.pool,
                    "pool_backward",
                    "backward",
                    {"gradient": pooled.name, "index": indices[i], "output": positive.name},
                    pooled,
                    positive,
                    pooled,
                    indices[i],
                )
                self.relu_gradient(stage.relu, positive, relus[i], dy)
            self.convolution_weight_gradient(stage.conv, dy, inputs[i])
            if i == 0:
                break
            if self.fusion:
                below = self.stage_gradient(stages, i - 1)
                self.convolution_data_gradient(stage.conv, dy, below, indices[i - 1])
                dy = below
            else:
                shape_below = (stages[i - 1].channels, stages[i - 1].height // 2, stages[i - 1].width // 2)
                pooled = self.map(f"{stages[i - 1].pool}.gradient", shape_below, 0, "gradient")
                self.convolution_data_gradient(stage.conv, dy, pooled)

    def stage_gradient(self, stages: list[_Stage], i: int) -> FeatureMap:
        """Map for the gradient of a stage's convolution."""
        stage = stages[i]
        # A data gradient needs a halo; so does the weight gradient in the flat layout where rows are no whole
        # units, because it runs on from one row to the next.
        halo = KERNEL - 1 - stage.padding if i > 0 or (self.lanes == 1 and stage.width % UNIT) else 0
        return self.map(f"{stage.conv}.gradient", (stage.channels, stage.height, stage.width), halo, "gradient")

    def relu_gradient(self, name: str, gradient: FeatureMap, output: FeatureMap, target: FeatureMap) -> None:
        self.elementwise(
            f"{name}.gradient",
            name,
            "relu_backward",
            "backward",
            {"gradient": gradient.name, "activation": output.name, "output": target.name},
            gradient,
            target,
            gradient,
        )

    def dense_data_gradient(
        self,
        name: str,
        gradient: str,
        target: FeatureMap,
        shape: dict[str, int],
        index: str | None = None,
        activation: FeatureMap | None = None,
    ) -> None:
        """Data gradient of a fully connected layer, spread by the index of the pooling before it, or stopped where the
        ReLU before it was, when one is given."""
        weight, _ = self.parameters(name)
        operands = {"gradient": gradient, "weight": weight, "output": target.name}
        attributes = dict(shape)
        kernel = "fc_backward_data"
        if activation:
            operands["activation"] = activation.name
            kernel += "_relu"
        if index:
            operands["index"] = index
            kernel += "_unpool"
            attributes |= target.attributes("out")
            self.builder.scratch(4 * shape["features"] * self.lanes)
        mask = index or (activation.name if activation else None)
        blocks = []
        for g in self.group_ranges():
            images, masks = self.images_in(g), (read(mask, g),) if mask else ()
            blocks.append(
                Block(
                    g,
                    (read(gradient, g), read(weight), *masks, write(target.name, g)),
                    flops=2.0 * shape["features"] * shape["outputs"] * images,
                    bytes=4.0 * images * shape["features"] * (5.25 if index else 1),
                )
            )
        self.builder.loop(
            f"{name}.data_gradient", kernel, operands, blocks, attributes=attributes, layer=name, phase="backward"
        )

    def loss(self, logits: str, labels: str, classes: int, length: int, phase: str) -> str:
        b = self.builder
        gradient = b.buffer(f"{logits}.gradient", (self.groups, classes, self.lanes), role="gradient")
        losses = b.buffer("group_losses", (self.groups,), role="temporary")
        correct = b.buffer("group_correct", (self.groups,), "int32", role="temporary")
        log = b.buffer(f"{self.prefix}losses", (length,), role="log")
        correct_log = b.buffer(f"{self.prefix}correct", (length,), "int32", role="log")
        blocks = [
            Block(
                g,
                (read(logits, g), read(labels, g), write(gradient, g), write(losses, g), write(correct, g)),
                bytes=8.0 * classes * self.images_in(g),
            )
            for g in self.group_ranges()
        ]
        b.loop(
            "softmax",
            "softmax_loss",
            {"logits": logits, "labels": labels, "gradient": gradient, "losses": losses, "correct": correct},
            blocks,
            attributes={
                "classes": classes,
                "lanes": self.lanes,
                "batch": self.batch,
                "label_smoothing": b.attributes["label_smoothing"],
            },
            layer="softmax",
            phase=phase,
        )
        b.loop(
            "loss",
            "loss_sum",
            {"losses": losses, "correct": correct, "loss_log": log, "correct_log": correct_log},
            [Block((), (read(losses), read(correct), update(log), update(correct_log)), bytes=8.0 * self.groups)],
            attributes={
                "groups": self.groups,
                "batch": self.batch,
                "length": length,
                "check_finite": b.attributes["check_finite"],
            },
            layer="softmax",
            phase=phase,
        )
        return gradient

    def weight_gradient(
        self,
        layer: str,
        kernel: str,
        operands: dict[str, str],
        attributes: dict[str, int],
        outputs: int,
        inputs: int,
        channels: list[tuple[int, int]] | None,
        flops_of_image: float,
        bytes_of_image: float,
        row_maps: tuple[FeatureMap, FeatureMap] | None = None,
        rows: list[tuple[int, int]] | None = None,
    ) -> None:
        """Partial gradients, one for each block of groups and rows, or a chain of loops that add to one buffer.

        `channels` and `rows` (of the gradient, the first of `row_maps`; the other is the input) are those of
        blocks; None where the kernel's blocks have all.
        """
        b = self.builder
        groups = self.group_ranges()
        parts = list(block_grid(groups, rows)) if rows else [(g,) for g in groups]
        count = self.partials[layer] = 1 if self.chain else len(parts)
        partials = b.buffer(
            f"{layer}.partial_gradients", (count, outputs, inputs + 1), role="gradient", carried=self.chain
        )
        links = [[part] for part in parts] if self.chain else [parts]
        for link, some in enumerate(links):
            blocks = []
            for (g, *y), c in ((part, c) for part in some for c in channels or [(0, outputs)]):
                number = 0 if self.chain else parts.index((g, *y))
                output = (update if link else write)(partials, (number, number + 1), c)
                share = (c[1] - c[0]) / outputs * self.images_in(g)
                bounds = (number, *g, *(c if channels else ()), *(n for pair in y for n in pair))
                gradient_box: tuple = (g, c) if channels else (g,)
                input_box: tuple = (g,)
                if rows:
                    gradient, source = row_maps
                    share *= (y[0][1] - y[0][0]) / gradient.height
                    gradient_box += (gradient.interior_rows(*y[0]),)
                    input_box += ((0, source.channels), source.read_rows(*y[0]))
                blocks.append(
                    Block(
                        bounds,
                        (read(operands["gradient"], *gradient_box), read(operands["input"], *input_box), output),
                        flops=flops_of_image * share,
                        bytes=bytes_of_image * share,
                    )
                )
            b.loop(
                f"{layer}.weight_gradient" + (f".{link}" if self.chain else ""),
                kernel,
                {**operands, "output": partials},
                blocks,
                layer=layer,
                phase="backward",
                attributes={**attributes, "accumulate": int(link > 0)},
            )

    def convolution_weight_gradient(self, layer: str, gradient: FeatureMap, source: FeatureMap) -> None:
        pixels = gradient.height * gradient.width
        name = f"{layer}.weight_gradient"
        form = self.form(name, gradient.channels, source.channels, gradient.height, gradient.width)
        channels, rows = self.channel_ranges(gradient.channels), None
        if form == "winograd":
            rows = [(0, gradient.height)]
            if not self.chain and self.granularity == Granularity():
                channels, rows = self.winograd_ranges(gradient.channels, gradient.height)
            self.builder.scratch(gradient_scratch_bytes(source.channels, gradient.channels))
        self.weight_gradient(
            layer,
            self.kernel(form, "backward_weights"),
            {"gradient": gradient.name, "input": source.name},
            {
                **gradient.attributes("dy"),
                **source.attributes("in"),
                **self.form_attributes(form, source.channels, gradient.width),
            },
            gradient.channels,
            source.channels * TAPS,
            channels,
            2.0 * TAPS * source.channels * gradient.channels * pixels,
            4.0 * (gradient.channels + source.channels) * pixels,
            (gradient, source),
            rows,
        )

    def convolution_data_gradient(
        self, layer: str, gradient: FeatureMap, target: FeatureMap, index: str | None = None
    ) -> None:
        """dX of a convolution; with an index, spread at once to the gradient of the convolution before the
        pooling."""
        weight, _ = self.parameters(layer)
        scale = 2 if index else 1
        height, width = target.height // scale, target.width // scale
        name = f"{layer}.data_gradient"
        form = self.form(name, gradient.channels, target.channels, height, width)
        winograd = form == "winograd"
        if winograd:
            weight = self.transformed_weights(layer, True)
        blocks = []
        for g, c, y in block_grid(self.group_ranges(), *self.convolution_ranges(form, target.channels, height, 1)):
            size, images, channels = (y[1] - y[0]) * width, self.images_in(g), c[1] - c[0]
            accesses = [
                read(gradient.name, g, (0, gradient.channels), gradient.read_rows(*y)),
                read(weight, (0, POINTS), (0, gradient.channels), c) if winograd else read(weight),
                write(target.name, g, c, target.written_rows(y[0] * scale, y[1] * scale)),
            ]
            if index:
                accesses.append(read(index, g, c, y))
            blocks.append(
                Block(
                    (*g, *c, *y),
                    tuple(accesses),
                    flops=2.0 * TAPS * gradient.channels * channels * size * images,
                    bytes=4.0 * images * size * (gradient.channels + channels * (4.25 if index else 1)),
                )
            )
        weight_operand = "transformed" if winograd else "weight"
        operands = {"gradient": gradient.name, weight_operand: weight, "output": target.name}
        if index:
            operands["index"] = index
        self.builder.loop(
            name,
            self.kernel(form, "backward_data_unpool" if index else "backward_data"),
            operands,
            blocks,
            layer=layer,
            phase="backward",
            attributes={
                **gradient.attributes("in"),
                **target.attributes("out"),
                **self.form_attributes(form, gradient.channels, width),
            },
        )
        self.builder.scratch(transform_scratch_bytes(gradient.channels, target.channels) if winograd else SCRATCH_BYTES)

    def sgd(self, layer: str, momentum: float, weight_decay: float, num_rates: int) -> None:
        b = self.builder
        weight, bias = self.parameters(layer)
        shape = self.network.parameter_shapes()[weight]
        outputs, inputs = shape[0], math.prod(shape[1:])
        weight_momentum = b.buffer(f"{weight}.momentum", shape, role="optimizer_state")
        bias_momentum = b.buffer(f"{bias}.momentum", (outputs,), role="optimizer_state")
        rates = b.buffer("learning_rates", (num_rates,), role="table")
        partials = f"{layer}.partial_gradients"
        count = self.partials[layer]
        # Declared as carried, so that it is still there for users after a step in which memory is shared.
        gradient = (
            partials
            if self.chain
            else b.buffer(f"{layer}.gradient_sum", (outputs, inputs + 1), role="gradient", carried=True)
        )
        blocks = []
        for rows in self.channel_ranges(outputs):
            sums = (
                (update(partials, (0, 1), rows),)
                if self.chain
                else (read(partials, (0, count), rows), write(gradient, rows))
            )
            size = (rows[1] - rows[0]) * (inputs + 1)
            blocks.append(
                Block(
                    rows,
                    (
                        *sums,
                        update(weight, rows),
                        update(bias, rows),
                        update(weight_momentum, rows),
                        update(bias_momentum, rows),
                        read(rates),
                    ),
                    flops=size * (count + 5.0),
                    bytes=4.0 * size * (count + 5),
                )
            )
        b.loop(
            f"{layer}.update",
            "sgd",
            {
                "partials": partials,
                "gradient": gradient,
                "weight": weight,
                "bias": bias,
                "weight_momentum": weight_momentum,
                "bias_momentum": bias_momentum,
                "learning_rates": rates,
            },
            blocks,
            layer=layer,
            phase="update",
            attributes={
                "partials": count,
                "outputs": outputs,
                "inputs": inputs,
                "num_rates": num_rates,
                "momentum": momentum,
                "weight_decay": weight_decay,
            },
        )
        for name, kind, shape_ in ((weight, "weight", shape), (bias, "bias", (outputs,))):
            self.aliases[f"{name}.grad"] = _gradient_view(gradient, kind, outputs, inputs, shape_)

    def adam(
        self, layer: str, decoupled: bool, betas: tuple[float, float], eps: float, weight_decay: float, num_rates: int
    ) -> None:
        """Adam's or AdamW's step for weights and for biases, a loop each."""
        b = self.builder
        shapes = self.network.parameter_shapes()
        weight, bias = self.parameters(layer)
        outputs, inputs = shapes[weight][0], math.prod(shapes[weight][1:])
        rates = b.buffer("learning_rates", (num_rates,), role="table")
        partials, count = f"{layer}.partial_gradients", self.partials[layer]
        for name, row, offset in ((weight, inputs, 0), (bias, 1, inputs)):
            gradient = b.buffer(f"{name}.gradient_sum", shapes[name], role="gradient", carried=True)
            moments = [
                b.buffer(f"{name}.{kind}", shapes[name], role="optimizer_state") for kind in ("exp_avg", "exp_avg_sq")
            ]
            blocks = []
            for rows in self.channel_ranges(outputs):
                accesses = [read(partials, (0, count), rows), write(gradient, rows), read(rates), update(name, rows)]
                accesses += [update(moment, rows) for moment in moments]
                size = 4.0 * (rows[1] - rows[0]) * row * (count + 7)
                blocks.append(Block((rows[0] * row, rows[1] * row), tuple(accesses), bytes=size))
            b.loop(
                f"{name}.update",
                "optimizer_adam",
                {
                    "partials": partials,
                    "gradient": gradient,
                    "parameter": name,
                    "first_moment": moments[0],
                    "second_moment": moments[1],
                    "learning_rates": rates,
                },
                blocks,
                layer=layer,
                phase="update",
                attributes={
                    "num_partials": count,
                    "partial_stride": outputs * (inputs + 1),
                    "row_length": row,
                    "row_stride": inputs + 1,
                    "row_offset": offset,
                    "num_rates": num_rates,
                    "decoupled": int(decoupled),
                    "beta1": betas[0],
                    "beta2": betas[1],
                    "eps": eps,
                    "weight_decay": weight_decay,
                },
            )
            self.aliases[f"{name}.grad"] = _plain_view(gradient)


def _plain_view(buffer: str) -> Callable:
    return lambda arrays: arrays[buffer]


def _gradient_view(buffer: str, kind: str, outputs: int, inputs: int, shape: tuple[int, ...]) -> Callable:
    part = slice(0, inputs) if kind == "weight" else inputs
    return lambda arrays: arrays[buffer].reshape(outputs, inputs + 1)[:, part].reshape(shape)


def _rows_by_image(buffer: str, batch: int) -> Callable:
    """View function of a buffer (groups, n, lanes), or of a map of single pixels, as (batch, n)."""

    def view(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        array = arrays[buffer]
        array = array.reshape(*array.shape[:2], array.shape[-1])
        return array.transpose(0, 2, 1).reshape(-1, array.shape[1])[:batch]

    return view


def lower(
    network: str | NetworkSpec,
    options: PlanOptions | None = None,
    *,
    num_images: int | None = None,
    num_batches: int = 1,
    num_iterations_logged: int = 1000,
    num_learning_rates: int = 1,
    prefix: str = "",
    **changes: Any,
) -> Plan:
    """Return the plan of one step.

    Parameters
    ----------
    network : str or NetworkSpec
    options : PlanOptions, optional
        What is computed and how it is cut; the defaults of `PlanOptions` if none are given.
    num_images, num_batches : int
        Size of the data set (default: the batch) and rows of "batch_order".
    num_iterations_logged, num_learning_rates : int
        Lengths of "losses" and "correct", and of "learning_rates"; both are indexed by the iteration modulo length.
    prefix : str
        Put before the names of data set, batch order and logs, so that plans with different data can share parameters.
    **changes
        Fields of `PlanOptions` that differ from `options`.

    Raises
    ------
    UsageError
        Unknown network or option, a batch below one, or a network whose layers have no kernels.
    """
    spec = get_network(network) if isinstance(network, str) else network
    if not isinstance(options, PlanOptions):
        if options is not None:
            raise UsageError(
                f"options must be PlanOptions, got {options!r}; name single ones: lower(network, batch=16)"
            )
        options = PlanOptions()
    if changes:
        options = options.with_changes(**changes)
    for name, value in (
        ("num_images", num_images if num_images is not None else options.batch),
        ("num_batches", num_batches),
        ("num_iterations_logged", num_iterations_logged),
        ("num_learning_rates", num_learning_rates),
    ):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
            raise UsageError(f"{name} must be a whole number of at least 1, got {value!r}")
    batch, phase, conv, layout, cut = options.batch, options.phase, options.conv, options.layout, options.cut
    if layout == "auto" and (conv not in CONVOLUTIONS or not is_chain_of_stages(spec)):
        layout = "channels"
    elif layout == "auto":
        flat = conv in ("auto", "direct") and all(stage.padding == 2 for stage in _stages(spec)[0])
        wanted = choose_lanes(batch, cut, _convolution_shapes(spec), conv) if flat else UNIT
        layout = "lanes" if wanted == UNIT else "flat"
    builder = PlanBuilder(
        f"{spec.name} {phase} b{batch}",
        network=spec.name,
        **{**options.as_dict(), "layout": layout, "check_finite": int(options.check_finite)},
        parameters=tuple(spec.parameter_shapes()),
        num_classes=spec.num_classes,
    )
    if layout == "channels":
        from .channels import ChannelOptions, lower_channels

        lower_channels(
            spec,
            ChannelOptions(
                batch=batch,
                phase=phase,
                granularity=cut,
                chain=options.chain,
                fusion=options.fusions,
                conv=conv,
                optimizer=options.optimizer,
                momentum=options.momentum,
                weight_decay=options.weight_decay,
                betas=options.betas,
                eps=options.eps,
                label_smoothing=options.label_smoothing,
                clip_norm=options.clip_norm,
                frozen=options.frozen_layers,
                recompute=options.recompute,
                seed=options.dropout_seed,
                num_images=num_images or batch,
                num_batches=num_batches,
                num_iterations_logged=num_iterations_logged,
                num_learning_rates=num_learning_rates,
                prefix=prefix,
            ),
            builder,
        )
        return builder.build(options.memory)
    for name, value, only in (
        ("clip_norm", options.clip_norm, 0.0),
        ("frozen", options.frozen, ""),
        ("recompute", options.recompute, False),
    ):
        if value != only:
            raise UsageError(
                f"{name} must be {only!r} in layout {layout!r}, got {value!r}; networks with norms have the others"
            )
    if conv not in CONVOLUTIONS[: None if layout == "lanes" else 2]:
        raise UsageError(
            f"conv {conv!r} needs layout {'lanes' if conv in CONVOLUTIONS else 'channels'!r}, got {layout!r}; use conv "
            f"'auto' or 'direct'"
        )
    if options.fusion not in ("all", "none"):
        raise UsageError(f"fusion must be all or none in layout {layout!r}, got {options.fusion!r}")
    fusion = options.fusion == "all"
    stages, dense = _stages(spec)
    if layout == "flat" and any(stage.padding != 2 for stage in stages):
        raise UsageError(
            f"layout 'flat' needs convolutions with padding 2, {spec.name!r} has others; use layout 'lanes'"
        )
    lanes = UNIT if layout == "lanes" else 1
    low = _Lowering(spec, batch, lanes, cut, fusion, options.chain, conv, builder, prefix)

    source = low.map("input", spec.input_shape, stages[0].padding, role="input")
    labels = low.load(source, num_images or batch, num_batches)
    low.aliases["input"] = source.natural(batch)
    inputs, relus, indices = [], [], []
    for i, stage in enumerate(stages):
        inputs.append(source)
        after = (stage.channels, stage.height, stage.width)
        pooled = (stage.channels, stage.height // 2, stage.width // 2)
        target = low.map(stage.pool, pooled, stages[i + 1].padding if i + 1 < len(stages) else 0)
        index = low.index(f"{stage.pool}.index", pooled)
        if fusion:
            low.convolution(stage.conv, source, target, index)
        else:
            linear, positive = low.map(stage.conv, after, 0), low.map(stage.relu, after, 0)
            low.convolution(stage.conv, source, linear)
            low.elementwise(
                stage.relu,
                stage.relu,
                "relu_forward",
                "forward",
                {"input": linear.name, "output": positive.name},
                linear,
                positive,
                linear,
            )
            low.elementwise(
                stage.pool,
                stage.pool,
                "pool_forward",
                "forward",
                {"input": positive.name, "output": target.name, "index": index},
                positive,
                target,
                target,
                index,
            )
            relus.append(positive)
            for m in (linear, positive):
                low.aliases[m.name] = m.natural(batch)
        low.aliases[stage.pool] = target.natural(batch)
        indices.append(index)
        source = target
    hidden: list[FeatureMap] = []
    for layer in dense:
        result = low.fully_connected(
            layer.name, source, layer.features, layer.outputs, layer.relu if fusion else None, layer is dense[-1]
        )
        if layer.relu:
            if not fusion:
                linear, result = result, low.map(layer.relu, (layer.outputs, 1, 1), 0)
                low.elementwise(
                    layer.relu,
                    layer.relu,
                    "relu_forward",
                    "forward",
                    {"input": linear.name, "output": result.name},
                    linear,
                    result,
                    linear,
                )
                low.aliases[result.name] = _rows_by_image(result.name, batch)
            hidden.append(result)
        source = result
    logits, classes = source.name, dense[-1].outputs
    if phase == "forward":
        low.softmax(logits, classes)
        low.aliases["softmax"] = lambda arrays: arrays[f"{prefix}probabilities"]
    elif phase == "evaluate":
        low.loss(logits, labels, classes, num_iterations_logged, "forward")
    else:
        dlogits = low.loss(logits, labels, classes, num_iterations_logged, "backward")
        low.aliases[f"{logits}.grad"] = _rows_by_image(dlogits, batch)
        low.backward(stages, dense, dlogits, inputs, relus, indices, hidden)
        for name in (*(layer.name for layer in reversed(dense)), *(stage.conv for stage in reversed(stages))):
            if options.optimizer == "sgd":
                low.sgd(name, options.momentum, options.weight_decay, num_learning_rates)
            else:
                decoupled = options.optimizer == "adamw"
                low.adam(name, decoupled, options.betas, options.eps, options.weight_decay, num_learning_rates)
    builder.attributes["aliases"] = low.aliases
    builder.attributes["convolutions"] = low.convolutions
    return builder.build(options.memory)


@dataclass(frozen=True)
class _Stage:
    """Convolution, ReLU and pooling by name, with the convolution's output shape and padding."""

    conv: str
    relu: str
    pool: str
    channels: int
    height: int
    width: int
    padding: int


@dataclass(frozen=True)
class _Dense:
    """Fully connected layer, and the ReLU after it if there is one."""

    name: str
    relu: str
    features: int
    outputs: int


def is_chain_of_stages(spec: NetworkSpec) -> bool:
    """Whether the layouts "lanes" and "flat" compute this network."""
    try:
        _stages(spec)
    except UsageError:
        return False
    return True


def _stages(spec: NetworkSpec) -> tuple[list[_Stage], list[_Dense]]:
    """Cut a network into the parts that have kernels in the layouts "lanes" and "flat".

    Raises
    ------
    UsageError
        It has another part.
    """
    shapes = {layer.name: (before, after) for layer, before, after in spec.shapes()}
    names = ["input", *shapes]
    rest = list(spec.layers)

    def next_are(*kinds: type) -> bool:
        return [type(layer) for layer in rest[: len(kinds)]] == list(kinds)

    stages: list[_Stage] = []
    dense: list[_Dense] = []
    while next_are(Convolution, ReLU, MaxPool):
        conv, relu, pool = rest[:3]
        del rest[:3]
        channels, height, width = shapes[conv.name][1]
        plain = Convolution(conv.name, conv.out_channels, KERNEL, min(max(conv.padding, 0), 2), after=conv.after)
        if conv != plain or pool != MaxPool(pool.name, pool.size, after=pool.after):
            raise UsageError(
                f"convolutions must have kernel 5, padding 0 to 2 and a bias, and pooling no overlap, got {conv} and "
                f"{pool}"
            )
        if pool.size != 2 or height % 2 or width % 2 or width > 254:
            raise UsageError(
                f"pooling must have size 2 and its input even sides of at most 254, got size {pool.size} on "
                f"{height} x {width} in {pool.name!r}"
            )
        stages.append(_Stage(conv.name, relu.name, pool.name, channels, height, width, conv.padding))
    while next_are(FullyConnected, ReLU) or next_are(FullyConnected, Softmax):
        layer, after = rest[:2]
        dense.append(
            _Dense(
                layer.name,
                after.name if isinstance(after, ReLU) else "",
                math.prod(shapes[layer.name][0]),
                layer.out_features,
            )
        )
        del rest[: 2 if isinstance(after, ReLU) else 1]
    if (
        not stages
        or not dense
        or not (next_are(Softmax) and len(rest) == 1)
        or dense[-1].relu
        or list(spec.inputs().values()) != [(name,) for name in names[:-1]]
    ):
        raise UsageError(
            f"a network must be stages of Convolution, ReLU, MaxPool, then FullyConnected layers with ReLU between and "
            f"Softmax; {spec.name!r} is {', '.join(type(layer).__name__ for layer in spec.layers)}"
        )
    return stages, dense


def _convolution_shapes(spec: NetworkSpec) -> list[tuple[int, int, int, int]]:
    return [(before[0], *after) for layer, before, after in spec.shapes() if isinstance(layer, Convolution)]


def initialise(bound, seed: int = 0) -> None:
    """Set the parameters of a bound plan: He's normal distribution for weights, 1 for the weights of norms, zero for
    biases; the optimiser's state to zero and running statistics to mean 0 and variance 1.

    Drawn in double precision and rounded, in the order of the layers: the same for every target and
    instruction set. Some at a time: the memory of a layer's numbers in double precision would stay with the process.
    """
    generator = np.random.default_rng(seed)
    for name in bound.plan.attributes["parameters"]:
        array = bound.arrays[name]
        if array.ndim > 1:
            deviation = math.sqrt(2.0 / math.prod(array.shape[1:]))
            numbers = array.reshape(-1)
            for start, stop in ranges(numbers.size, DRAWN_TOGETHER):
                numbers[start:stop] = (generator.standard_normal(stop - start) * deviation).astype(np.float32)
        else:
            array[...] = 1 if name.endswith(".weight") else 0
    for name, buffer in bound.plan.buffers.items():
        if buffer.role in ("optimizer_state", "statistic"):
            bound.arrays[name][...] = 1 if name.endswith(".running_var") else 0
