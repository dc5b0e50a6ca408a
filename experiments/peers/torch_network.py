"""PyTorch's modules of forktask's networks, built layer by layer from their descriptions."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from ...cython_src.errors import UsageError
from ...cython_src.networks import layers
from ...cython_src.networks.layers import TYPES, Network


def torch_network(spec: Network, fused_attention: bool = True):
    """Return PyTorch's module for a network; parameters and statistics have the same names.

    A layer's ReLU works in place where nothing else reads its input, as in the modules that people write, and the
    backward pass does not either.

    `fused_attention`: attention through `scaled_dot_product_attention`; else as a product, a masked softmax and a
    product.
    """
    from torch import nn

    inputs = spec.inputs()
    readers = [name for names in inputs.values() for name in names]
    kinds = layers.ReLU, layers.ReLU6, layers.Sigmoid, layers.Attention
    kept = {layer.name for layer in spec.layers if isinstance(layer, kinds)}

    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            # output, whether its input is flattened, function in place of the module of that name, inputs, tensors
            # that no later layer reads
            self.steps = []
            for position, (layer, before, after) in enumerate(spec.shapes()):
                if isinstance(layer, layers.SoftmaxCrossEntropy):
                    continue  # The loss computes the softmax.
                source = inputs[layer.name][0]
                in_place = readers.count(source) == 1 and source not in kept
                module, function = _parts_of(self, spec, layer, before, after, in_place, fused_attention)
                later = {name for other in spec.layers[position + 1 :] for name in inputs[other.name]}
                flatten = isinstance(layer, layers.Linear) and len(before) == 3
                unread = [name for name in (*inputs[layer.name], layer.name) if name not in later]
                self.steps.append((layer.name, flatten, function, inputs[layer.name], unread))
                if module is not None:
                    _place(self, layer.name, module)
            self.modules_by_name = dict(self.named_modules())
            self.last = self.steps[-1][0]

        def forward(self, x):
            tensors = {"input": x}
            for name, flatten, function, sources, unread in self.steps:
                value = tensors[sources[0]]
                if function is not None:
                    value = function(*(tensors[source] for source in sources))
                elif len(sources) == 2:
                    value = value + tensors[sources[1]]
                else:
                    value = self.modules_by_name[name](value.flatten(1) if flatten else value)
                tensors[name] = value
                for dead in unread:
                    if dead != self.last:
                        tensors.pop(dead, None)
            return tensors[self.last]

    return Module()


def _parts_of(root, spec: Network, layer, before, after, in_place: bool, fused_attention: bool):
    """Return a layer's module and the function that runs in its place, None where there is no such thing. `root`: the
    network, which gets the layer's further modules; `before`, `after`: shapes of a sample, see `Network.shapes`;
    `in_place`: whether an activation may overwrite its input."""
    import torch
    from torch import nn

    module: nn.Module | None = None
    function: Callable | None = None
    match layer:
        case layers.ReLU():
            module = nn.ReLU(inplace=in_place)
        case layers.ReLU6():
            module = nn.ReLU6(inplace=in_place)
        case layers.Embedding():
            module = nn.Embedding(spec.token_input.vocabulary, layer.features)
            if layer.positions:
                places = nn.Embedding(spec.token_input.positions, layer.features)
                _place(root, layer.positions, places)
                function = partial(_embedded, module, places)
        case layers.Positions():
            module = nn.Embedding(spec.token_input.positions, before[-1])
            types = nn.Embedding(TYPES, before[-1]) if layer.types else None
            if types is not None:
                _place(root, layer.types, types)
            function = partial(_with_positions, module, types)
        case layers.Trigram():
            function = _trigrams
        case layers.FirstToken():
            function = _first_token
        case layers.NoNorm():
            module = _affine(before[-1])
        case layers.Attention():
            function = partial(attention, heads=layer.heads, causal=layer.causal, fused=fused_attention)
        case layers.GELU():
            function = partial(nn.functional.gelu, approximate="tanh")
        case layers.TiedHead():
            table, own = root.get_submodule(layer.embedding), None
            if further := before[-1] - table.embedding_dim:
                own = nn.Linear(further, after[-1], bias=False)
                _place(root, f"{layer.name}.dense", own)
            bias = nn.Parameter(torch.zeros(after[-1])) if layer.bias else None
            if bias is not None:
                _container(root, layer.name.split(".")).register_parameter("bias", bias)
            function = partial(_tied_product, table, own, bias)
        case layers.Add():
            pass
        case _ if module := layer.pytorch(nn, before):
            pass
        case _:
            raise UsageError(f"the PyTorch worker has no module for {layer!r}; add one")
    return module, function


def _place(root, name: str, module) -> None:
    """Register a module under a name with dots, making empty modules on the way."""
    *path, last = name.split(".")
    _container(root, path).add_module(last, module)


def _container(root, path: list[str]):
    """Return the module of a path, making empty modules on the way."""
    from torch import nn

    for part in path:
        if part not in root._modules:
            root.add_module(part, nn.Module())
        root = root._modules[part]
    return root


def attention(*parts, heads: int, causal: bool, fused: bool):
    """Attention within each sample; see `layers.Attention`. `causal`, `fused`: see `torch_network`."""
    import torch

    three = parts if len(parts) == 3 else parts[0].chunk(3, dim=-1)
    queries, keys, values = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in three)
    if fused:
        result = torch.nn.functional.scaled_dot_product_attention(queries, keys, values, is_causal=causal)
    else:
        scores = queries @ keys.transpose(-1, -2) / math.sqrt(queries.shape[-1])
        if causal:
            later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
            scores = scores.masked_fill(later, -math.inf)
        result = scores.softmax(dim=-1) @ values
    return result.transpose(1, 2).flatten(2)


def _embedded(table, places, tokens):
    """Rows of the table of tokens plus those of the table of positions."""
    return table(tokens) + places.weight[: tokens.shape[1]]


def _with_positions(places, types, x):
    """Features plus rows of the table of positions and, where there is a table of types, its first row."""
    x = x + places.weight[: x.shape[1]]
    return x if types is None else x + types.weight[0]


def _trigrams(x):
    """Features of the next token, the token and the one before it, zeros past the ends of a sample."""
    import torch
    from torch.nn.functional import pad

    padded = pad(x, (0, 0, 1, 1))
    return torch.cat([padded[:, 2:], x, padded[:, :-2]], dim=-1)


def _first_token(x):
    """Features of the first token of each sample."""
    return x[:, :1]


def _affine(features: int):
    """Module of a weight and a bias for each feature, in the place of a norm."""
    import torch
    from torch import nn

    class Affine(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.ones(features)), nn.Parameter(torch.zeros(features))

        def forward(self, x):
            return x * self.weight + self.bias

    return Affine()


def _tied_product(table, own, bias, x):
    """Logits: the product with the weights of an embedding, and with those of the head's own for further features."""
    width = table.embedding_dim
    y = x[..., :width] @ table.weight.T
    y = y if own is None else y + own(x[..., width:])
    return y if bias is None else y + bias
