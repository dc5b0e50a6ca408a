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

from .layers import (
    GELU,
    SEQUENCE,
    Add,
    Attention,
    Embedding,
    Layer,
    LayerNorm,
    Linear,
    Network,
    Softmax,
    TiedHead,
    Tokens,
)

# Name -> arguments of `network`. The small ones take bytes as tokens.
SIZES: dict[str, dict[str, Any]] = {
    "gpt2": {"num_layers": 12, "features": 768, "heads": 12, "vocabulary": 50257, "positions": 1024},
    "gpt2_small": {"num_layers": 6, "features": 384, "heads": 6, "vocabulary": 256, "positions": 256},
    "gpt2_tiny": {"num_layers": 2, "features": 64, "heads": 2, "vocabulary": 256, "positions": 256},
}


def network(name: str, num_layers: int, features: int, heads: int, vocabulary: int, positions: int) -> Network:
    """The network of any depth, width, number of heads, vocabulary and longest sequence."""
    layers: list[Layer] = [Embedding("wte", features, positions="wpe")]
    for number in range(num_layers):
        layers += _block(f"h.{number}", layers[-1].name, features, heads, 0.02 / math.sqrt(2 * num_layers))
    layers += [LayerNorm("ln_f"), TiedHead("lm_head", "wte"), Softmax()]
    return Network(name, (min(SEQUENCE, positions),), tuple(layers), Tokens(vocabulary, positions))


def sizes_of(network_of_tokens: Network) -> dict[str, int] | None:
    """Return the arguments of `network` that make this one; None: it is no GPT-2."""
    layers, tokens = network_of_tokens.layers, network_of_tokens.tokens
    heads = {layer.heads for layer in layers if isinstance(layer, Attention)}
    if tokens is None or not isinstance(layers[0], Embedding) or len(heads) != 1:
        return None
    sizes = {
        "num_layers": max(sum(isinstance(layer, LayerNorm) for layer in layers) // 2, 1),
        "features": layers[0].features,
        "heads": heads.pop(),
        "vocabulary": tokens.vocabulary,
        "positions": tokens.positions,
    }
    return sizes if layers == network(network_of_tokens.name, **sizes).layers else None


def _block(name: str, source: str, features: int, heads: int, deviation: float) -> list[Layer]:
    """One layer of the table; `deviation`: of the initial weights of both projections onto the residual."""
    return [
        LayerNorm(f"{name}.ln_1", after=source),
        Linear(f"{name}.attn.c_attn", 3 * features),
        Attention(f"{name}.attn", heads),
        Linear(f"{name}.attn.c_proj", features, deviation=deviation),
        Add(f"{name}.attn.sum", (f"{name}.attn.c_proj", source)),
        LayerNorm(f"{name}.ln_2"),
        Linear(f"{name}.mlp.c_fc", 4 * features),
        GELU(f"{name}.mlp.act"),
        Linear(f"{name}.mlp.c_proj", features, deviation=deviation),
        Add(f"{name}.mlp.sum", (f"{name}.mlp.c_proj", f"{name}.attn.sum")),
    ]
