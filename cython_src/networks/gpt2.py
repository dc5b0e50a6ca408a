"""GPT-2: Radford et al., Language Models are Unsupervised Multitask Learners, 2019.

token embedding + position embedding
layers x   x + projection(attention(norm(x)));  x + projection(GELU(linear(norm(x)))), 4 x as wide between
norm, head with the weights of the token embedding

Names of parameters are those of Hugging Face's GPT-2, except that weights of linear layers have PyTorch's shape (out,
in): Hugging Face's are (in, out).
"""

from __future__ import annotations

import math
from typing import Any

from . import layers as nn

# Name -> arguments of `network`. The small ones take bytes as tokens.
SIZES: dict[str, dict[str, Any]] = {
    "gpt2": {"num_layers": 12, "features": 768, "heads": 12, "vocabulary": 50257, "positions": 1024},
    "gpt2_small": {"num_layers": 6, "features": 384, "heads": 6, "vocabulary": 256, "positions": 256},
    "gpt2_tiny": {"num_layers": 2, "features": 64, "heads": 2, "vocabulary": 256, "positions": 256},
}


def network(name: str, num_layers: int, features: int, heads: int, vocabulary: int, positions: int) -> nn.Network:
    """The network of any depth, width, number of heads, vocabulary and longest sequence."""
    layers: list[nn.Layer] = [nn.Embedding("wte", features, positions="wpe")]
    for number in range(num_layers):
        layers += _block(f"h.{number}", layers[-1].name, features, heads, 0.02 / math.sqrt(2 * num_layers))
    layers += [nn.LayerNorm("ln_f"), nn.TiedHead("lm_head", "wte"), nn.SoftmaxCrossEntropy()]
    return nn.Network(name, (min(nn.SEQUENCE, positions),), tuple(layers), nn.Tokens(vocabulary, positions))


def sizes_of(network_of_tokens: nn.Network) -> dict[str, int] | None:
    """Return the arguments of `network` that make this one; None: it is no GPT-2."""
    layers, tokens = network_of_tokens.layers, network_of_tokens.tokens
    heads = {layer.heads for layer in layers if isinstance(layer, nn.Attention)}
    if tokens is None or not isinstance(layers[0], nn.Embedding) or len(heads) != 1:
        return None
    sizes = {
        "num_layers": max(sum(isinstance(layer, nn.LayerNorm) for layer in layers) // 2, 1),
        "features": layers[0].features,
        "heads": heads.pop(),
        "vocabulary": tokens.vocabulary,
        "positions": tokens.positions,
    }
    return sizes if layers == network(network_of_tokens.name, **sizes).layers else None


def _block(name: str, source: str, features: int, heads: int, deviation: float) -> list[nn.Layer]:
    """One layer of the table; `deviation`: of the initial weights of both projections onto the residual."""
    return [
        nn.LayerNorm(f"{name}.ln_1", after=source),
        nn.Linear(f"{name}.attn.c_attn", 3 * features),
        nn.Attention(f"{name}.attn", heads),
        nn.Linear(f"{name}.attn.c_proj", features, deviation=deviation),
        nn.Add(f"{name}.attn.sum", (f"{name}.attn.c_proj", source)),
        nn.LayerNorm(f"{name}.ln_2"),
        nn.Linear(f"{name}.mlp.c_fc", 4 * features),
        nn.GELU(f"{name}.mlp.act"),
        nn.Linear(f"{name}.mlp.c_proj", features, deviation=deviation),
        nn.Add(f"{name}.mlp.sum", (f"{name}.mlp.c_proj", f"{name}.attn.sum")),
    ]
