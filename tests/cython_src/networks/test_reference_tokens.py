"""The float64 reference of networks of tokens: derivatives against finite differences; descriptions of the networks."""

import numpy as np
import pytest
from cython_src.tokens_for_tests import BOTH_WAYS, SMALL, TWICE_TIED

from cython_src import reference_tokens
from forktask.cython_src.errors import UsageError
from forktask.cython_src.networks import gpt2
from forktask.cython_src.networks.layers import (
    Attention,
    Conv2d,
    Embedding,
    LayerNorm,
    Linear,
    Network,
    TiedHead,
    Tokens,
)


def some_parameters(network, seed=0):
    """Random parameters that are far from zero."""
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=shape) * 0.4 + 0.1 for name, shape in network.parameter_shapes().items()}


def some_tokens(network, batch, length, seed=0):
    """Random samples with their targets."""
    numbers = np.random.default_rng(seed).integers(network.tokens.vocabulary, size=(batch, length + 1))
    return numbers[:, :-1], numbers[:, 1:]


@pytest.mark.parametrize("network", [SMALL, BOTH_WAYS, TWICE_TIED], ids=lambda network: network.name)
def test_gradients_are_those_of_finite_differences(network):
    """Check the derivative of the loss by every parameter along a random direction, and by single elements."""
    network, rng, step = network.with_sequence(5), np.random.default_rng(1), 1e-5
    parameters, data = some_parameters(network), some_tokens(network, 2, 5)
    gradients = reference_tokens.forward_backward(network, parameters, *data).gradients
    for name, value in parameters.items():
        single = np.zeros_like(value)
        single.flat[rng.integers(value.size)] = 1
        for direction in (single, rng.normal(size=value.shape)):
            losses = [
                reference_tokens.forward(network, {**parameters, name: value + sign * step * direction}, *data).loss
                for sign in (1, -1)
            ]
            slope = (losses[0] - losses[1]) / (2 * step)
            assert (gradients[name] * direction).sum() == pytest.approx(slope, rel=1e-5, abs=1e-9), name


@pytest.mark.parametrize(
    ("name", "parameters"), [("gpt2", 124_439_808), ("gpt2_small", 10_844_160), ("gpt2_tiny", 132_864)]
)
def test_networks_have_the_parameters_of_the_paper(name, parameters):
    """Check the number of parameters, names as Hugging Face has them, and the deviation of the initial weights."""
    network = gpt2.network(name, **gpt2.SIZES[name])
    shapes = network.parameter_shapes()
    assert network.num_parameters == parameters
    features = shapes["wte.weight"][1]
    assert shapes["h.1.attn.c_attn.weight"] == (3 * features, features)
    assert shapes["h.1.mlp.c_proj.weight"] == (features, 4 * features)
    assert {"wpe.weight", "h.0.ln_1.bias", "h.0.attn.c_proj.bias", "ln_f.weight"} <= set(shapes)
    deviations = network.deviations()
    assert set(deviations) == {name for name, shape in shapes.items() if len(shape) == 2}
    assert deviations["h.0.attn.c_proj.weight"] == pytest.approx(0.02 / np.sqrt(2 * gpt2.SIZES[name]["num_layers"]))
    assert deviations["wte.weight"] == deviations["h.0.attn.c_attn.weight"] == 0.02


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ((LayerNorm("a"),), "after a layer with tokens and features"),
        ((Embedding("a", 4), Embedding("b", 4)), "must read the input of a network of tokens"),
        ((Embedding("a", 4), Attention("b", 2)), "a multiple of 6 features; got 4"),
        ((Embedding("a", 4), Linear("b", 3), TiedHead("c", "a")), "the 3 features before it or fewer, got 'a' of 4"),
        ((Embedding("a", 4), TiedHead("c", "b")), "must name an Embedding, got 'b'"),
        (
            (Embedding("a", 4), Linear("b", 6), Attention("c", 2, inputs=("a", "a", "b"))),
            "inputs of 'c' must be queries, keys and values of one shape",
        ),
        ((Embedding("a", 4), Conv2d("b", 4)), "channels, height and width"),
    ],
)
def test_layers_of_tokens_that_do_not_fit_are_refused(layers, message):
    """Check that the sentence says which layer is wrong."""
    with pytest.raises(UsageError, match=message):
        list(Network("bad", (5,), layers, Tokens(10, 8)).shapes())
