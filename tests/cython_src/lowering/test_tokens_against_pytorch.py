"""GPT-2 against PyTorch: logits, loss and every gradient."""

import numpy as np
import pytest
from cython_src.lowering.pytorch_steps import compare_with_pytorch
from cython_src.tokens_for_tests import fill
from hypothesis import given, settings
from hypothesis import strategies as st
from kinds import LONG

from forktask.cython_src.lowering.lower import initialise
from forktask.cython_src.networks import gpt2
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
    x = functional.embedding(numbers, w["wte.weight"]) + w["wpe.weight"][: numbers.shape[1]]

    def norm(x, name):
        return functional.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"])

    def linear(x, name):
        return functional.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])

    for number in range(sum(isinstance(layer, Attention) for layer in network.layers)):
        h = f"h.{number}"
        parts = linear(norm(x, f"{h}.ln_1"), f"{h}.attn.c_attn").chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in parts)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + linear(y.transpose(1, 2).flatten(2), f"{h}.attn.c_proj")
        inner = functional.gelu(linear(norm(x, f"{h}.ln_2"), f"{h}.mlp.c_fc"), approximate="tanh")
        x = x + linear(inner, f"{h}.mlp.c_proj")
    logits = functional.linear(norm(x, "ln_f"), w["wte.weight"])
    loss = functional.cross_entropy(
        logits.flatten(0, 1), torch.tensor(np.asarray(targets), dtype=torch.int64).flatten()
    )
    loss.backward()
    found = {"logits": logits, "loss": loss, **{name: value.grad for name, value in w.items()}}
    return {name: value.detach().double().numpy() for name, value in found.items()}


@settings(max_examples=60 if LONG else 12, deadline=None)
@given(
    layers=st.integers(1, 3),
    heads=st.integers(1, 3),
    head=st.integers(2, 20),
    vocabulary=st.integers(2, 90),
    batch=st.integers(1, 4),
    sequence=st.integers(1, 33),
    granularity=st.sampled_from(["auto", "images=1,rows=8,heads=1,channels=16"]),
    fusion=st.sampled_from(["all", "none"]),
)
def test_small_networks_of_any_shape(layers, heads, head, vocabulary, batch, sequence, granularity, fusion):
    """Check logits, loss and gradients of networks of random shapes."""
    network = gpt2.network("any", layers, heads * head, heads, vocabulary, 33)
    options = {"batch": batch, "sequence": sequence, "granularity": granularity, "fusion": fusion}
    compare_with_pytorch(torch_step, network, fill, **options)


@pytest.mark.parametrize("name", ["gpt2_small", *["gpt2"] * LONG])
def test_shipped_networks_at_their_own_size(name):
    """Check the networks of 11 and, in long forms, 124 million parameters at their initial weights, without slack."""

    def prepare(bound):
        fill_dataset(bound, 1)
        initialise(bound, 2)

    compare_with_pytorch(torch_step, get_network(name), prepare, relative=0.0, batch=2, sequence=64)
