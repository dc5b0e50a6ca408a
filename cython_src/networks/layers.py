"""What a network is: layers in order, as in a paper's table. Lowering turns a description into a plan."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, TypeVar, dataclass_transform

from msgspec import Meta

from ..arguments import checked_class
from ..errors import UsageError, did_you_mean
from ..reading import Count, Name, Number, Text
from ..shown import Shown

# What users import, in the order in which a reader needs it.
__all__ = [  # noqa: RUF022
    "Network", "Layer", "Conv2d", "BatchNorm", "ReLU", "ReLU6", "Sigmoid", "Add", "MaxPool", "AveragePool",
    "GlobalAvgPool", "Dropout", "Linear", "Tokens", "Embedding", "Positions", "Trigram", "FirstToken", "NoNorm",
    "LayerNorm", "Attention", "GELU", "TiedHead", "SoftmaxCrossEntropy",
]  # fmt: skip

Small = Annotated[float, Meta(ge=0, lt=1e15)]

DEVIATION = 0.02  # of the initial values of embeddings and of linear layers of tokens
TYPES = 2  # segments of a sample of BERT
SEQUENCE = 64  # tokens of a sample unless the option "sequence" says otherwise

Shape = tuple[int, ...]  # of a sample
Shapes = dict[str, Shape]  # by PyTorch's names
Kind = TypeVar("Kind")


@dataclass_transform(frozen_default=True)
def layer_kind(kind: type[Kind]) -> type[Kind]:
    """Make a class a kind of layer: a record whose arguments are checked."""
    return checked_class(dataclass(frozen=True)(kind))


@dataclass(frozen=True)
class Layer:
    """Base of the kinds of layers: what networks and lowering ask each."""

    name: Name
    deviation = 0.0  # standard deviation of the initial values of its matrices; 0: see `Network.deviations`
    activation = "none"  # what kernels call the activation that it is, or "none"

    def reads(self, last: str) -> tuple[str, ...]:
        """Return the layers whose outputs it takes; `last` is the one before it."""
        raise NotImplementedError

    def shape_after(self, network: Network, *before: Shape) -> Shape:
        """Return the shape of a sample after the layer, from those of its inputs. Raises `UsageError`: the layer does
        not fit what comes before it."""
        return before[0]

    def parameters(self, network: Network, before: Shape, after: Shape) -> Shapes:
        """Return the shapes of its own parameters; `before` and `after`: of a sample."""
        return {}

    def tied_parameters(self) -> tuple[str, ...]:
        """Return the names of another layer's parameters that it uses."""
        return ()

    def statistics(self, after: Shape) -> Shapes:
        """Return the shapes of its running statistics."""
        return {}

    def pytorch(self, nn: Any, before: Shape) -> Any:
        """Return PyTorch's module, from `torch.nn`; None if it has none."""
        return None

    def _affine(self, rows: Shape, bias: Shape | None) -> Shapes:
        """Return the shapes of `name.weight` and, where there is one, of `name.bias`."""
        return {f"{self.name}.weight": rows} | ({f"{self.name}.bias": bias} if bias else {})


class OneInput(Layer):
    """A layer that takes the output of the layer `after`, or else of the one before it."""

    after: str

    def reads(self, last: str) -> tuple[str, ...]:
        return (self.after or last,)


class PixelLayer(OneInput):
    """A layer of maps: channels, height and width."""

    def shape_after(self, network: Network, *before: Shape) -> Shape:
        if len(before[0]) != 3:
            raise UsageError(
                f"{self.name!r} must come after a layer with channels, height and width, got shape {before[0]}"
            )
        return before[0]

    def _windowed(self, shape: Shape, channels: int, reach: int, stride: int, padding: int) -> Shape:
        """Return the shape of maps after windows that span `reach` rows and columns."""
        height, width = ((n + 2 * padding - reach) // stride + 1 for n in shape[1:])
        if min(height, width) < 1:
            raise UsageError(f"windows of {self.name!r} must fit its input, got {reach} x {reach} on shape {shape}")
        return (channels, height, width)


class TokenLayer(OneInput):
    """A layer of tokens with features."""

    def shape_after(self, network: Network, *before: Shape) -> Shape:
        if len(before[0]) != 2:
            raise UsageError(f"{self.name!r} must come after a layer with tokens and features, got shape {before[0]}")
        return before[0]


@layer_kind
class Conv2d(PixelLayer):
    """Convolution. `name` is the prefix of its parameters: name.weight (out, in / groups, k, k), name.bias (out,).

    Depthwise where `groups` is the number of channels.
    """

    out_channels: Number
    kernel: Number = 5
    padding: Count = 2
    stride: Number = 1
    groups: Number = 1
    dilation: Number = 1
    bias: bool = True
    after: str = ""

    def shape_after(self, network: Network, *before: Shape) -> Shape:
        shape = super().shape_after(network, *before)
        if shape[0] % self.groups or self.out_channels % self.groups:
            raise UsageError(
                f"groups of {self.name!r} must divide its {shape[0]} and {self.out_channels} channels, "
                f"got {self.groups}"
            )
        reach = (self.kernel - 1) * self.dilation + 1
        return self._windowed(shape, self.out_channels, reach, self.stride, self.padding)

    def parameters(self, network: Network, before: Shape, after: Shape) -> Shapes:
        weight = (after[0], before[0] // self.groups, self.kernel, self.kernel)
        return self._affine(weight, after[:1] if self.bias else None)

    def pytorch(self, nn: Any, before: Shape) -> Any:
        sizes = self.kernel, self.stride, self.padding, self.dilation, self.groups, self.bias
        return nn.Conv2d(before[0], self.out_channels, *sizes)

    def is_depthwise(self, before: Shape) -> bool:
        """Return whether each group has one channel, which depthwise kernels compute."""
        return before[0] == self.out_channels == self.groups > 1 and self.dilation == 1


@layer_kind
class BatchNorm(PixelLayer):
    """Batch normalization over images and pixels: name.weight, name.bias, and the statistics name.running_mean and
    name.running_var, which evaluation uses."""

    eps: Small = 1e-5
    momentum: Small = 0.1
    after: str = ""

    def parameters(self, network: Network, before: Shape, after: Shape) -> Shapes:
        return self._affine(after[:1], after[:1])

    def statistics(self, after: Shape) -> Shapes:
        return {f"{self.name}.running_{kind}": after[:1] for kind in ("mean", "var")}

    def pytorch(self, nn: Any, before: Shape) -> Any:
        return nn.BatchNorm2d(before[0], self.eps, self.momentum)


@layer_kind
class ReLU(OneInput):
    """max(x, 0)."""

    after: str = ""
    activation = "relu"


@layer_kind
class ReLU6(OneInput):
    """min(max(x, 0), 6)."""

    after: str = ""
    activation = "relu6"


@layer_kind
class Sigmoid(OneInput):
    """1 / (1 + exp(-x))."""

    after: str = ""
    activation = "sigmoid"

    def pytorch(self, nn: Any, before: Shape) -> Any:
        return nn.Sigmoid()


@layer_kind
class Add(Layer):
    """Sum of two layers' outputs, `inputs`: the end of a residual block."""

    inputs: tuple[str, str]

    def reads(self, last: str) -> tuple[str, ...]:
        return self.inputs

    def shape_after(self, network: Network, *before: Shape) -> Shape:
        if before[0] != before[1]:
            raise UsageError(f"inputs of {self.name!r} must have one shape, got {before[0]} and {before[1]}")
        return before[0]


@layer_kind
class MaxPool(PixelLayer):
    """Maximum of windows of size x size, `stride` apart; None: side by side."""

    size: Number = 2
    stride: Number | None = None
    padding: Count = 0
    after: str = ""

    def shape_after(self, network: Network, *before: Shape) -> Shape:
        shape = super().shape_after(network, *before)
        if 2 * self.padding > self.size:
            raise UsageError(
                f"padding of {self.name!r} must be at most half of its size {self.size}, got {self.padding}; some "
                f"windows would hold nothing"
            )
        return self._windowed(shape, shape[0], self.size, self.stride or self.size, self.padding)

    def pytorch(self, nn: Any, before: Shape) -> Any:
        return nn.MaxPool2d(self.size, self.stride or self.size, self.padding)


@layer_kind
class AveragePool(PixelLayer):
    """Mean of windows of size x size, `stride` apart; None: side by side."""

    size: Number = 2
    stride: Number | None = None
    after: str = ""

    def shape_after(self, network: Network, *before: Shape) -> Shape:
        shape = super().shape_after(network, *before)
        return self._windowed(shape, shape[0], self.size, self.stride or self.size, 0)

    def pytorch(self, nn: Any, before: Shape) -> Any:
        return nn.AvgPool2d(self.size, self.stride or self.size)


@layer_kind
class GlobalAvgPool(PixelLayer):
    """Mean over all pixels."""

    after: str = ""

    def shape_after(self, network: Network, *before: Shape) -> Shape:
        return super().shape_after(network, *before)[:1]

    def pytorch(self, nn: Any, before: Shape) -> Any:
        return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())


@layer_kind
class Dropout(OneInput):
    """In training, zero with probability `rate`, and 1 / (1 - rate) times the rest."""

    rate: Annotated[float, Meta(ge=0, lt=1)] = 0.5
    after: str = ""

    def pytorch(self, nn: Any, before: Shape) -> Any:
        return nn.Dropout(self.rate)


@layer_kind
class Embedding(OneInput):
    """Row of name.weight (vocabulary, features) for each token, plus, where `positions` names a second table, row t of
    positions.weight (positions, features) for token t of a sample. Initial weights have the standard deviation
    `deviation`."""

    features: Number
    positions: Text = ""
    deviation: Small = DEVIATION
    after: str = ""

    def shape_after(self, network: Network, *before: Shape) -> Shape:
        if network.tokens is None or len(before[0]) != 1:
            raise UsageError(f"{self.name!r} must read the input of a network of tokens, got shape {before[0]}")
        return (*before[0], self.features)

    def parameters(self, network: Network, before: Shape, after: Shape) -> Shapes:
        tokens = network.token_input
        own: Shapes = {f"{self.name}.weight": (tokens.vocabulary, self.features)}
        return own | ({f"{self.positions}.weight": (tokens.positions, self.features)} if self.positions else {})


@layer_kind
class Positions(TokenLayer):
    """Features plus row t of name.weight (positions, features) for token t of a sample, plus, where `types` names a
    table (2, features), its first row: all tokens are of the first of BERT's two segments. Initial weights have the
    standard deviation `deviation`."""

    types: Text = ""
    deviation: Small = DEVIATION
    after: str = ""

    def parameters(self, network: Network, before: Shape, after: Shape) -> Shapes:
        own: Shapes = {f"{self.name}.weight": (network.token_input.positions, before[1])}
        return own | ({f"{self.types}.weight": (TYPES, before[1])} if self.types else {})


@layer_kind
class Trigram(TokenLayer):
    """Features of the next token, the token and the one before it side by side, zeros past the ends of a sample."""

    after: str = ""

    def shape_after(self, network: Network, *before: Shape) -> Shape:
        length, features = super().shape_after(network, *before)
        return (length, 3 * features)


@layer_kind
class FirstToken(TokenLayer):
    """Features of the first token of each sample alone."""

    after: str = ""

    def shape_after(self, network: Network, *before: Shape) -> Shape:
        return (1, super().shape_after(network, *before)[1])


@layer_kind
class NoNorm(TokenLayer):
    """Features times name.weight plus name.bias, in the place of a norm."""

    after: str = ""

    def parameters(self, network: Network, before: Shape, after: Shape) -> Shapes:
        return self._affine(after[1:], after[1:])


@layer_kind
class LayerNorm(TokenLayer):
    """Normalization over the features of each token: name.weight, name.bias."""

    eps: Small = 1e-5
    after: str = ""

    def parameters(self, network: Network, before: Shape, after: Shape) -> Shapes:
        return self._affine(after[1:], after[1:])

    def pytorch(self, nn: Any, before: Shape) -> Any:
        return nn.LayerNorm(before[-1], self.eps)


@layer_kind
class Linear(OneInput):
    """Linear layer of all features of an image, or of each token: name.weight (out, in), name.bias (out,). Initial
    weights have the standard deviation `deviation`; 0: He's of images, 0.02 of tokens."""

    out_features: Number
    bias: bool = True
    deviation: Small = 0.0
    after: str = ""

    def shape_after(self, network: Network, *before: Shape) -> Shape:
        if network.tokens and len(before[0]) != 2:
            raise UsageError(f"{self.name!r} must come after a layer with tokens and features, got shape {before[0]}")
        return (*(before[0][:1] if network.tokens else ()), self.out_features)

    def parameters(self, network: Network, before: Shape, after: Shape) -> Shapes:
        read = before[-1] if network.tokens else math.prod(before)
        return self._affine((self.out_features, read), after[-1:] if self.bias else None)

    def pytorch(self, nn: Any, before: Shape) -> Any:
        return nn.Linear(before[-1] if len(before) == 2 else math.prod(before), self.out_features, self.bias)


@layer_kind
class Attention(TokenLayer):
    """Attention of `heads` heads within each sample: a third of the features before it are queries, then keys, then
    values; head h has columns h d to (h + 1) d of each third. With `causal` a token sees itself and those before
    it. Queries, keys and values may also be three linear layers, `inputs`, that nothing else reads."""

    heads: Number
    causal: bool = True
    after: str = ""
    inputs: tuple[str, ...] = ()

    def reads(self, last: str) -> tuple[str, ...]:
        return self.inputs or super().reads(last)

    def shape_after(self, network: Network, *before: Shape) -> Shape:
        length, features = super().shape_after(network, *before)
        if self.inputs:
            if len(before) != 3 or len(set(before)) != 1 or features % self.heads:
                raise UsageError(
                    f"inputs of {self.name!r} must be queries, keys and values of one shape, a multiple of "
                    f"{self.heads} features; got {list(before)}"
                )
            return before[0]
        if features % (3 * self.heads):
            raise UsageError(
                f"{self.name!r} must come after queries, keys and values of {self.heads} heads, a multiple of "
                f"{3 * self.heads} features; got {features}"
            )
        return (length, features // 3)


@layer_kind
class GELU(OneInput):
    """0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))."""

    after: str = ""
    activation = "gelu"


@layer_kind
class TiedHead(TokenLayer):
    """Product with the weights of the embedding called `embedding`, one logit for each token of the vocabulary.
    Features that its input has beyond the embedding's are multiplied by name.dense.weight (vocabulary, those features),
    whose initial values have the standard deviation `deviation`; with `bias` plus name.bias (vocabulary,)."""

    embedding: str
    bias: bool = False
    deviation: Small = DEVIATION
    after: str = ""

    def shape_after(self, network: Network, *before: Shape) -> Shape:
        length, features = super().shape_after(network, *before)
        if (own := network.embedding_of(self).features) > features:
            raise UsageError(
                f"embedding of {self.name!r} must have the {features} features before it or fewer, got "
                f"{self.embedding!r} of {own}"
            )
        return (length, network.token_input.vocabulary)

    def parameters(self, network: Network, before: Shape, after: Shape) -> Shapes:
        further = before[1] - network.embedding_of(self).features
        own: Shapes = {f"{self.name}.dense.weight": (after[1], further)} if further else {}
        return own | ({f"{self.name}.bias": after[1:]} if self.bias else {})

    def tied_parameters(self) -> tuple[str, ...]:
        return (f"{self.embedding}.weight",)


@layer_kind
class SoftmaxCrossEntropy(OneInput):
    """Class probabilities; cross-entropy with the labels, or with each token's next, in training."""

    name: Name = "softmax"
    after: str = ""


@checked_class
@dataclass(frozen=True)
class Tokens:
    """Input of a network of tokens, and what it answers with.

    Attributes
    ----------
    vocabulary : int
        Tokens are whole numbers below it.
    positions : int
        Longest sequence.
    answers : str
        "next": the token after each; "masked": the tokens in whose places the token `mask` or another stands; "class":
        the class of a sample.
    mask : int
        Token in the place of masked ones.
    """

    vocabulary: Number
    positions: Number
    answers: Literal["next", "masked", "class"] = "next"
    mask: Annotated[int, Meta(ge=-1)] = -1


@checked_class
@dataclass(frozen=True, repr=False)
class Network(Shown):
    """Layers in order. Each takes the output of the one before it, or of the layer that it names as `after`; `Add`
    names two.

    Parameters
    ----------
    input_shape : tuple of int
        Channels, height, width of an image; of a network of tokens the length of the sequence alone.
    tokens : Tokens, optional
        The input is tokens, not an image.
    unchecked : bool
        It was read from PyTorch and not compared with that; rows of samples say so.

    Raises
    ------
    UsageError
        A shape that is that of no image and no sequence, no layers or something else among them, or a mask that is no
        token.
    """

    name: Name
    input_shape: Annotated[tuple[Number, ...], "give (channels, height, width) of an image, (length,) of tokens"]
    layers: Annotated[tuple[Layer, ...], "list layers such as ReLU('relu1')"]
    tokens: Tokens | None = None
    unchecked: bool = False

    def __post_init__(self) -> None:
        wanted = "(length,), the tokens of a sample" if self.tokens else "(channels, height, width) of an image"
        shape = self.input_shape
        if len(shape) != (1 if self.tokens else 3):
            remedy = f"; a vector is an image of shape ({shape[0]}, 1, 1)" if len(shape) == 1 else ""
            raise UsageError(f"input_shape of network {self.name!r} must be {wanted}, got {shape!r}{remedy}")
        if not self.layers:
            raise UsageError(f"layers of network {self.name!r} must be at least one, got none; list them")
        tokens = self.tokens
        if tokens and tokens.answers == "masked" and not 0 <= tokens.mask < tokens.vocabulary:
            raise UsageError(
                f"mask of network {self.name!r} must be one of its tokens, 0 to {tokens.vocabulary - 1}, got "
                f"{tokens.mask}; name one, or raise vocabulary"
            )

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.input_shape))
        what = f"sequences of {shape} tokens" if self.tokens else f"images of {shape}"
        return f"<network {self.name!r}: {len(self.layers)} layers on {what}>"

    def _rows(self) -> list[dict[str, Any]]:
        inputs, parameters = self.inputs(), self.layer_parameters()
        return [
            {
                "layer": layer.name,
                "kind": type(layer).__name__,
                "reads": ", ".join(inputs[layer.name]),
                "output": " x ".join(map(str, after)),
                "parameters": sum(map(math.prod, parameters[layer.name].values())),
            }
            for layer, _, after in self.shapes()
        ]

    @property
    def token_input(self) -> Tokens:
        """Input of a network of tokens. Raises `UsageError`: the input is images."""
        if self.tokens is None:
            raise UsageError(f"the input of network {self.name!r} must be tokens, got images; choose one of tokens")
        return self.tokens

    def with_sequence(self, sequence: int) -> Network:
        """Return the network of tokens for samples of another length.

        Raises
        ------
        UsageError
            The network has fewer positions, or its input is images.
        """
        positions = self.token_input.positions
        if not 1 <= sequence <= positions:
            raise UsageError(
                f"sequence must be in [1, {positions}], the positions of network {self.name!r}; got {sequence}"
            )
        return replace(self, input_shape=(sequence,))

    def without_dropout(self) -> Network:
        """Return the network that is evaluated: what reads the result of a dropout reads its input."""
        passed: dict[str, str] = {}  # dropout -> what it reads
        layers: list[Layer] = []
        for layer, sources in zip(self.layers, self.inputs().values(), strict=True):
            sources = tuple(passed.get(name, name) for name in sources)
            if isinstance(layer, Dropout):
                passed[layer.name] = sources[0]
            else:
                place = {"inputs": sources} if getattr(layer, "inputs", ()) else {"after": sources[0]}
                layers.append(replace(layer, **place) if passed else layer)
        return replace(self, layers=tuple(layers)) if passed else self

    def for_images(self, input_shape: tuple[int, ...], num_classes: int) -> Network:
        """Return the network for images of another shape (channels, height, width) and number of classes: the same
        layers, with a last fully connected layer of another size.

        Raises
        ------
        UsageError
            The input is tokens, the network does not end in a fully connected layer, or a window does not fit the
            images.
        """
        if (self.tokens is None) and (input_shape, num_classes) == (self.input_shape, self.num_classes):
            return self
        last = [(i, layer) for i, layer in enumerate(self.layers) if isinstance(layer, Linear)][-1:]
        if self.tokens is not None or not last or not isinstance(self.layers[-1], SoftmaxCrossEntropy):
            raise UsageError(
                f"a network that takes images and classes from the data must read images and end in Linear and "
                f"SoftmaxCrossEntropy, and {self.name!r} does not; describe its input_shape and classes as those of "
                f"the data"
            )
        ((index, layer),) = last
        layers = list(self.layers)
        layers[index] = replace(layer, out_features=num_classes)
        adapted = replace(self, input_shape=input_shape, layers=tuple(layers))
        try:
            adapted.num_classes  # noqa: B018  raises if a window does not fit
        except UsageError as error:
            raise UsageError(
                f"network {self.name!r} must fit the images of the data, of shape {input_shape}: {error}; choose "
                f"larger images or another network"
            ) from None
        return adapted

    def inputs(self) -> dict[str, tuple[str, ...]]:
        """Name of each layer -> the layers whose outputs it takes; "input" is the image. Raises `UsageError`: a name
        that comes twice, a layer that takes what comes later or nowhere, or one that nobody reads."""
        result: dict[str, tuple[str, ...]] = {}
        last = "input"
        for layer in self.layers:
            if layer.name in result or layer.name == "input":
                raise UsageError(f"names of layers must differ, got {layer.name!r} twice in {self.name!r}; rename one")
            names = layer.reads(last)
            for name in names:
                if name != "input" and name not in result:
                    known = [other.name for other in self.layers if other is not layer]
                    meant = "; move or rename it" if name in known else did_you_mean(name, known) or "; rename it"
                    raise UsageError(f"layer {layer.name!r} must come after its input {name!r}{meant}")
            result[layer.name] = names
            last = layer.name
        read = {name for names in result.values() for name in names}
        for name in result:
            if name not in read and name != last:
                raise UsageError(f"layer {name!r} of {self.name!r} must be read by another, got none; leave it out")
        return result

    def shapes(self) -> Iterator[tuple[Layer, Shape, Shape]]:
        """Each layer with the shapes of one sample before it (of its first input) and after it."""
        inputs = self.inputs()
        shapes: Shapes = {"input": self.input_shape}
        for layer in self.layers:
            before = [shapes[name] for name in inputs[layer.name]]
            shapes[layer.name] = layer.shape_after(self, *before)
            yield layer, before[0], shapes[layer.name]

    def layer_parameters(self) -> dict[str, Shapes]:
        """Name of each layer -> PyTorch's name of each of its own parameters -> its shape. Raises `UsageError`: two
        parameters, or a parameter and a layer, have one name; or as `shapes`."""
        result = {layer.name: layer.parameters(self, before, after) for layer, before, after in self.shapes()}
        names = [layer.name for layer in self.layers]
        for layer in self.layers:
            beside = getattr(layer, "positions", "") or getattr(layer, "types", "")
            names += [*result[layer.name], *([f"{layer.name}.weight"] if beside == layer.name else [])]
        for name, count in Counter(names).items():
            if count > 1:
                both = "a layer is called like a" if name in result else "two layers have a"
                raise UsageError(f"{both} parameter {name!r} in {self.name!r}; rename one")
        return result

    def embedding_of(self, head: TiedHead) -> Embedding:
        """Return the embedding with whose weights a head multiplies. Raises `UsageError`: it names none."""
        for layer in self.layers:
            if isinstance(layer, Embedding) and layer.name == head.embedding:
                return layer
        raise UsageError(f"embedding of {head.name!r} must name an Embedding, got {head.embedding!r}")

    def parameter_shapes(self) -> Shapes:
        """PyTorch's name of each parameter -> its shape, in the order of the layers."""
        return {name: shape for own in self.layer_parameters().values() for name, shape in own.items()}

    def deviations(self) -> dict[str, float]:
        """Name of each parameter whose layer says so, or a linear layer of tokens' -> standard deviation of its initial
        values; others have He's."""
        own = self.layer_parameters()
        return {
            name: deviation
            for layer in self.layers
            if (deviation := layer.deviation or (DEVIATION if self.tokens and isinstance(layer, Linear) else 0.0))
            for name, shape in own[layer.name].items()
            if len(shape) > 1
        }

    def statistic_shapes(self) -> Shapes:
        """PyTorch's name of each running statistic -> its shape."""
        return {name: shape for layer, _, after in self.shapes() for name, shape in layer.statistics(after).items()}

    @property
    def layers_id(self) -> str:
        """Short hash of input and layers with all their fields: equal where the same is computed."""
        described = repr((self.input_shape, self.tokens, self.layers))
        return hashlib.sha256(described.encode(errors="surrogatepass")).hexdigest()[:12]

    @property
    def num_parameters(self) -> int:
        return sum(math.prod(shape) for shape in self.parameter_shapes().values())

    @property
    def num_classes(self) -> int:
        *_, (_, _, shape) = self.shapes()
        return shape[-1]
