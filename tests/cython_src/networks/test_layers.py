"""Descriptions of networks: shapes and sizes."""

import numpy as np
import pytest

import forktask as ft
from forktask.cython_src.errors import UsageError
from forktask.cython_src.lowering.lower import lower
from forktask.cython_src.networks import gpt2
from forktask.cython_src.networks.registry import FAMILIES, get_network


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        # The CIFAR-10 forms of a well-known collection of PyTorch modules; 224: torchvision's.
        ("resnet18", 11_173_962),
        ("preact_resnet18", 11_171_146),
        ("resnext29_2x64d", 9_128_778),
        ("mobilenet_v1", 3_217_226),
        ("mobilenet_v2", 2_296_922),
        ("resnet18_224", 11_689_512),
        ("mobilenet_v1_224", 4_231_976),
        ("mobilenet_v2_224", 3_504_872),
    ],
)
def test_networks_have_as_many_parameters_as_published(name, parameters):
    """Check the number of parameters, and that their names and shapes come in PyTorch's form."""
    network = get_network(name)
    assert network.num_parameters == parameters
    assert network.parameter_shapes()["conv1.weight"][1] == 3
    assert all(len(shape) == 1 for shape in network.statistic_shapes().values())


@pytest.mark.parametrize(
    ("name", "parameters"), [("gpt2", 124_439_808), ("gpt2_small", 10_844_160), ("gpt2_tiny", 132_864)]
)
def test_networks_of_tokens_have_the_parameters_of_the_paper(name, parameters):
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
        ((ft.ReLU("a"), ft.ReLU("a")), "must differ"),
        ((ft.ReLU("a", after="b"), ft.ReLU("b")), "must come after"),
        ((ft.Conv2d("a", 4, 3, 0), ft.Add("b", ("a", "input"))), "one shape"),
        ((ft.Conv2d("a", 4, 9, 0),), "must fit"),
        ((ft.Conv2d("a", 4, 3, 1, groups=2),), "must divide"),
        ((ft.MaxPool("a", 2, 1, 2),), "at most half"),
        ((ft.Linear("a", 4), ft.BatchNorm("b")), "channels, height and width"),
        ((ft.Linear("a", 4), ft.Linear("b", 4, after="input"), ft.SoftmaxCrossEntropy()), "must be read by another"),
        ((ft.LayerNorm("a"),), "after a layer with tokens and features"),
        ((ft.Embedding("a", 4), ft.Embedding("b", 4)), "must read the input of a network of tokens"),
        ((ft.Embedding("a", 4), ft.Attention("b", 2)), "a multiple of 6 features; got 4"),
        (
            (ft.Embedding("a", 4), ft.Linear("b", 3), ft.TiedHead("c", "a")),
            "the 3 features before it or fewer, got 'a' of 4",
        ),
        ((ft.Embedding("a", 4), ft.TiedHead("c", "b")), "must name an Embedding, got 'b'"),
        (
            (ft.Embedding("a", 4), ft.Linear("b", 6), ft.Attention("c", 2, inputs=("a", "a", "b"))),
            "inputs of 'c' must be queries, keys and values of one shape",
        ),
        ((ft.Embedding("a", 4), ft.Conv2d("b", 4)), "channels, height and width"),
    ],
)
def test_layers_that_do_not_fit_are_refused(layers, message):
    """Check that a network of images or of tokens that cannot be computed says which layer is wrong."""
    of_tokens = isinstance(layers[0], ft.Embedding | ft.LayerNorm)
    with pytest.raises(UsageError, match=message):
        list(
            ft.Network(
                "bad", (5,) if of_tokens else (3, 8, 8), layers, ft.Tokens(10, 8) if of_tokens else None
            ).shapes()
        )


def test_the_network_for_large_images_fits_a_small_memory():
    """Check the size of the network for images of 270 x 360: its FLOPs, and what a step of sixteen images takes."""
    network = get_network("starpu_cnn")
    plan = lower(network, batch=16, memory="shared")
    assert network.input_shape == (3, 270, 360)
    assert plan.flops / 16 == pytest.approx(1.5e9, rel=0.1)
    assert sum(plan.memory_bytes().values()) < 16 * 40e6


@pytest.mark.parametrize("mask", [-1, 16, 2**40])
def test_a_mask_is_a_token(mask):
    """Check that a network that learns masked places says which token stands there, and others need none."""
    layers = ft.Embedding("e", 8), ft.Linear("l", 16), ft.SoftmaxCrossEntropy()
    with pytest.raises(UsageError, match="mask of network 'n' must be one of its tokens, 0 to 15, got"):
        ft.Network("n", (8,), layers, ft.Tokens(16, 8, "masked", mask))
    ft.Network("n", (8,), layers, ft.Tokens(16, 8, "masked", 15))
    ft.Network("n", (8,), layers, ft.Tokens(16, 8))


@pytest.mark.parametrize(
    "layers, said",
    [
        (
            (ft.Embedding("e", 8, positions="p"), ft.Linear("p", 8, bias=False)),
            "two layers have a parameter 'p.weight'",
        ),
        ((ft.Embedding("e", 8, positions="e"),), "two layers have a parameter 'e.weight'"),
        ((ft.Embedding("e", 8), ft.Linear("h.dense", 12, bias=False)), "two layers have a parameter 'h.dense.weight'"),
        ((ft.Embedding("e", 8), ft.Linear("e.weight", 8)), "a layer is called like a parameter 'e.weight'"),
    ],
)
def test_names_of_parameters_and_buffers_differ(layers, said):
    """Check that two layers never share an array because of their names."""
    network = ft.Network("n", (8,), (*layers, ft.TiedHead("h", "e"), ft.SoftmaxCrossEntropy()), ft.Tokens(16, 8))
    with pytest.raises(UsageError, match=f"{said}.*; rename one"):
        lower(network, batch=2, sequence=8)


@pytest.mark.torch
def test_parameter_names_are_pytorchs():
    """Check names and shapes of parameters and statistics against the modules' own."""
    from forktask.experiments.peers.torch_network import torch_network

    for name in FAMILIES:
        network = get_network(name)
        module = torch_network(network)
        assert {n: tuple(p.shape) for n, p in module.named_parameters()} == network.parameter_shapes()
        statistics = {n: tuple(b.shape) for n, b in module.named_buffers() if not n.endswith("num_batches_tracked")}
        assert statistics == network.statistic_shapes()
