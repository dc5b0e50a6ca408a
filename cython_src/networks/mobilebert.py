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

from . import layers as nn

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
) -> nn.Network:
    """The network of any size; `feed_forwards`: of a layer; `classes`: of a classifier, 0: a masked language model."""
    layers: list[nn.Layer] = [
        nn.Embedding("embeddings.word_embeddings", embedding),
        nn.Trigram("embeddings.trigram"),
        nn.Linear("embeddings.embedding_transformation", features),
        nn.Positions("embeddings.position_embeddings", types="embeddings.token_type_embeddings"),
        nn.NoNorm("embeddings.LayerNorm"),
    ]
    for number in range(num_layers):
        layers += _layer(
            f"encoder.layer.{number}", layers[-1].name, features, bottleneck, heads, feed_forwards, intermediate
        )
    if classes:
        layers += [nn.FirstToken("pooler"), nn.Linear("classifier", classes)]
    else:
        layers += [
            nn.Linear("cls.predictions.transform.dense", features),
            nn.ReLU("cls.predictions.transform.act"),
            nn.LayerNorm("cls.predictions.transform.LayerNorm", eps=1e-12),
            nn.TiedHead("cls.predictions", "embeddings.word_embeddings", bias=True),
        ]
    answers = {"answers": "class"} if classes else {"answers": "masked", "mask": mask}
    tokens = nn.Tokens(vocabulary, positions, **answers)
    return nn.Network(name, (min(nn.SEQUENCE, positions),), (*layers, nn.SoftmaxCrossEntropy()), tokens)


def _layer(
    name: str, source: str, features: int, bottleneck: int, heads: int, feed_forwards: int, intermediate: int
) -> list[nn.Layer]:
    attention, shared, own = f"{name}.attention", f"{name}.bottleneck.attention", f"{name}.bottleneck.input"
    parts = tuple(f"{attention}.self.{kind}" for kind in ("query", "key", "value"))
    layers: list[nn.Layer] = [
        nn.Linear(f"{own}.dense", bottleneck, after=source),
        nn.NoNorm(f"{own}.LayerNorm"),
        nn.Linear(f"{shared}.dense", bottleneck, after=source),
        nn.NoNorm(f"{shared}.LayerNorm"),
        *(nn.Linear(part, bottleneck, after=f"{shared}.LayerNorm") for part in parts[:2]),
        nn.Linear(parts[2], bottleneck, after=source),
        nn.Attention(f"{attention}.self", heads, causal=False, inputs=parts),
        *_output(f"{attention}.output", bottleneck, f"{own}.LayerNorm"),
    ]
    for number in range(feed_forwards):
        inner = f"{name}.ffn.{number}" if number < feed_forwards - 1 else name
        before = layers[-1].name
        layers += [
            nn.Linear(f"{inner}.intermediate.dense", intermediate),
            nn.ReLU(f"{inner}.intermediate.act"),
            *_output(f"{inner}.output", bottleneck, before),
        ]
    return layers + _output(f"{name}.output.bottleneck", features, source)


def _output(name: str, features: int, residual: str) -> list[nn.Layer]:
    """Linear layer, sum and NoNorm."""
    return [
        nn.Linear(f"{name}.dense", features),
        nn.Add(f"{name}.sum", (f"{name}.dense", residual)),
        nn.NoNorm(f"{name}.LayerNorm"),
    ]
