"""MobileBERT against PyTorch: logits, loss and every gradient."""

import numpy as np
import pytest
from cython_src.lowering.pytorch_steps import compare_with_pytorch
from cython_src.tokens_for_tests import SMALL_MOBILEBERT, fill
from hypothesis import given, settings
from hypothesis import strategies as st
from kinds import LONG

from forktask.cython_src.lowering.lower import initialise
from forktask.cython_src.networks import mobilebert
from forktask.cython_src.networks.layers import Attention
from forktask.cython_src.networks.registry import get_network
from forktask.experiments.sampling.subject import fill_dataset

pytestmark = pytest.mark.torch


def torch_step(network, parameters, tokens, targets, dtype):
    """Logits, loss and gradients by name, as float64 arrays, with PyTorch's functions in their usual order."""
    import torch
    from torch.nn import functional

    w = {name: torch.tensor(np.asarray(value), dtype=dtype, requires_grad=True) for name, value in parameters.items()}
    heads = next(layer.heads for layer in network.layers if isinstance(layer, Attention))
    numbers = torch.tensor(np.asarray(tokens), dtype=torch.int64)

    def linear(x, name):
        return functional.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])

    def no_norm(x, name):
        return x * w[f"{name}.LayerNorm.weight"] + w[f"{name}.LayerNorm.bias"]

    e = functional.embedding(numbers, w["embeddings.word_embeddings.weight"])
    e = torch.cat([functional.pad(e[:, 1:], (0, 0, 0, 1)), e, functional.pad(e[:, :-1], (0, 0, 1, 0))], dim=2)
    x = linear(e, "embeddings.embedding_transformation")
    x = x + w["embeddings.position_embeddings.weight"][: numbers.shape[1]]
    x = no_norm(x + w["embeddings.token_type_embeddings.weight"][0], "embeddings")
    number = 0
    while f"encoder.layer.{number}.output.dense.weight" in w:
        name = f"encoder.layer.{number}"
        own = no_norm(linear(x, f"{name}.bottleneck.input.dense"), f"{name}.bottleneck.input")
        shared = no_norm(linear(x, f"{name}.bottleneck.attention.dense"), f"{name}.bottleneck.attention")
        parts = [linear(y, f"{name}.attention.self.{kind}") for y, kind in
                 ((shared, "query"), (shared, "key"), (x, "value"))]  # fmt: skip
        q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in parts)
        y = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        y = no_norm(linear(y, f"{name}.attention.output.dense") + own, f"{name}.attention.output")
        inner = 0
        while f"{name}.ffn.{inner}.output.dense.weight" in w:
            part = f"{name}.ffn.{inner}"
            z = functional.relu(linear(y, f"{part}.intermediate.dense"))
            y = no_norm(linear(z, f"{part}.output.dense") + y, f"{part}.output")
            inner += 1
        z = functional.relu(linear(y, f"{name}.intermediate.dense"))
        y = no_norm(linear(z, f"{name}.output.dense") + y, f"{name}.output")
        x = no_norm(linear(y, f"{name}.output.bottleneck.dense") + x, f"{name}.output.bottleneck")
        number += 1
    if "classifier.weight" in w:
        logits = linear(x[:, :1], "classifier")
    else:
        head = "cls.predictions"
        x = functional.relu(linear(x, f"{head}.transform.dense"))
        norm = f"{head}.transform.LayerNorm"
        x = functional.layer_norm(x, x.shape[-1:], w[f"{norm}.weight"], w[f"{norm}.bias"], eps=1e-12)
        weights = w["embeddings.word_embeddings.weight"]
        if f"{head}.dense.weight" in w:
            weights = torch.cat([weights, w[f"{head}.dense.weight"]], dim=1)
        logits = functional.linear(x, weights, w[f"{head}.bias"])
    labels = torch.tensor(np.asarray(targets), dtype=torch.int64).flatten()
    loss = functional.cross_entropy(logits.flatten(0, 1), labels)
    loss.backward()
    found = {"logits": logits, "loss": loss, **{name: value.grad for name, value in w.items()}}
    return {name: value.detach().double().numpy() for name, value in found.items()}


@settings(max_examples=40 if LONG else 8, deadline=None)
@given(
    layers=st.integers(1, 2),
    heads=st.integers(1, 3),
    head=st.integers(2, 20),
    embedding=st.integers(2, 30),
    feed_forwards=st.integers(1, 3),
    classes=st.sampled_from([0, 0, 2, 5]),
    batch=st.integers(1, 4),
    sequence=st.integers(2, 12),
    granularity=st.sampled_from(["auto", "images=1,rows=8,heads=1,channels=16"]),
    fusion=st.sampled_from(["all", "none", "norm,activation"]),
)
def test_small_networks_of_any_shape(
    layers, heads, head, embedding, feed_forwards, classes, batch, sequence, granularity, fusion
):
    """Check logits, loss and gradients of networks of random shapes, masked language models and classifiers."""
    sizes = {
        **SMALL_MOBILEBERT,
        "num_layers": layers,
        "heads": heads,
        "bottleneck": heads * head,
        "embedding": embedding,
        "features": max(24, embedding),
        "feed_forwards": feed_forwards,
    }
    network = mobilebert.network("any", **sizes, classes=classes)
    options = {"batch": batch, "sequence": sequence, "granularity": granularity, "fusion": fusion}
    compare_with_pytorch(torch_step, network, fill, **options)


@pytest.mark.parametrize("name", ["mobilebert_tiny", *["mobilebert", "mobilebert_classifier"] * LONG])
def test_shipped_networks_at_their_own_size(name):
    """Check the shipped networks at their initial weights, the public model's in long forms. Eight
    roundings of the largest value are granted: of the tiny network's few sums PyTorch hits one nearly exactly."""

    def prepare(bound):
        fill_dataset(bound, 1)
        initialise(bound, 2)

    compare_with_pytorch(torch_step, get_network(name), prepare, relative=0.0, roundings=8, batch=2, sequence=64)
