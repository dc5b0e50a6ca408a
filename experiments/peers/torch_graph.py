"""Reading a PyTorch module: each operation of its exported graph is a layer, moves elements about, or is refused.

Three rules stand for long lists of operations. What depends on neither samples nor parameters, such as a mask, is
computed. What moves elements (`view`, `transpose`, `split`, ...) is run on their positions, and a layer that reads the
result looks whether they lie as it takes them. A chain of elementwise operations on one tensor is run on some points,
and is the activation whose values it has there.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch
from torch import fx
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

from ...cython_src.errors import UsageError
from ...cython_src.networks import layers
from ...cython_src.networks.layers import TYPES, Layer, Network, Shape, Tokens

MOVES = ("clone", "_unsafe_view", "unsafe_chunk", "unsafe_split")  # with all whose result is a view by its schema
UNTAGGED = ("hardsigmoid", "hardswish", "relu6")  # elementwise operations that PyTorch does not mark as such
# Where an activation is recognised, and its values there.
POINTS = torch.cat([torch.linspace(-20, 20, 4001, dtype=torch.float64), torch.tensor([-1e6, -1e2, 1e2, 1e6]).double()])
ACTIVATIONS: dict[type[Layer] | None, torch.Tensor] = {
    None: POINTS,
    layers.ReLU: functional.relu(POINTS),
    layers.ReLU6: functional.relu6(POINTS),
    layers.Sigmoid: torch.sigmoid(POINTS),
    layers.GELU: functional.gelu(POINTS, approximate="tanh"),
}
ROUNDING = 1e-7  # within which values are those of an activation
MASKED = -1e4  # what a mask adds at most where a token is not seen
OTHERWISE = "write that part with the layers of docs/reference/layers.md"
_ATTENTION = "use scaled_dot_product_attention for attention (attn_implementation='sdpa'), and return logits"
REMEDIES = {
    **dict.fromkeys(("bernoulli", "feature_dropout"), "use Dropout"),
    **dict.fromkeys(
        ("wrap_with_set_grad_enabled", "wrap_with_autocast"), "leave it out; the option frozen names layers"
    ),
    **dict.fromkeys(("bmm", "matmul", "softmax"), _ATTENTION),
    **dict.fromkeys(("conv1d", "conv3d", "conv_transpose2d"), "use Conv2d"),
    **dict.fromkeys(("group_norm", "instance_norm"), "use BatchNorm2d"),
    "cat": "add tensors instead (x + y)",
    "mean": "take the mean over all pixels of maps, as AdaptiveAvgPool2d(1) does",
    "rms_norm": "use LayerNorm",
}


class Logits(torch.nn.Module):
    """A module that returns its logits alone, also where they are one part of its output."""

    def __init__(self, module: torch.nn.Module):
        super().__init__()
        self.module = module

    def forward(self, samples):
        output = self.module(samples)
        return getattr(output, "logits", output)


class NoDropout(TorchFunctionMode):
    """Within it dropout leaves samples as they are."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if getattr(function, "__name__", "") in ("dropout", "dropout_"):
            return args[0]
        return function(*args, **(kwargs or {}))


@dataclass(eq=False)
class Value:
    """A tensor of the graph: elements of a layer's output, of the samples ("input"), or of a parameter."""

    source: str
    shape: Shape
    positions: torch.Tensor | None = None  # of its elements in `source`; None: the first ones, in order
    is_parameter: bool = False
    numbers: torch.Tensor | None = None  # of a function of each element that is no layer yet: values at `POINTS`
    types: Value | None = None  # a table of types that is added to it, and is no layer yet
    node: fx.Node | None = None  # that made it what is no layer yet

    @property
    def at(self) -> torch.Tensor:
        """Positions of its elements, in its shape."""
        return torch.arange(math.prod(self.shape)).view(self.shape) if self.positions is None else self.positions

    def moved(self, positions: torch.Tensor) -> Value:
        """Return other elements of the same source."""
        in_order = torch.equal(positions.flatten(), torch.arange(positions.numel()))
        return Value(self.source, tuple(positions.shape), None if in_order else positions, self.is_parameter)


class Reader:
    """Layers, in order, of an `ExportedProgram` of `Logits(module)` in training, with the samples of which it was made.

    `weights`: name of each parameter and statistic of the layers -> the elements of the module's that it consists of.
    """

    def __init__(self, module: torch.nn.Module, exported: torch.export.ExportedProgram, samples: torch.Tensor):
        self.exported, self.modules = exported, dict(module.named_modules())
        names = {id(p): name for name, p in module.named_parameters()}
        self.first_name = {name: names[id(p)] for name, p in module.named_parameters(remove_duplicate=False)}
        self.own_shapes = {name: tuple(array.shape) for name, array in module.state_dict().items()}
        self.tokens, self.num_samples = not samples.is_floating_point(), len(samples)
        shape = tuple(samples.shape[1:])
        self.shapes: dict[str, Shape] = {"input": shape if self.tokens or len(shape) == 3 else (*shape, 1, 1)}
        self.layers: list[Layer] = []
        self.weights: dict[str, Value] = {}
        self.embeddings: dict[str, str] = {}  # parameter -> layer
        self.vocabulary, self.num_positions = 0, shape[0]
        self.node: fx.Node = next(iter(exported.graph.nodes))

    def read(self, name: str, mask: int | None) -> Network:
        """Return the network. Raises `UsageError`: an operation that is no layer."""
        graph, answers = self.exported.graph, self.exported.graph_signature.user_outputs
        if len(answers) != 1:
            raise UsageError(f"a module must answer with logits, got {len(answers)} tensors; return the logits alone")
        (output,) = (node for node in graph.nodes if node.name == answers[0])
        self.check_changes()
        graph.eliminate_dead_code()
        values = dict(self.placeholders())
        for self.node in graph.nodes:
            if self.node.op == "get_attr":
                values[self.node] = getattr(self.exported.graph_module, str(self.node.target))
            elif self.node.op == "call_function" and not _operation(self.node.target).startswith("_assert"):
                args, kwargs = fx.node.map_arg((self.node.args, self.node.kwargs), values.__getitem__)
                values[self.node] = self.call(self.node.target, args, kwargs)
        self.node = output
        return self.network(name, values[output], mask)

    def check_changes(self) -> None:
        """Refuse operations in place on a tensor of which a view or the base is read later, and on parameters."""
        bases: dict[fx.Node, fx.Node] = {}  # node -> that whose elements it shows
        order = {node: number for number, node in enumerate(self.exported.graph.nodes)}
        for node, number in order.items():
            returns = [r.alias_info for r in getattr(getattr(node.target, "_schema", None), "returns", ())]
            shows = any(returns) or _operation(node.target) in MOVES or node.target is operator.getitem
            before = [bases[other] for other in node.all_input_nodes[:1]]
            bases[node] = before[0] if before and shows else node
            if any(info and info.is_write for info in returns):
                alike = [other for other, base in bases.items() if base is bases[node] and other is not node]
                if any(order[user] > number and user.op != "output" for other in alike for user in other.users):
                    self.refuse(
                        "in place on a tensor that is read later, or a view of it", "let it make a tensor", node
                    )

    def placeholders(self) -> Iterator[tuple[fx.Node, Any]]:
        """Yield the graph's inputs: parameters and samples as values, all else as it is."""
        nodes = [node for node in self.exported.graph.nodes if node.op == "placeholder"]
        for node, spec in zip(nodes, self.exported.graph_signature.input_specs, strict=True):
            if spec.kind.name == "USER_INPUT":
                yield node, Value("input", _shape_of(node))
            elif spec.kind.name == "PARAMETER":
                yield node, Value(self.first_name[_own(spec.target)], _shape_of(node), is_parameter=True)
            else:
                held = self.exported.state_dict if spec.target in self.exported.state_dict else self.exported.constants
                yield node, held[spec.target].clone()

    def network(self, name: str, logits: Any, mask: int | None) -> Network:
        """Return the network of all layers, with a softmax of the logits."""
        logits = self.ready(logits) if isinstance(logits, Value) else Value("input", ())
        shape, by_class = self.shapes[logits.source], self.tokens and len(logits.shape) == 2
        whole = logits.positions is None and logits.shape == (self.num_samples, *shape[by_class:])
        if not whole or len(shape) != 1 + self.tokens:
            self.refuse(
                "the answer is no layer's output as it is",
                "return logits, of shape (samples, classes) or (samples, tokens, vocabulary)",
            )
        self.add(layers.SoftmaxCrossEntropy, self.unique("softmax"), [logits], shape)
        tokens = None
        if self.tokens:
            causal = {layer.causal for layer in self.layers if isinstance(layer, layers.Attention)}
            answers = "class" if by_class else "masked" if causal == {False} else "next"
            if answers == "masked" and mask is None:
                raise UsageError(
                    f"a network in which tokens see later ones learns masked tokens, got {name!r} without a mask; give "
                    f"mask=, the token in the place of masked ones"
                )
            masked = {"mask": mask} if answers == "masked" else {}
            tokens = Tokens(self.vocabulary, self.num_positions, answers, **masked)
        network = Network(name, self.shapes["input"], tuple(self.layers), tokens)
        for layer, _, after in network.shapes():
            if after != self.shapes[layer.name]:
                raise UsageError(
                    f"{layer.name!r} of a network from PyTorch must have results of shape {after}, got "
                    f"{self.shapes[layer.name]}; leave out ceil_mode, and padding on one side"
                )
        return network

    def refuse(self, why: str = "no layer computes it", remedy: str = "", node: fx.Node | None = None) -> NoReturn:
        """Raise `UsageError` that names an operation and the module that it stands in."""
        path, kind = self.place(node := node or self.node)
        operation = _operation(node.target)
        where = f"{path!r} ({kind})" if path else kind
        raise UsageError(
            f"a network from PyTorch must consist of layers that exist, got {operation} in {where}: {why}; "
            f"{remedy or REMEDIES.get(operation, OTHERWISE)}"
        )

    def place(self, node: fx.Node) -> tuple[str, str]:
        """Return path and class of the module that a node stands in."""
        stack = [_own(path) for path, _ in node.meta.get("nn_module_stack", {}).values()]
        path = next((path for path in reversed(stack) if path in self.modules), "")
        return path, type(self.modules[path]).__name__

    def named(self, kind: str) -> str:
        """Return a name for a layer without parameters: its module's, or in a module of several layers the kind's."""
        path, _ = self.place(self.node)
        is_leaf = path and not any(self.modules[path].children())
        return self.unique(path if is_leaf else f"{path}.{kind}".removeprefix("."))

    def unique(self, name: str) -> str:
        """Return a name that no layer has yet."""
        number, result = 0, name
        while result in self.shapes:
            number, result = number + 1, f"{name}_{number + 1}"
        return result

    def parameters(self, kind: str, weight: Value, bias: Value | None = None) -> str:
        """Return the name of a layer with parameters, which are noted."""
        sources = {value.source for value in self.weights.values()}
        for value in (weight,) if bias is None else (weight, bias):
            if not isinstance(value, Value) or not value.is_parameter:
                self.refuse("a weight is computed, or a constant", "use parameters as they are")
            if value.positions is not None and torch.bincount(value.positions.flatten()).max() > 1:
                self.refuse(f"elements of parameter {value.source!r} are repeated", "use parameters as they are")
            if value.source in sources:
                self.refuse(f"parameter {value.source!r} has two readers", "give each layer parameters of its own")
            sources.add(value.source)
        stem = weight.source.removesuffix(".weight").removesuffix("_weight")
        name = self.unique(kind if stem == "weight" else stem)
        self.weights |= {f"{name}.{what}": v for what, v in (("weight", weight), ("bias", bias)) if v is not None}
        return name

    def add(self, kind: type[Layer], name: str, sources: Sequence[Value], shape: Shape, **fields: Any) -> Value:
        """Add a layer, and return its output; `shape`: of a sample."""
        names = tuple(value.source for value in sources)
        last = self.layers[-1].name if self.layers else "input"
        read = {"inputs": names} if len(names) > 1 else {"after": "" if names == (last,) else names[0]}
        self.layers.append(kind(name, **fields, **read))
        self.shapes[name] = shape
        return Value(name, (self.num_samples, *shape))

    def call(self, target: Any, args: Sequence, kwargs: Mapping) -> Any:
        """Return the result of an operation: a value, several, or a constant."""
        operands = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Value)]
        tags = getattr(target, "tags", ())
        if not isinstance(target, torch._ops.OpOverload) and target is not operator.getitem and operands:
            self.refuse("it changes how gradients or types are computed")
        if torch.Tag.nondeterministic_seeded in tags and (not operands or _operation(target).endswith("_like")):
            self.refuse("it draws random numbers", "use Dropout")
        if not operands:
            return target(*args, **kwargs)
        if target is operator.getitem:
            return args[0][args[1]]
        name = _operation(target)
        if name.startswith("new_") or name.endswith("_like"):  # of a tensor the shape alone counts
            empty = torch.empty(operands[0].shape, dtype=self.node.all_input_nodes[0].meta["val"].dtype)
            return target(*tree_map_only(Value, lambda _: empty, args), **kwargs)
        if operation := getattr(self, f"op_{name}", None):
            schema = target._schema.arguments
            given = {a.name: a.default_value for a in schema if a.has_default_value()}
            given |= {**dict(zip((a.name for a in schema), args, strict=False)), **kwargs}
            return operation(**{{"self": "input"}.get(key, key): value for key, value in given.items()})
        if torch.Tag.pointwise in target.tags or name in UNTAGGED:
            return self.elementwise(name, target, args, kwargs)
        if name in MOVES or any(r.alias_info and not r.alias_info.is_write for r in target._schema.returns):
            args, kwargs = tree_map_only(Value, lambda value: self.ready(value).at, (args, kwargs))
            return tree_map_only(torch.Tensor, operands[0].moved, target(*args, **kwargs))
        self.refuse()

    def elementwise(self, name: str, target: Any, args: Sequence, kwargs: Mapping) -> Value:
        """Return a function of each element of one tensor, the sum of two, or of one and a table."""
        leaves = tree_leaves((args, kwargs))
        operands = [leaf for leaf in leaves if isinstance(leaf, Value)]
        first, second = operands[0], operands[-1]
        is_sum = name == "add" and len(operands) == 2 and kwargs.get("alpha", 1) == 1
        if first.is_parameter or second.is_parameter:
            if not is_sum or first.is_parameter == second.is_parameter:
                self.refuse("a parameter stands outside of a layer", "use it in a layer of PyTorch's")
            return self.with_table(*((second, first) if first.is_parameter else (first, second)))
        of_one = len({(value.source, value.positions) for value in operands}) == 1
        if of_one and not any(isinstance(leaf, torch.Tensor) and leaf.numel() > 1 for leaf in leaves):
            args = tree_map_only(Value, lambda v: (POINTS if v.numbers is None else v.numbers).clone(), args)
            numbers, base = target(*args, **kwargs), self.ready(replace(first, numbers=None))
            for kind, known in ACTIVATIONS.items():
                if torch.allclose(numbers.double(), known, ROUNDING, ROUNDING):
                    return self.alike(kind, base) if kind else base
            return replace(base, numbers=numbers, node=self.node)
        if not is_sum:
            self.refuse("of two tensors only the sum is a layer", "add them instead (x + y)")
        first, second = self.ready(first), self.ready(second)
        in_order = first.positions is second.positions is None
        if first.shape != second.shape or not (in_order or torch.equal(first.at, second.at)):
            self.refuse("the tensors have different shapes", "sum two of one shape")
        return self.alike(layers.Add, first, second)

    def with_table(self, value: Value, table: Value) -> Value:
        """Return a value with a row of a table added to each token."""
        shape, own = self.shapes[value.source], self.own_shapes[table.source]
        if not self.tokens or len(shape) != 2 or value.positions is not None or value.shape[1:] != shape:
            self.refuse("a parameter is added outside of a layer", "use the bias of a layer")
        rows, first = table.at.broadcast_to(value.shape), torch.arange(math.prod(shape)).view(shape)
        whole = Value(table.source, (math.prod(own) // shape[1], shape[1]), is_parameter=True)
        if own == (TYPES, shape[1]) and not value.types and bool((rows == first[0]).all()):
            return replace(value, types=whole, node=self.node)
        if not bool((rows == first).all()):
            self.refuse("a row is added that is not that of the token's position", "add row t to token t")
        types, name = value.types, self.parameters("positions", whole)
        self.num_positions = whole.shape[0]
        embedding = next(layer for layer in self.layers if layer.name == value.source)
        alone = all(len(node.users) == 1 for node in self.node.all_input_nodes)
        if isinstance(embedding, layers.Embedding) and not embedding.positions and not types and alone:
            self.layers[self.layers.index(embedding)] = replace(embedding, positions=name)
            return value
        second = {"types": self.parameters("types", types)} if types else {}
        return self.add(layers.Positions, name, [value], shape, **second)

    def ready(self, value: Value) -> Value:
        """Return a value that is elements of a layer's output."""
        if value.numbers is not None:
            kinds = "ReLU, ReLU6, Sigmoid or GELU(approximate='tanh')"
            self.refuse("no activation that exists has its values", f"use {kinds}", value.node)
        if value.types:
            self.refuse("types are added without positions", "add positions after them", value.node)
        return value

    def alike(self, kind: type[Layer], *sources: Value, **fields: Any) -> Value:
        """Add a layer whose results lie as what it reads does, and return them."""
        (first, *_), shape = sources, self.shapes[sources[0].source]
        every = self.num_samples * math.prod(shape)
        distinct = math.prod(first.shape) if first.positions is None else first.positions.unique().numel()
        if math.prod(first.shape) != every or distinct != every:
            self.refuse("it reads a part of a layer's output", "let it read the whole")
        made = self.add(kind, self.named(kind.__name__.lower()), sources, shape, **fields)
        return Value(made.source, first.shape, first.positions)

    def maps(self, value: Any) -> Value:
        """Return a value that is maps as a layer leaves them."""
        if isinstance(value, Value) and not value.is_parameter:
            value = self.ready(value)
            shape = self.shapes[value.source]
            if not self.tokens and len(shape) == 3 and value.positions is None and value.shape[1:] == shape:
                return value
        self.refuse("it does not read the maps of a layer", "let it read (samples, channels, height, width)")

    def rows(self, value: Value) -> tuple[Value, torch.Tensor]:
        """Return a value whose tokens all have their features side by side, and which token stands where."""
        if not self.tokens:
            self.refuse("it is a layer of tokens, and the samples are images", "use layers of images")
        value = self.ready(value)
        shape, at = self.shapes[value.source], value.at
        if len(shape) == 2 and at.shape[-1:] == shape[1:]:
            order = at[..., 0] // shape[1]
            if torch.equal(at, order[..., None] * shape[1] + torch.arange(shape[1])):
                which = order.flatten()
                if torch.equal(which.sort().values, torch.arange(self.num_samples * shape[0])):
                    return value, order
                if torch.equal(which, torch.arange(self.num_samples) * shape[0]):
                    name = self.unique(f"{value.source}.first")
                    first = self.add(layers.FirstToken, name, [value], (1, shape[1]))
                    return first, order // shape[0]
        self.refuse("it does not read all features of all tokens, or of the first ones", "keep features last")

    def of_rows(self, kind: type[Layer], name: str, value: Value, features: int, **fields: Any) -> Value:
        """Add a layer of tokens, and return its results where the tokens stood."""
        value, order = self.rows(value)
        made = self.add(kind, name, [value], (self.shapes[value.source][0], features), **fields)
        return made.moved(order[..., None] * features + torch.arange(features))

    def square(self, **sizes: int | Sequence[int]) -> dict[str, int]:
        """Return sizes that are the same in both directions."""
        several = {what: {numbers} if isinstance(numbers, int) else {*numbers} for what, numbers in sizes.items()}
        for what, numbers in several.items():
            if len(numbers) != 1:
                self.refuse(f"{what} differs in both directions", "use the same")
        return {what: number for what, (number,) in several.items()}

    # Operations that are layers, by their names and arguments.

    def op_conv2d(self, input, weight, bias, stride, padding, dilation, groups) -> Value:
        source, sizes = self.maps(input), self.square(kernel=weight.shape[2:], stride=stride, dilation=dilation)
        reach = sizes["dilation"] * (sizes["kernel"] - 1)
        padding = {"valid": 0, "same": reach // 2}[padding] if isinstance(padding, str) else padding
        fields = {**sizes, **self.square(padding=padding), "out_channels": weight.shape[0], "groups": groups}
        name = self.parameters("conv", weight, bias)
        return self.add(layers.Conv2d, name, [source], self.shape(), **fields, bias=bias is not None)

    def op_detach(self, input) -> Value:
        return input if input.source == "input" else self.refuse("no gradient passes it", "leave it out")

    def op_batch_norm(self, input, weight, bias, running_mean, training, momentum, eps, **_) -> Value:
        if not training:
            self.refuse("it takes running statistics in training", "let it take those of the batch, training=True")
        source = self.maps(input)
        if weight is None or bias is None or running_mean is None:
            self.refuse("weights or running statistics are left out", "keep affine and track_running_stats")
        name = self.parameters("bn", weight, bias)
        for what in ("running_mean", "running_var"):
            self.weights[f"{name}.{what}"] = Value(weight.source.removesuffix("weight") + what, weight.shape)
        return self.add(layers.BatchNorm, name, [source], self.shape(), eps=eps, momentum=momentum)

    def op_max_pool2d(self, input, kernel_size, stride, padding, dilation, **_) -> Value:
        if self.square(dilation=dilation)["dilation"] != 1:
            self.refuse("pixels of a window lie apart", "leave out dilation")
        return self.pool(layers.MaxPool, input, kernel_size, stride, padding=padding)

    def op_avg_pool2d(self, input, kernel_size, stride, padding, divisor_override, **_) -> Value:
        if self.square(padding=padding)["padding"] or divisor_override:
            self.refuse("there is padding, or another divisor", "leave it out")
        return self.pool(layers.AveragePool, input, kernel_size, stride)

    def pool(self, kind: type[Layer], input, size, stride, **further) -> Value:
        sizes = self.square(size=size, stride=stride or size, **further)
        sizes = {what: size for what, size in sizes.items() if what != "stride" or size != sizes["size"]}
        return self.add(kind, self.named(kind.__name__.lower()), [self.maps(input)], self.shape(), **sizes)

    def op_adaptive_avg_pool2d(self, input, output_size) -> Value:
        source = self.maps(input)
        before, after = self.shapes[source.source][1:], tuple(output_size)
        if after != (1, 1) and before != after:
            self.refuse(f"it neither keeps {before[0]} x {before[1]} pixels nor takes their mean", "use AvgPool2d")
        return source if before == after else self.global_pool(source)

    def op_cat(self, tensors, dim=0) -> Value:
        values = [each for each in tensors if isinstance(each, Value) or each.numel()]
        return values[0] if len(values) == 1 else self.refuse()  # beside nothing, in a cache of keys that is empty

    def op_mean(self, input, dim=None, **_) -> Value:
        if not isinstance(dim, Sequence) or len(input.shape) != 4 or {d % 4 for d in dim} != {2, 3}:
            self.refuse(remedy="use LayerNorm" if self.tokens else "")
        return self.global_pool(self.maps(input))

    def global_pool(self, source: Value) -> Value:
        pooled = self.add(layers.GlobalAvgPool, self.named("pool"), [source], self.shapes[source.source][:1])
        return Value(pooled.source, _shape_of(self.node))

    def op_dropout(self, input, p, train) -> Value:
        return self.alike(layers.Dropout, self.ready(input), rate=p) if train and p else input

    def op_linear(self, input, weight, bias) -> Value:
        if not isinstance(weight, Value) or not weight.is_parameter or len(weight.shape) != 2:
            self.refuse("a weight is computed", "use parameters as they are")
        features = weight.shape[0]
        if self.tokens and weight.source in self.embeddings:
            if not torch.equal(weight.at, self.weights[f"{self.embeddings[weight.source]}.weight"].at):
                self.refuse("its weights are other elements of the embedding's", "let both have the whole parameter")
            name, further = self.named("head"), {"embedding": self.embeddings[weight.source], "bias": bias is not None}
            self.weights |= {f"{name}.bias": bias} if bias is not None else {}
            return self.of_rows(layers.TiedHead, name, input, features, **further)
        name = self.parameters("linear", weight, bias)
        fields = {"out_features": features, "bias": bias is not None}
        if self.tokens:
            return self.of_rows(layers.Linear, name, input, features, **fields)
        source = self.ready(input)
        if source.positions is not None or source.shape != (self.num_samples, math.prod(self.shapes[source.source])):
            self.refuse("it does not read all features of a sample", "flatten maps before it")
        return self.add(layers.Linear, name, [source], (features,), **fields)

    def op_addmm(self, input, mat1, mat2, beta, alpha) -> Value:
        if (beta, alpha) != (1, 1) or not isinstance(mat2, Value):
            self.refuse("it is no linear layer", OTHERWISE)
        return self.op_linear(mat1, mat2.moved(mat2.at.T), input)

    def op_embedding(self, weight, indices, padding_idx=-1, scale_grad_by_freq=False, **_) -> Value:
        if padding_idx >= 0 or scale_grad_by_freq:
            self.refuse(
                "gradients of its rows are not those of all their tokens",
                "set padding_idx=None (pad_token_id=None) and scale_grad_by_freq=False",
            )
        if isinstance(indices, torch.Tensor):
            return weight.moved(functional.embedding(indices, weight.at))
        if indices.numbers is not None or indices.source != "input" or indices.positions is not None:
            self.refuse("it does not read the tokens as they are", "let it read the samples")
        if not isinstance(weight, Value) or not weight.is_parameter:
            self.refuse("a weight is computed, or a constant", "use parameters as they are")
        name, self.vocabulary = self.parameters("embedding", weight), weight.shape[0]
        self.embeddings[weight.source] = name
        return self.add(layers.Embedding, name, [indices], self.shape(), features=weight.shape[1])

    def op_layer_norm(self, input, normalized_shape, weight, bias, eps, **_) -> Value:
        if weight is None or bias is None or tuple(normalized_shape) != _shape_of(self.node)[-1:]:
            self.refuse("weights are left out, or it is over more than features", "use LayerNorm(features)")
        return self.of_rows(layers.LayerNorm, self.parameters("norm", weight, bias), input, weight.shape[0], eps=eps)

    def op_scaled_dot_product_attention(
        self, query, key, value, attn_mask, dropout_p, is_causal, scale=None, enable_gqa=False
    ) -> Value:
        parts = [self.ready(part) for part in (query, key, value)]
        if dropout_p:
            self.refuse("attention has dropout", "set that to 0 (attn_pdrop, attention_probs_dropout_prob)")
        if any(p.shape != parts[0].shape for p in parts) or len(parts[0].shape) != 4 or enable_gqa:
            self.refuse("queries, keys and values differ in shape, or have no axis of heads", "give each head its own")
        _, heads, length, width = parts[0].shape
        if scale is not None and not math.isclose(scale, width**-0.5):
            self.refuse(f"products are scaled by {scale:g}", f"scale by 1 / sqrt({width})")
        features, joint = heads * width, len({part.source for part in parts}) == 1
        row = 3 * features if joint else features
        place = torch.arange(self.num_samples * length * row).view(self.num_samples, length, row)
        for number, part in enumerate(parts):
            own = place[..., features * number * joint :][..., :features].unflatten(-1, (heads, width)).transpose(1, 2)
            if self.shapes[part.source] != (length, row) or not torch.equal(part.at, own):
                self.refuse(
                    "queries, keys and values do not stand side by side by heads",
                    "compute them by three linear layers, or by one in this order",
                )
        causal = is_causal if attn_mask is None else self.is_causal(attn_mask, length)
        sources, shape = parts[:1] if joint else parts, (length, features)
        made = self.add(layers.Attention, self.named("attention"), sources, shape, heads=heads, causal=causal)
        return made.moved(made.at.unflatten(-1, (heads, width)).transpose(1, 2))

    def is_causal(self, mask: Any, length: int) -> bool:
        """Return whether a mask lets tokens see themselves and those before them only; or else all."""
        if isinstance(mask, torch.Tensor):
            seen = mask if mask.dtype == torch.bool else mask == 0
            plain = mask.dtype == torch.bool or bool((seen | (mask <= MASKED)).all())
            for causal in (False, True):
                expected = torch.ones(length, length, dtype=torch.bool)
                if plain and bool((seen == (expected.tril() if causal else expected)).all()):
                    return causal
        self.refuse("its mask is neither causal nor empty", "let tokens see all others, or those before them")

    def op_log_softmax(self, input, dim, **_) -> Value:
        if any(user.op != "output" for user in self.node.users) or dim % len(input.shape) != len(input.shape) - 1:
            self.refuse("it is not the last operation", "return logits; the loss takes their softmax")
        return self.ready(input)

    def op_to(self, input, **_) -> Value:
        if self.node.meta["val"].dtype != self.node.all_input_nodes[0].meta["val"].dtype:
            self.refuse("the type of numbers changes", "leave the conversion out")
        return input

    def shape(self) -> Shape:
        """Return the shape of a sample of what the present operation gives."""
        return _shape_of(self.node)[1:]


def _shape_of(node: fx.Node) -> Shape:
    return tuple(node.meta["val"].shape)


def _own(name: str) -> str:
    """Return a name or path in a module from that in its `Logits`."""
    return name.removeprefix("module").removeprefix(".")


def _operation(target: Any) -> str:
    """Return the name of an operation; of one in place that of the other form."""
    return str(getattr(getattr(target, "overloadpacket", target), "__name__", target)).rstrip("_")
