"""MobileBERT: Sun et al., MobileBERT: a Compact Task-Agnostic BERT for Resource-Limited Devices (ACL 2020).

trigrams of token embeddings, linear; + positions + type; NoNorm
layers x   bottlenecks of x: b for the layer's own residuals, s for queries and keys; values of x itself
           a = NoNorm(projection(attention) + b);  stacked feed-forwards: a = NoNorm(linear(ReLU(linear(a))) + a)
           x = NoNorm(linear(a) + x)
head       "masked": linear, ReLU, layer norm, product with the embedding's weights and further rows, bias
           "class": the first token's features, linear

Names of parameters are those of Hugging Face's MobileBERT without its prefix "mobilebert."; the head's further weights,
"cls.predictions.dense.weight", are (vocabulary, features), transposed there.
"""

from __future__ import annotations

from typing import Any

from .layers import (
    SEQUENCE,
    Add,
    Attention,
    Embedding,
    FirstToken,
    Layer,
    LayerNorm,
    Linear,
    Network,
    NoNorm,
    Positions,
    ReLU,
    Softmax,
    TiedHead,
    Tokens,
    Trigram,
)

_PUBLIC = {
    "num_layers": 24,
    "features": 512,
    "bottleneck": 128,
    "embedding": 128,
    "heads": 4,
    "feed_forwards": 4,
    "intermediate": 512,
    "vocabulary": 30522,
    "positions": 512,
    "mask": 103,
}
# Bytes are the tokens of the small one, and one token more is the mask.
_TINY = {
    "num_layers": 2,
    "features": 64,
    "bottleneck": 32,
    "embedding": 16,
    "heads": 2,
    "feed_forwards": 2,
    "intermediate": 64,
    "vocabulary": 257,
    "positions": 256,
    "mask": 256,
}
# Name -> arguments of `network`; with `classes` the head is a classifier's.
SIZES: dict[str, dict[str, Any]] = {
    "mobilebert": _PUBLIC,
    "mobilebert_classifier": {**_PUBLIC, "classes": 2},
    "mobilebert_tiny": _TINY,
    "mobilebert_tiny_classifier": {**_TINY, "classes": 2},
}


def network(
    name: str,
    num_layers: int,
    features: int,
    bottleneck: int,
    embedding: int,
    heads: int,
    feed_forwards: int,
    intermediate: int,
    vocabulary: int,
    positions: int,
    mask: int,
    classes: int = 0,
) -> Network:
    """The network of any size; `feed_forwards`: of a layer; `classes`: of a classifier, 0: a masked language model."""
    layers: list[Layer] = [
        Embedding("embeddings.word_embeddings", embedding),
        Trigram("embeddings.trigram"),
        Linear("embeddings.embedding_transformation", features),
        Positions("embeddings.position_embeddings", types="embeddings.token_type_embeddings"),
        NoNorm("embeddings.LayerNorm"),
    ]
    for number in range(num_layers):
        layers += _layer(
            f"encoder.layer.{number}", layers[-1].name, features, bottleneck, heads, feed_forwards, intermediate
        )
    if classes:
        layers += [FirstToken("pooler"), Linear("classifier", classes)]
    else:
        layers += [
            Linear("cls.predictions.transform.dense", features),
            ReLU("cls.predictions.transform.act"),
            LayerNorm("cls.predictions.transform.LayerNorm", eps=1e-12),
            TiedHead("cls.predictions", "embeddings.word_embeddings", bias=True),
        ]
    answers = {"answers": "class"} if classes else {"answers": "masked", "mask": mask}
    return Network(name, (min(SEQUENCE, positions),), (*layers, Softmax()), Tokens(vocabulary, positions, **answers))


def _layer(
    name: str, source: str, features: int, bottleneck: int, heads: int, feed_forwards: int, intermediate: int
) -> list[Layer]:
    attention, shared, own = f"{name}.attention", f"{name}.bottleneck.attention", f"{name}.bottleneck.input"
    parts = tuple(f"{attention}.self.{kind}" for kind in ("query", "key", "value"))
    layers: list[Layer] = [
        Linear(f"{own}.dense", bottleneck, after=source),
        NoNorm(f"{own}.LayerNorm"),
        Linear(f"{shared}.dense", bottleneck, after=source),
        NoNorm(f"{shared}.LayerNorm"),
        *(Linear(part, bottleneck, after=f"{shared}.LayerNorm") for part in parts[:2]),
        Linear(parts[2], bottleneck, after=source),
        Attention(f"{attention}.self", heads, causal=False, inputs=parts),
        *_output(f"{attention}.output", bottleneck, f"{own}.LayerNorm"),
    ]
    for number in range(feed_forwards):
        inner = f"{name}.ffn.{number}" if number < feed_forwards - 1 else name
        before = layers[-1].name
        layers += [
            Linear(f"{inner}.intermediate.dense", intermediate),
            ReLU(f"{inner}.intermediate.act"),
            *_output(f"{inner}.output", bottleneck, before),
        ]
    return layers + _output(f"{name}.output.bottleneck", features, source)


def _output(name: str, features: int, residual: str) -> list[Layer]:
    """Linear layer, sum and NoNorm."""
    return [
        Linear(f"{name}.dense", features),
        Add(f"{name}.sum", (f"{name}.dense", residual)),
        NoNorm(f"{name}.LayerNorm"),
    ]
