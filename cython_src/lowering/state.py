"""The layout and the state that all parts of a lowering share: they ask the one and change the other.

The common part of the lowering (units, step, gradients, updates, and the layers without windows) knows tensors by name,
samples, and the shape of one sample. It knows neither rows nor columns nor channels: a layout of tokens, with a
sequence axis, needs a `Layout` and no second lowering.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Protocol

import numpy as np

from ..errors import UsageError
from ..kernels import kernel_table
from ..kernels.interface.arguments import STRUCTS
from ..kernels.interface.kernel_spec import KernelSpec
from ..networks.layers import SEQUENCE, Layer, Linear, Network, SoftmaxCrossEntropy
from ..plan.builder import PlanBuilder, ranges
from ..records import Record, about
from .options import PlanOptions
from .units import Unit, readers_of, units_of

MAP_NAMES = {*STRUCTS["Map"], *STRUCTS["NhwcMap"]}  # of kernels' attributes that describe a map
BLOCKS_OF_UPDATE = 16  # for eight threads
UPDATE_ELEMENTS = 65536  # parameters of a block of the update, at least
PARTS_ON_DEVICE = 64  # of a sum over all samples on a GPU, at most: with 2 to 64 CUDA blocks each they fill it


class TensorMap(Protocol):
    """A tensor in memory: a buffer with its geometry."""

    name: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the buffer."""

    def natural(self) -> Callable[[Mapping], object]:
        """Function of the arrays that gives the tensor as (batch, *shape of a sample)."""


Maps = Mapping[str, TensorMap]  # by operand


@dataclass(frozen=True)
class Loops:
    """The functions that append the loops of a kind of layer."""

    forward: Callable[[Lowering, Unit, bool], None]  # takes whether this is a recomputation, into buffers of its own
    backward: Callable[[Lowering, Unit, TensorMap], None]  # takes the gradient of the result, before its activation
    # No loop of its own sends the gradient past the activation: the kernels of `backward` do so, or those of the units
    # that read the result have done so.
    masks: bool = False


@dataclass(frozen=True)
class Ends:
    """The functions that append the first and the last loops of a step: samples come in, answers go out."""

    images: bool  # samples are images, else sequences of tokens
    load: Callable[[Lowering], str]  # gathers a batch; returns the buffer of its labels
    answer: Callable[[Lowering, Layer], None]  # what inference answers
    # Loss and number of right answers; returns the gradient of the logits, which it computes in phase "backward".
    loss: Callable[[Lowering, str, Layer, str], TensorMap]


class Layout(ABC):
    """How tensors lie in memory, how loops over them are cut into blocks, and which kernels compute a unit.

    Samples come in groups of `lanes`, which lie side by side in the vector lanes; with one lane a group is a sample.
    """

    name: str  # as the option "layout" says it
    lanes: int = 1
    fusions: frozenset[str]  # of `options.FUSIONS`: have kernels, or no meaning for any network of this layout
    loops: ClassVar[Mapping[type, Loops]]  # of each kind of layer that has kernels; SoftmaxCrossEntropy is an end
    ends: ClassVar[Ends]
    conv_options: tuple[str, ...]  # values of the option "conv" that have kernels
    joint_sgd: bool = False  # one loop takes SGD's step of a layer's weights and of its bias

    def check(self, spec: Network, options: PlanOptions) -> None:
        """Raise `UsageError` for a network or an option that has no kernels."""
        for objection in self.objections(spec, options):
            raise UsageError(objection)

    def computes(self, spec: Network, options: PlanOptions) -> bool:
        """Return whether there are kernels for a network with these options."""
        return next(self.objections(spec, options), None) is None

    def objections(self, spec: Network, options: PlanOptions) -> Iterator[str]:
        """Yield why there are no kernels for a network or an option; a reason may hold only where those before do
        not."""
        if options.conv not in self.conv_options:
            other = "" if options.layout == "auto" else ", or layout 'auto'"
            yield (
                f"conv must be one of {', '.join(self.conv_options)} in layout {self.name!r}, got {options.conv!r}; "
                f"use one of them{other}"
            )
        missing = options.fusions - self.fusions
        if missing and options.fusion != "all":
            yield (
                f"fusion may name {', '.join(sorted(self.fusions))} in layout {self.name!r}, got "
                f"{', '.join(sorted(missing))}; leave it out, or use another layout"
            )
        other = "rows" if spec.tokens else "nhwc"
        for layer in spec.layers[:-1]:
            if type(layer) not in self.loops:
                hint = f"; use layout {other!r}" if other != self.name else ""
                yield (
                    f"layers must be {', '.join(kind.__name__ for kind in self.loops)} in layout {self.name!r}, got "
                    f"{type(layer).__name__} {layer.name!r}{hint}"
                )
        if self.ends.images == bool(spec.tokens):
            yield (
                f"layout {self.name!r} is for networks of {'images' if self.ends.images else 'tokens'}, got "
                f"{spec.name!r}; use layout {other!r}"
            )

    @abstractmethod
    def can_join(self, parts: Sequence[Layer], consumers: Mapping[str, Sequence[Layer]]) -> bool:
        """Return whether one loop computes these layers in turn; `consumers`: name -> layers that read it."""

    @abstractmethod
    def sample_blocks(self, low: Lowering) -> list[tuple[int, int]]:
        """Groups of samples of a block of a loop that is cut by samples alone."""

    def update_blocks(self, low: Lowering, outputs: int, row: int) -> list[tuple[int, int]]:
        """Ranges of the leading axis, `outputs`, of a block of an update; each has `row` elements."""
        most = UPDATE_ELEMENTS if low.options.cut.device else low.options.cut.wanted(BLOCKS_OF_UPDATE)
        return ranges(outputs, max(1, min(outputs, max(UPDATE_ELEMENTS // row, -(-outputs // most)))))

    @abstractmethod
    def activation(self, low: Lowering, name: str, tensor: str) -> TensorMap:
        """Map of a tensor's values."""

    @abstractmethod
    def gradient(self, low: Lowering, name: str, tensor: str, before_activation: Unit | None = None) -> TensorMap:
        """Map of a tensor's gradient, or of that before the activation of the unit that makes it."""

    @abstractmethod
    def elementwise(
        self, low: Lowering, unit: Unit, what: str, operation: str, maps: Maps, **attributes: float
    ) -> None:
        """Append a loop that treats each element alone: add, activation, activation_backward or dropout; `maps`: by
        operand, of which "output" is written; `attributes`: of the kernels."""


class ImageLayout(Layout):
    """A layout of images, and of the features that fully connected layers read and write."""

    load_kernel: str  # gathers a batch

    def objections(self, spec: Network, options: PlanOptions) -> Iterator[str]:
        yield from super().objections(spec, options)
        if options.sequence != SEQUENCE:
            yield f"sequence is an option of networks of tokens, {spec.name!r} is one of images; leave it out"
        for layer in spec.layers:
            if isinstance(layer, Linear) and not layer.bias:
                yield f"linear layers of images must have a bias, got {layer.name!r} without; leave out bias=False"
        if options.cut.heads:
            yield (
                f"granularity may name images, channels and rows in layout {self.name!r}, got {options.granularity!r}; "
                f"leave out heads"
            )

    def weight_blocks(self, low: Lowering) -> list[tuple[int, int]]:
        """Groups of samples for which a fully connected layer's weight gradient has a partial sum."""
        return self.sample_blocks(low)

    @abstractmethod
    def vector(self, low: Lowering, name: str, length: int) -> TensorMap:
        """Map of `length` features, as the loss takes them."""

    @abstractmethod
    def features(self, low: Lowering, unit: Unit) -> TensorMap:
        """Return the map that a fully connected layer reads: the features of a sample in PyTorch's order."""

    @abstractmethod
    def send_features(self, low: Lowering, unit: Unit, gradient: TensorMap) -> None:
        """Append the data gradient of a fully connected layer."""


class DataShape(Record, frozen=True):
    """Sizes of what a plan reads and logs, beside the batch."""

    num_images: Annotated[int, about("images of the data set", least=1)]
    num_batches: Annotated[int, about("rows of the batch order", least=1)] = 1
    num_iterations_logged: Annotated[int, about("length of the logs, indexed by the iteration", least=1)] = 1000
    num_learning_rates: Annotated[int, about("length of the learning rates, indexed by the iteration", least=1)] = 1
    prefix: Annotated[str, about("before the names of data set, batch order and logs")] = ""


@dataclass
class Lowering:
    """State of one lowering; the functions of the other files append loops in plan order."""

    spec: Network
    options: PlanOptions
    data: DataShape
    layout: Layout
    builder: PlanBuilder
    read_image: Callable[[int, np.ndarray], None] | None = None  # where the data set is no array of images
    maps: dict[str, TensorMap] = field(default_factory=dict)  # that are kept, by tensor
    gradients: dict[str, TensorMap] = field(default_factory=dict)
    sharers: dict[str, set[str]] = field(default_factory=dict)  # gradient's buffer -> tensors that it belongs to
    unfinished: set[str] = field(default_factory=set)  # tensors whose producer has not run backward yet
    partials: dict[str, tuple[str, int]] = field(default_factory=dict)  # parameter -> partial gradients, their number
    gradient_sums: dict[str, str] = field(default_factory=dict)  # norm -> its gradient's partial sums, if taken already
    aliases: dict[str, Callable] = field(default_factory=dict)
    primes: Mapping[str, str] = field(default_factory=dict)  # layer named like a buffer -> end of its map's name
    kept: dict[str, str] = field(default_factory=dict)  # what a unit keeps for its gradient -> the newest buffer of it

    def __post_init__(self):
        self.shapes = {layer.name: shape for layer, _, shape in self.spec.shapes()}
        self.shapes["input"] = self.spec.input_shape
        self.fusion = self.options.fusions & self.layout.fusions
        if self.options.cut.device:  # a loop of its own has parts, and on a GPU statistics are a launch in any case
            self.fusion -= {"statistics"}
        self.layer_inputs, options = self.spec.inputs(), self.options
        self.layer_parameters = self.spec.layer_parameters()
        self.parameter_shapes = self.spec.parameter_shapes()
        self.statistic_shapes = self.spec.statistic_shapes()
        for prefix in self.options.frozen_layers:
            if not any(name.startswith(f"{prefix}.") for name in self.parameter_shapes):
                raise UsageError(f"frozen must name layers with parameters of {self.spec.name!r}, got {prefix!r}")
        self.learns: dict[str, bool] = {"input": False}  # tensor -> whether a parameter before it is trained
        for layer in self.spec.layers:
            self.learns[layer.name] = self.trained(layer) or any(
                self.learns[name] for name in self.layer_inputs[layer.name]
            )
        self.units = units_of(
            self.spec,
            self.fusion,
            options.training,
            self.layout.can_join,
            lambda layer: not options.chain and self.trained(layer) and self.learns[self.layer_inputs[layer.name][0]],
        )
        self.producer = {unit.target: unit for unit in self.units}
        self.readers = readers_of(self.units)
        self.logits = self.units[-1].sources[0]

    @property
    def batch(self) -> int:
        """Samples of a step."""
        return self.options.batch

    @property
    def groups(self) -> int:
        """Groups of samples; the last may not be full."""
        return math.ceil(self.batch / self.layout.lanes)

    def sample_bounds(self, groups: Iterable[tuple[int, int]] | None = None) -> list[dict[str, int]]:
        """Bounds of blocks of samples: of a loop that is cut by samples alone unless they are given."""
        groups = self.layout.sample_blocks(self) if groups is None else groups
        # With one lane a group is an image, and some kernels call it so.
        return [{"g0": first, "g1": last, "n0": first, "n1": last} for first, last in groups]

    def trained(self, layer: Layer) -> bool:
        """Return whether a layer has parameters that are not frozen."""
        return any(map(self.trains, (*self.layer_parameters[layer.name], *layer.tied_parameters())))

    def trains(self, parameter: str) -> bool:
        """Return whether a parameter is not frozen."""
        return not any(parameter.startswith(f"{name}.") for name in self.options.frozen_layers)

    def parameter(self, name: str) -> str:
        """Declare a parameter's buffer."""
        return self.builder.buffer(name, self.parameter_shapes[name], role="parameter")

    def partial_gradients(self, parameter: str, count: int, shape: tuple[int, ...]) -> str:
        """Declare the buffer of `count` partial gradients of a parameter, each of a shape; where the parameter is
        trained, the update adds them up."""
        partials = self.builder.buffer(f"{parameter}.partials", (count, *shape), role="gradient", carried=count == 1)
        if self.trains(parameter):
            self.partials[parameter] = partials, count
        return partials

    def keep(self, tensor_map: TensorMap, role: str = "activation", layer: str = "") -> TensorMap:
        """Declare a map's buffer; `layer`: whose results it holds."""
        self.builder.buffer(tensor_map.name, tensor_map.shape, role=role, layer=layer)
        return tensor_map

    def output_map(self, unit: Unit, recomputed: bool) -> TensorMap:
        """Map of what a unit writes, in a buffer of its own where it is recomputed. Logits are what the phase
        "forward" of tokens answers with, and so outlive the step."""
        name = f"{unit.target}{self.primes.get(unit.target, '')}{'.recomputed' * recomputed}"
        answer = unit.target == self.logits and not self.layout.ends.images and self.options.phase == "forward"
        target = self.maps[unit.target] = self.layout.activation(self, name, unit.target)
        # Queries, keys and values are columns of one buffer, which has another name.
        return self.keep(target, "log" if answer else "activation", unit.target if target.name == name else "")

    def keep_beside(self, unit: Unit, kind: str, shape: tuple[int, ...], recomputed: bool) -> str:
        """Declare a buffer of what a unit keeps for its gradient beside its result; see `kept`."""
        name = f"{unit.layer.name}.{kind}"
        self.kept[name] = self.builder.buffer(f"{name}{'.recomputed' * recomputed}", shape)
        return self.kept[name]

    def loop(
        self,
        name: str,
        kernel: str | KernelSpec,
        operands: Mapping[str, str | TensorMap | None],
        bounds: Iterable[Mapping[str, int]],
        layer: str,
        phase: str,
        /,
        chain: str = "",
        **attributes: float,
    ) -> None:
        """Append a loop; the kernel says what its blocks touch and cost. Operands are buffers or maps, None for one
        that the loop leaves out; attributes of the kernel that describe a map, such as "in_height" and "gradient_halo",
        come from it. `bounds`: of each block, by name."""
        spec = kernel_table.get(kernel) if isinstance(kernel, str) else kernel
        given = {operand: m for operand, m in operands.items() if m}
        maps = {operand: m for operand, m in given.items() if not isinstance(m, str)}
        maps["in"] = maps.get("input") or maps.get(spec.operands[0])
        maps |= {prefix: maps.get(operand) for prefix, operand in (("out", "output"), ("dy", "gradient"))}
        for attribute in spec.integers:
            prefix, _, kind = attribute.rpartition("_")
            if attribute not in attributes and kind in MAP_NAMES and attribute not in spec.optional_integers:
                attributes[attribute] = getattr(maps.get(prefix), kind, 0)
        names = {operand: m if isinstance(m, str) else m.name for operand, m in given.items()}
        bounds = list(bounds)
        blocks = spec.blocks(names, attributes, self.builder.buffers, bounds)
        for number, block in enumerate(bounds if self.batch % self.layout.lanes else ()):
            if "g0" in block:  # lanes of the last group that hold no sample do nothing that counts
                first, end = (group * self.layout.lanes for group in (block["g0"], block["g1"]))
                share = (min(end, self.batch) - first) / (end - first)
                full = blocks[number]
                blocks[number] = replace(full, flops=full.flops * share, bytes=full.bytes * share)
        self.builder.loop(name, spec.name, names, blocks, attributes=attributes, layer=layer, phase=phase, chain=chain)

    def append(
        self,
        unit: Unit,
        what: str,
        kernel: str,
        operands: Mapping[str, str | TensorMap | None],
        bounds: Iterable[Mapping[str, int]],
        /,
        **attributes: float,
    ) -> None:
        """Append a unit's loop, as `loop` does: forward where `what` is empty; else backward, called by the unit's name
        and `what`."""
        name, phase = (f"{unit.layer.name}.{what}", "backward") if what else (unit.layer.name, "forward")
        self.loop(name, kernel, operands, bounds, unit.layer.name, phase, **attributes)

    def weight_loops(
        self,
        unit: Unit,
        name: str,
        kernel: str,
        operands: Mapping[str, str | TensorMap | None],
        parts: Sequence[Iterable[Mapping[str, int]]],
        adds: bool = False,
        /,
        **attributes: float,
    ) -> None:
        """Append a loop of weight gradients, with a partial sum for each part of the samples, or a chain of loops, one
        for each part, which add to one. `parts`: bounds of the blocks of each; `adds`: the sum is there already."""
        name, chained = f"{name}.weight_gradient", self.options.chain
        for link, group in enumerate([[part] for part in parts] if chained else [parts]):
            self.loop(
                f"{name}.{link}" if chained else name,
                kernel,
                operands,
                [{**block, "partial": number} for number, part in enumerate(group) for block in part],
                unit.layer.name,
                "backward",
                chain=name if chained else "",
                **attributes,
                accumulate=int(link > 0 or adds),
            )


def check_end(spec: Network) -> None:
    """Raise `UsageError` unless a network ends with its only softmax, of features alone, or of a vocabulary."""
    *_, (_, _, shape) = spec.shapes()
    softmaxes = [layer for layer in spec.layers if isinstance(layer, SoftmaxCrossEntropy)]
    if spec.tokens and spec.tokens.answers == "class":
        fits, what = shape[:1] == (1,), "a classifier of tokens"
        after, remedy = "a layer with one token", "FirstToken, Linear and"
    elif spec.tokens:
        fits, what = shape[1:] == (spec.tokens.vocabulary,), "a network of tokens"
        after, remedy = f"{spec.tokens.vocabulary} features, one for each token of its vocabulary", "TiedHead and"
    else:
        fits, what = len(shape) == 1, "a network"
        after, remedy = "a layer without pixels", "Linear or GlobalAvgPool, and"
    if not fits or softmaxes != [spec.layers[-1]]:
        raise UsageError(
            f"{what} must end with SoftmaxCrossEntropy after {after}, {spec.name!r} does not; add {remedy} "
            f"SoftmaxCrossEntropy"
        )


def repeated(recomputed: bool) -> str:
    """What a unit's loop forward does, for `Lowering.append`: its recomputation belongs to the backward pass."""
    return "recomputed" if recomputed else ""
