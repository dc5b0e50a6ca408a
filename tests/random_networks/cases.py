"""Random networks with random options: every kind of layer in every place, in odd sizes.

`draw(seed)` returns a `Case`; the same seed gives the same case. Most cases make sense; the rest must be refused in a
sentence. `Case.code` is Python that makes the case again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import forktask as ft
from forktask.cython_src.errors import UsageError
from forktask.cython_src.kernels.convolution.algorithms import CONV_OPTIONS
from forktask.cython_src.lowering.options import FUSIONS

SHARE_OF_TOKENS = 0.25
MOST_ELEMENTS = 4000  # of a tensor of one sample: the reference has to be quick


@dataclass(frozen=True)
class Case:
    """A network and the options of its plan.

    Attributes
    ----------
    network : Network
    options : mapping
        Fields of `PlanOptions` that are given.
    seed : int
        Of the data.
    """

    network: ft.Network
    options: Mapping[str, Any]
    seed: int = 0

    @property
    def code(self) -> str:
        """Python that makes this case, for whoever has to find out what is wrong with it."""
        n = self.network
        layers = "".join(f"        {_code_of(layer)},\n" for layer in n.layers)
        tokens = f",\n    {_code_of(n.tokens)}" if n.tokens else ""
        options = ", ".join(f"{name}={value!r}" for name, value in self.options.items())
        return (
            f"network = Network(\n    {n.name!r},\n    {n.input_shape!r},\n    (\n{layers}    ){tokens},\n)\n"
            f"case = Case(network, dict({options}), seed={self.seed})\n"
        )


def _code_of(record: Any) -> str:
    """Return a constructor's call with the fields that differ from their defaults."""
    parts = []
    for f in dataclasses.fields(record):
        value = getattr(record, f.name)
        if f.default is dataclasses.MISSING or value != f.default:
            parts.append(repr(value) if f.default is dataclasses.MISSING else f"{f.name}={value!r}")
    return f"{type(record).__name__}({', '.join(parts)})"


def draw(seed: int) -> Case:
    """Return the case of a seed."""
    rng = np.random.default_rng(seed)
    tokens = rng.random() < SHARE_OF_TOKENS
    network = _Growth(rng).tokens() if tokens else _Growth(rng).images()
    return Case(network, _options(rng, network), int(rng.integers(1000)))


def _one_of(rng: np.random.Generator, *values: Any) -> Any:
    return values[int(rng.integers(len(values)))]


@dataclass
class _Growth:
    """A network that grows layer by layer; `_add` refuses a layer that does not fit."""

    rng: np.random.Generator
    input_shape: tuple[int, ...] = ()
    layers: list[ft.Layer] = field(default_factory=list)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)  # of tensors that exist
    last: str = "input"
    input_tokens: ft.Tokens | None = None
    padding: int | None = None  # of all convolutions of a chain

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def number(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    @property
    def shape(self) -> tuple[int, ...]:
        return self.shapes[self.last]

    def _add(self, kind: type, *arguments: Any, after: str = "", **named: Any) -> bool:
        """Append a layer behind the last tensor, or behind `after`; return whether it fits."""
        name = f"{kind.__name__.lower()}{len(self.layers)}"
        if after and after != self.last:
            named["after"] = after
        layer = kind(name, *arguments, **named)
        sources = layer.inputs if isinstance(layer, ft.Add) else getattr(layer, "inputs", ()) or (after or self.last,)
        network = ft.Network("random", self.input_shape, (*self.layers, layer), self.input_tokens)
        try:
            shape = layer.shape_after(network, *(self.shapes[source] for source in sources))
        except UsageError:
            return False
        if int(np.prod(shape)) > MOST_ELEMENTS:
            return False
        self.layers.append(layer)
        self.shapes[name], self.last = shape, name
        return True

    # --- images ---------------------------------------------------------------------------------------------------

    def images(self) -> ft.Network:
        """Return a network of images: a third are chains that images in the lanes can compute."""
        lanes = self.chance(0.4)
        if lanes:
            self.padding = _one_of(self.rng, 2, 2, None)
            side = _one_of(self.rng, 4, 6, 8, 10, 12, 16)
            self.input_shape = (self.number(1, 9), side, _one_of(self.rng, side, 4, 8, 14))
        else:
            self.input_shape = (
                _one_of(self.rng, 1, 2, 3, 3, 4, 5, 7, 15, 16, 17, 24, 32),
                self.number(1, 12),
                self.number(1, 12),
            )
        self.shapes["input"] = self.input_shape
        for _ in range(self.number(1, 7)):
            if len(self.shape) == 3:
                (self._chain_layer if lanes else self._map_layer)()
            else:
                self._vector_layer()
        if len(self.shape) == 3:
            self._add(*_one_of(self.rng, (ft.GlobalAvgPool,), (ft.Linear, self.number(1, 12))))
        if self.chance(0.7) or self.last == "input":
            self._add(ft.Linear, self.number(1, 12))
        return ft.Network("random", self.input_shape, (*self.layers, ft.SoftmaxCrossEntropy()))

    def _chain_layer(self) -> None:
        """A layer of the kinds that images or pixels in the lanes have kernels for."""
        match self.number(0, 5):
            case 0 | 1 | 2:
                self._add(ft.Conv2d, self.number(1, 20), 5, self.number(0, 2) if self.padding is None else self.padding)
                if self.chance(0.6):
                    self._add(ft.ReLU)
                if self.chance(0.4):
                    self._add(ft.MaxPool, 2)
            case 3:
                self._add(ft.ReLU)
            case 4:
                self._add(ft.MaxPool, 2)
            case 5:
                self._add(ft.Linear, self.number(1, 20))
                if self.chance(0.5):
                    self._add(ft.ReLU)

    def _map_layer(self) -> None:
        """A layer, or a few that belong together, behind a map."""
        kind = self.number(0, 15)
        match kind:
            case 0 | 1:
                self._convolution()
            case 2:
                self._convolution()
                self._add(ft.BatchNorm)
                self._activation()
            case 3:
                self._depthwise()
            case 4:
                self._convolution()
                self._add(ft.BatchNorm)
                self._activation()
                self._depthwise()
                self._add(ft.BatchNorm)
                self._activation()
            case 5:
                self._add(ft.BatchNorm, _one_of(self.rng, 1e-5, 1e-3), _one_of(self.rng, 0.1, 0.5))
            case 6 | 7:
                self._activation()
            case 8:
                size = self.number(1, 3)
                self._add(ft.MaxPool, size, self.number(0, 3) or None, self.number(0, size // 2))
            case 9:
                self._add(ft.AveragePool, self.number(1, 3), self.number(0, 3) or None)
            case 10:
                self._add(ft.Dropout, float(_one_of(self.rng, 0.0, 0.25, 0.5, 0.9)))
            case 11 | 12 | 13:
                self._residual()
            case 14:
                self._sum_with_earlier()
            case 15:
                self._add(*_one_of(self.rng, (ft.GlobalAvgPool,), (ft.Linear, self.number(1, 20))))

    def _activation(self) -> None:
        self._add(_one_of(self.rng, ft.ReLU, ft.ReLU, ft.ReLU6, ft.Sigmoid))

    def _convolution(self, out: int = 0, same: bool = False, after: str = "") -> bool:
        channels = self.shapes[after or self.last][0]
        out = out or _one_of(self.rng, 1, 3, 8, 16, 16, 17, 20, 24, 32)
        dilation = _one_of(self.rng, 1, 1, 1, 2)
        kernel = _one_of(self.rng, 1, 3, 3, 5) if same else self.number(1, 5)
        padding = dilation * (kernel - 1) // 2 if same else self.number(0, kernel)
        groups = [g for g in range(1, channels + 1) if channels % g == 0 and out % g == 0]
        return self._add(
            ft.Conv2d,
            out,
            kernel,
            padding,
            stride=1 if same else _one_of(self.rng, 1, 1, 1, 2, 3),
            groups=_one_of(self.rng, *groups) if self.chance(0.2) else 1,
            dilation=dilation,
            bias=self.chance(0.5),
            after=after,
        )

    def _depthwise(self) -> None:
        channels, kernel = self.shape[0], self.number(1, 5)
        out = channels * _one_of(self.rng, 1, 1, 1, 2)
        padding, stride = self.number(0, kernel), self.number(1, 2)
        dilation = _one_of(self.rng, 1, 1, 2)
        bias = self.chance(0.3)
        self._add(ft.Conv2d, out, kernel, padding, stride, groups=channels, dilation=dilation, bias=bias)

    def _residual(self) -> None:
        """Two ways from one tensor, and their sum."""
        start = self.last
        for _ in range(self.number(1, 3)):
            kind = self.number(0, 4)
            if kind < 3:
                self._convolution(self.shapes[start][0], same=True)
                if self.chance(0.6):
                    self._add(ft.BatchNorm)
            elif kind == 3:
                self._activation()
            else:
                self._add(ft.Dropout, 0.5)
        first, second = self.last, start
        if self.chance(0.4):
            if self._convolution(self.shapes[start][0], same=True, after=start) and self.chance(0.6):
                self._add(ft.BatchNorm)
            second = self.last
        if self.shapes[first] != self.shapes[second]:
            second = first
        pair = (first, second) if self.chance(0.5) else (second, first)
        self._add(ft.Add, pair)
        if self.chance(0.6):
            self._activation()

    def _sum_with_earlier(self) -> None:
        others = [name for name, shape in self.shapes.items() if shape == self.shape]
        self._add(ft.Add, (self.last, _one_of(self.rng, *others)))

    def _vector_layer(self) -> None:
        """A layer behind features without pixels."""
        match self.number(0, 6):
            case 0 | 1 | 2:
                self._add(ft.Linear, self.number(1, 24))
                if self.chance(0.5):
                    self._activation()
            case 3:
                self._activation()
            case 4:
                self._add(ft.Dropout, 0.5)
            case 5:
                self._sum_with_earlier()
            case 6:
                start, (features,) = self.last, self.shape
                self._add(ft.Linear, features)
                first = self.last
                if self.chance(0.5):
                    self._add(ft.Linear, features, after=start)
                    start = self.last
                self._add(ft.Add, (first, start))

    # --- tokens ---------------------------------------------------------------------------------------------------

    def tokens(self) -> ft.Network:
        """Return a network of tokens."""
        answers = _one_of(self.rng, "next", "next", "masked", "class")
        vocabulary, positions = self.number(3, 70), self.number(1, 12)
        mask = vocabulary - 1 if answers == "masked" else -1
        self.input_tokens = ft.Tokens(vocabulary, positions, answers, mask)
        self.input_shape = (positions,)
        self.shapes["input"] = self.input_shape
        own = {"positions": "places"} if self.chance(0.5) else {}
        self._add(ft.Embedding, self.number(1, 40), **own)
        table = self.layers[0].name
        for _ in range(self.number(0, 6)):
            self._token_layer()
        if answers == "class":
            self._add(ft.FirstToken)
            self._add(ft.Linear, self.number(1, 9))
        else:
            if not (self.chance(0.5) and self._add(ft.TiedHead, table, self.chance(0.5))):
                self._add(ft.Linear, vocabulary, self.chance(0.5))
        return ft.Network("random", self.input_shape, (*self.layers, ft.SoftmaxCrossEntropy()), self.input_tokens)

    def _token_layer(self) -> None:
        features = self.shape[-1]
        match self.number(0, 11):
            case 0 | 1:
                self._add(ft.Linear, self.number(1, 48), self.chance(0.7))
            case 2 | 3:
                heads = self.number(1, 4)
                width = heads * self.number(1, 9)
                if self.chance(0.6):
                    self._add(ft.Linear, 3 * width, self.chance(0.7))
                    self._add(ft.Attention, heads, self.chance(0.6))
                else:
                    start, names = self.last, []
                    for _ in range(3):
                        self._add(ft.Linear, width, after=start)
                        names.append(self.last)
                    self._add(ft.Attention, heads, self.chance(0.6), inputs=tuple(names))
            case 4:
                self._add(_one_of(self.rng, ft.LayerNorm, ft.NoNorm))
            case 5:
                self._add(_one_of(self.rng, ft.GELU, ft.ReLU, ft.Sigmoid))
            case 6:
                own = {"types": f"types{len(self.layers)}"} if self.chance(0.5) else {}
                self._add(ft.Positions, **own)
            case 7:
                self._add(ft.Trigram)
            case 8:
                self._sum_with_earlier()
            case 9 | 10 | 11:
                start = self.last
                if self.chance(0.5):
                    self._add(ft.LayerNorm)
                self._add(ft.Linear, self.number(1, 40))
                if self.chance(0.7):
                    self._add(_one_of(self.rng, ft.GELU, ft.ReLU, ft.Sigmoid))
                self._add(ft.Linear, features)
                self._add(ft.Add, (start, self.last) if self.chance(0.5) else (self.last, start))


def _options(rng: np.random.Generator, network: ft.Network) -> dict[str, Any]:
    """Return random options, most of them left at their defaults."""
    tokens = network.tokens is not None
    options: dict[str, Any] = {"batch": _one_of(rng, 1, 1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 20, 33)}
    if tokens:
        options |= {"batch": int(rng.integers(1, 6)), "sequence": network.input_shape[0]}

    def maybe(share: float, name: str, *values: Any) -> None:
        if rng.random() < share:
            options[name] = _one_of(rng, *values)

    maybe(0.35, "phase", "train", "forward", "evaluate")
    if rng.random() < 0.5:
        sizes = {"images": (1, 2, 3, 16, 32), "channels": (1, 3, 8, 16, 16, 32), "rows": (1, 2, 3, 5), "heads": (1, 2)}
        chosen = {k: _one_of(rng, *v) for k, v in sizes.items() if rng.random() < 0.5 and (tokens or k != "heads")}
        if chosen:
            options["granularity"] = ",".join(f"{k}={v}" for k, v in chosen.items())
    maybe(0.3, "memory", "full", "shared")
    if rng.random() < 0.5:
        some = [name for name in FUSIONS if rng.random() < 0.5 and (name != "pooling" or rng.random() < 0.3)]
        options["fusion"] = _one_of(rng, "none", ",".join(some) or "none")
    maybe(0.25, "conv", *CONV_OPTIONS)
    maybe(0.1 if tokens else 0.4, "layout", "auto", "nchw16", "nchw", "nhwc")
    maybe(0.05 if tokens else 0.2, "label_smoothing", 0.1)
    maybe(0.2, "check_finite", True)
    if options.get("phase", "train") == "train":
        maybe(0.3, "weight_gradients", "partial", "chain", "tree", "commutative")
        maybe(0.35, "optimizer", "sgd", "adam", "adamw")
        if options.get("optimizer", "sgd") != "sgd":
            options["eps"] = 0.1  # a gradient of rounding errors alone must not become a step
        maybe(0.2, "momentum", 0.0, 0.5)
        maybe(0.2, "weight_decay", 0.0, 0.1)
        maybe(0.2, "decay", "matrices")
        maybe(0.2, "clip_norm", 0.05, 10.0)
        maybe(0.2, "dropout_seed", 3)
        names = [name for name, own in network.layer_parameters().items() if own]
        if names and rng.random() < 0.15:
            options["frozen"] = ",".join(str(n) for n in rng.choice(names, min(len(names), 2), replace=False))
        if options.get("memory") == "shared":
            maybe(0.5, "recompute", True)
    return options
