"""What a network is: layers in order, as in a paper's table. Lowering turns a description into a plan."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, get_args

from msgspec import Meta

from ..arguments import checked_class
from ..errors import UsageError, did_you_mean
from ..reading import Count, Name, Number, Text
from ..shown import Shown

__all__ = [  # noqa: RUF022  what users import, in the order in which a reader needs it
    "Network",
    "Layer",
    "Convolution",
    "BatchNorm",
    "ReLU",
    "ReLU6",
    "Add",
    "MaxPool",
    "AveragePool",
    "GlobalPool",
    "Dropout",
    "FullyConnected",
    "Tokens",
    "Embedding",
    "Positions",
    "Trigram",
    "FirstToken",
    "NoNorm",
    "LayerNorm",
    "Linear",
    "Attention",
    "GELU",
    "TiedHead",
    "Softmax",
]

Small = Annotated[float, Meta(ge=0, lt=1e15)]

TYPES = 2  # segments of a sample of BERT
SEQUENCE = 64  # tokens of a sample unless the option "sequence" says otherwise


@dataclass(frozen=True)
class Convolution:
    """Convolution. `name` is the prefix of its parameters: name.weight (out, in / groups, k, k), name.bias (out,).

    Depthwise where `groups` is the number of channels.
    """

    name: Name
    out_channels: Number
    kernel: Number = 5
    padding: Count = 2
    stride: Number = 1
    groups: Number = 1
    dilation: Number = 1
    bias: bool = True
    after: str = ""


@dataclass(frozen=True)
class BatchNorm:
    """Batch normalisation over images and pixels: name.weight, name.bias, and the statistics name.running_mean and
    name.running_var, which evaluation uses."""

    name: Name
    eps: Small = 1e-5
    momentum: Small = 0.1
    after: str = ""


@dataclass(frozen=True)
class ReLU:
    """max(x, 0)."""

    name: Name
    after: str = ""


@dataclass(frozen=True)
class ReLU6:
    """min(max(x, 0), 6)."""

    name: Name
    after: str = ""


@dataclass(frozen=True)
class Add:
    """Sum of two layers' outputs, `inputs`: the end of a residual block."""

    name: Name
    inputs: tuple[str, str]


@dataclass(frozen=True)
class MaxPool:
    """Maximum of windows of size x size, `stride` apart (0: side by side)."""

    name: Name
    size: Number = 2
    stride: Count = 0
    padding: Count = 0
    after: str = ""


@dataclass(frozen=True)
class AveragePool:
    """Mean of windows of size x size, `stride` apart (0: side by side)."""

    name: Name
    size: Number = 2
    stride: Count = 0
    after: str = ""


@dataclass(frozen=True)
class GlobalPool:
    """Mean over all pixels."""

    name: Name
    after: str = ""


@dataclass(frozen=True)
class Dropout:
    """In training, zero with probability `rate`, and 1 / (1 - rate) times the rest."""

    name: Name
    rate: Annotated[float, Meta(ge=0, lt=1)] = 0.5
    after: str = ""


@dataclass(frozen=True)
class FullyConnected:
    """name.weight (out, in), name.bias (out,)."""

    name: Name
    out_features: Number
    after: str = ""


@dataclass(frozen=True)
class Embedding:
    """Row of name.weight (vocabulary, features) for each token, plus, where `positions` names a second table, row t of
    positions.weight (positions, features) for token t of a sample. Initial weights have the standard deviation
    `deviation`."""

    name: Name
    features: Number
    positions: Text = ""
    deviation: Small = 0.02
    after: str = ""


@dataclass(frozen=True)
class Positions:
    """Features plus row t of name.weight (positions, features) for token t of a sample, plus, where `types` names a
    table (2, features), its first row: all tokens are of the first of BERT's two segments. Initial weights have the
    standard deviation `deviation`."""

    name: Name
    types: Text = ""
    deviation: Small = 0.02
    after: str = ""


@dataclass(frozen=True)
class Trigram:
    """Features of the next token, the token and the one before it side by side, zeros past the ends of a sample."""

    name: Name
    after: str = ""


@dataclass(frozen=True)
class FirstToken:
    """Features of the first token of each sample alone."""

    name: Name
    after: str = ""


@dataclass(frozen=True)
class NoNorm:
    """Features times name.weight plus name.bias, in the place of a norm."""

    name: Name
    after: str = ""


@dataclass(frozen=True)
class LayerNorm:
    """Normalisation over the features of each token: name.weight, name.bias."""

    name: Name
    eps: Small = 1e-5
    after: str = ""


@dataclass(frozen=True)
class Linear:
    """Linear layer of each token: name.weight (out, in), name.bias (out,). Initial weights have the standard deviation
    `deviation`."""

    name: Name
    out_features: Number
    bias: bool = True
    deviation: Small = 0.02
    after: str = ""


@dataclass(frozen=True)
class Attention:
    """Attention of `heads` heads within each sample: a third of the features before it are queries, then keys, then
    values; head h has columns h d to (h + 1) d of each third. With `causal` a token sees itself and those before
    it. Queries, keys and values may also be three linear layers, `inputs`, that nothing else reads."""

    name: Name
    heads: Number
    causal: bool = True
    after: str = ""
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True)
class GELU:
    """0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))."""

    name: Name
    after: str = ""


@dataclass(frozen=True)
class TiedHead:
    """Product with the weights of the embedding called `embedding`, one logit for each token of the vocabulary.
    Features that its input has beyond the embedding's are multiplied by name.dense.weight (vocabulary, those features),
    whose initial values have the standard deviation `deviation`; with `bias` plus name.bias (vocabulary,)."""

    name: Name
    embedding: str
    bias: bool = False
    deviation: Small = 0.02
    after: str = ""


@dataclass(frozen=True)
class Softmax:
    """Class probabilities; cross-entropy with the labels, or with each token's next, in training."""

    name: Name = "softmax"
    after: str = ""


Layer = (
    Convolution
    | BatchNorm
    | ReLU
    | ReLU6
    | Add
    | MaxPool
    | AveragePool
    | GlobalPool
    | Dropout
    | FullyConnected
    | Embedding
    | Positions
    | Trigram
    | FirstToken
    | NoNorm
    | LayerNorm
    | Linear
    | Attention
    | GELU
    | TiedHead
    | Softmax
)


def pytorch_module(layer: Layer, nn: Any, before: tuple[int, ...]) -> Any:
    """Return PyTorch's module of a layer, from `torch.nn` and the shape of a sample before it; None if it has none."""
    match layer:
        case Convolution():
            sizes = layer.kernel, layer.stride, layer.padding, layer.dilation, layer.groups, layer.bias
            return nn.Conv2d(before[0], layer.out_channels, *sizes)
        case BatchNorm():
            return nn.BatchNorm2d(before[0], layer.eps, layer.momentum)
        case MaxPool():
            return nn.MaxPool2d(layer.size, layer.stride or layer.size, layer.padding)
        case AveragePool():
            return nn.AvgPool2d(layer.size, layer.stride or layer.size)
        case GlobalPool():
            return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        case Dropout():
            return nn.Dropout(layer.rate)
        case FullyConnected():
            return nn.Linear(math.prod(before), layer.out_features)
        case LayerNorm():
            return nn.LayerNorm(before[-1], layer.eps)
        case Linear():
            return nn.Linear(before[-1], layer.out_features, layer.bias)
    return None


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
        """Input of a network of tokens.

        Raises
        ------
        UsageError
            The input is images.
        """
        if self.tokens is None:
            raise UsageError(
                f"the input of network {self.name!r} must be tokens, got images; choose a network of tokens"
            )
        return self.tokens

    def with_sequence(self, sequence: int) -> Network:
        """Return the network of tokens for samples of another length.

        Raises
        ------
        UsageError
            The network has not so many positions, or its input is images.
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
        last = [(i, layer) for i, layer in enumerate(self.layers) if isinstance(layer, FullyConnected)][-1:]
        if self.tokens is not None or not last or not isinstance(self.layers[-1], Softmax):
            raise UsageError(
                f"a network that takes images and classes from the data must read images and end in a fully connected "
                f"layer and Softmax, and {self.name!r} does not; describe its input_shape and classes as those of "
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
        """Name of each layer -> the layers whose outputs it takes; "input" is the image.

        Raises
        ------
        UsageError
            A name that comes twice, a layer that takes what comes later or nowhere, or one that nobody reads.
        """
        result: dict[str, tuple[str, ...]] = {}
        last = "input"
        for layer in self.layers:
            if layer.name in result or layer.name == "input":
                raise UsageError(f"names of layers must differ, got {layer.name!r} twice in {self.name!r}; rename one")
            if isinstance(layer, Add) and (isinstance(layer.inputs, str) or len(layer.inputs) != 2):
                raise UsageError(f"inputs of {layer.name!r} must be the names of two layers, got {layer.inputs!r}")
            names: tuple[str, ...] = layer.inputs if isinstance(layer, Add) else (layer.after or last,)
            if isinstance(layer, Attention) and layer.inputs:
                names = layer.inputs
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
                raise UsageError(
                    f"what layer {name!r} computes must be read by another, in {self.name!r}; leave it out"
                )
        return result

    def shapes(self) -> Iterator[tuple[Layer, tuple[int, ...], tuple[int, ...]]]:
        """Each layer with the shapes of one sample before it (of its first input) and after it."""
        inputs = self.inputs()
        shapes: dict[str, tuple[int, ...]] = {"input": self.input_shape}
        for layer in self.layers:
            before = [shapes[name] for name in inputs[layer.name]]
            shapes[layer.name] = _shape_after(self, layer, before)
            yield layer, before[0], shapes[layer.name]

    def layer_parameters(self) -> dict[str, dict[str, tuple[int, ...]]]:
        """Name of each layer -> PyTorch's name of each of its own parameters -> its shape.

        Raises
        ------
        UsageError
            Two parameters, or a parameter and a layer, have one name; or as `shapes`.
        """
        result: dict[str, dict[str, tuple[int, ...]]] = {}
        names = [layer.name for layer in self.layers]
        for layer, before, after in self.shapes():
            own = result[layer.name] = {}
            weight, bias = f"{layer.name}.weight", f"{layer.name}.bias"
            match layer:
                case Convolution():
                    own[weight] = (after[0], before[0] // layer.groups, layer.kernel, layer.kernel)
                    if layer.bias:
                        own[bias] = (after[0],)
                case BatchNorm():
                    own[weight] = own[bias] = (after[0],)
                case FullyConnected():
                    own |= {weight: (after[0], math.prod(before)), bias: (after[0],)}
                case Embedding():
                    own[weight] = (self.token_input.vocabulary, layer.features)
                    if layer.positions:
                        own[f"{layer.positions}.weight"] = (self.token_input.positions, layer.features)
                case Positions():
                    own[weight] = (self.token_input.positions, before[1])
                    if layer.types:
                        own[f"{layer.types}.weight"] = (TYPES, before[1])
                case LayerNorm() | NoNorm():
                    own[weight] = own[bias] = (after[1],)
                case Linear():
                    own[weight] = (layer.out_features, before[1])
                    if layer.bias:
                        own[bias] = (layer.out_features,)
                case TiedHead():
                    if further := before[1] - self.embedding_of(layer).features:
                        own[f"{layer.name}.dense.weight"] = (after[1], further)
                    if layer.bias:
                        own[bias] = (after[1],)
            beside = getattr(layer, "positions", "") or getattr(layer, "types", "")
            names += [*own, weight] if beside == layer.name else own
        for name, count in Counter(names).items():
            if count > 1:
                both = "a layer is called like a" if name in result else "two layers have a"
                raise UsageError(f"{both} parameter {name!r} in {self.name!r}; rename one")
        return result

    def embedding_of(self, head: TiedHead) -> Embedding:
        """Return the embedding with whose weights a head multiplies.

        Raises
        ------
        UsageError
            It names none.
        """
        for layer in self.layers:
            if isinstance(layer, Embedding) and layer.name == head.embedding:
                return layer
        raise UsageError(f"embedding of {head.name!r} must name an Embedding, got {head.embedding!r}")

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """PyTorch's name of each parameter -> its shape, in the order of the layers."""
        return {name: shape for own in self.layer_parameters().values() for name, shape in own.items()}

    def deviations(self) -> dict[str, float]:
        """Name of each parameter whose layer says so -> standard deviation of its initial values."""
        own = self.layer_parameters()
        return {
            name: layer.deviation
            for layer in self.layers
            if isinstance(layer, Embedding | Positions | Linear | TiedHead)
            for name, shape in own[layer.name].items()
            if len(shape) > 1
        }

    def statistic_shapes(self) -> dict[str, tuple[int, ...]]:
        """PyTorch's name of each running statistic -> its shape."""
        return {
            f"{layer.name}.{kind}": (after[0],)
            for layer, _, after in self.shapes()
            if isinstance(layer, BatchNorm)
            for kind in ("running_mean", "running_var")
        }

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


for _kind in (*get_args(Layer), Tokens, Network):
    checked_class(_kind)

TOKEN_LAYERS = (Embedding, Positions, Trigram, FirstToken, NoNorm, LayerNorm, Linear, Attention, TiedHead)


def _shape_after(network: Network, layer: Layer, before: list[tuple[int, ...]]) -> tuple[int, ...]:
    """Shape of one sample after a layer.

    Raises
    ------
    UsageError
        The layer does not fit what comes before it.
    """
    shape = before[0]
    if isinstance(layer, Add):
        if before[0] != before[1]:
            raise UsageError(f"inputs of {layer.name!r} must have one shape, got {before[0]} and {before[1]}")
        return shape
    if isinstance(layer, FullyConnected):
        return (layer.out_features,)
    if isinstance(layer, TOKEN_LAYERS):
        return _shape_after_tokens(network, layer, before)
    if not isinstance(layer, Convolution | BatchNorm | MaxPool | AveragePool | GlobalPool):
        return shape
    if len(shape) != 3:
        raise UsageError(f"{layer.name!r} must come after a layer with channels, height and width, got shape {shape}")
    if isinstance(layer, BatchNorm):
        return shape
    if isinstance(layer, GlobalPool):
        return (shape[0],)
    if isinstance(layer, Convolution):
        if shape[0] % layer.groups or layer.out_channels % layer.groups:
            raise UsageError(
                f"groups of {layer.name!r} must divide its {shape[0]} and {layer.out_channels} channels, "
                f"got {layer.groups}"
            )
        reach, padding, stride = (layer.kernel - 1) * layer.dilation + 1, layer.padding, layer.stride
    else:
        if isinstance(layer, MaxPool) and 2 * layer.padding > layer.size:
            raise UsageError(
                f"padding of {layer.name!r} must be at most half of its size {layer.size}, got {layer.padding}; some "
                f"windows would hold nothing"
            )
        reach, stride = layer.size, layer.stride or layer.size
        padding = layer.padding if isinstance(layer, MaxPool) else 0
    height, width = ((n + 2 * padding - reach) // stride + 1 for n in shape[1:])
    if min(height, width) < 1:
        raise UsageError(f"windows of {layer.name!r} must fit its input, got {reach} x {reach} on shape {shape}")
    return (layer.out_channels if isinstance(layer, Convolution) else shape[0], height, width)


def _shape_after_tokens(network: Network, layer: Layer, before: list[tuple[int, ...]]) -> tuple[int, ...]:
    """Shape of one sample, tokens and features, after a layer of tokens; raises as `_shape_after` does."""
    shape = before[0]
    if isinstance(layer, Embedding):
        if network.tokens is None or len(shape) != 1:
            raise UsageError(f"{layer.name!r} must read the input of a network of tokens, got shape {shape}")
        return (*shape, layer.features)
    if len(shape) != 2:
        raise UsageError(f"{layer.name!r} must come after a layer with tokens and features, got shape {shape}")
    length, features = shape
    if isinstance(layer, Linear):
        return (length, layer.out_features)
    if isinstance(layer, Trigram):
        return (length, 3 * features)
    if isinstance(layer, FirstToken):
        return (1, features)
    if isinstance(layer, Attention) and layer.inputs:
        if len(before) != 3 or len(set(before)) != 1 or features % layer.heads:
            raise UsageError(
                f"inputs of {layer.name!r} must be queries, keys and values of one shape, a multiple of {layer.heads} "
                f"features; got {before}"
            )
        return shape
    if isinstance(layer, Attention):
        if features % (3 * layer.heads):
            raise UsageError(
                f"{layer.name!r} must come after queries, keys and values of {layer.heads} heads, a multiple of "
                f"{3 * layer.heads} features; got {features}"
            )
        return (length, features // 3)
    if isinstance(layer, TiedHead):
        if network.embedding_of(layer).features > features:
            raise UsageError(
                f"embedding of {layer.name!r} must have the {features} features before it or fewer, got "
                f"{layer.embedding!r} of {network.embedding_of(layer).features}"
            )
        return (length, network.token_input.vocabulary)
    return shape
