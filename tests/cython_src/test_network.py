"""Descriptions of networks: shapes and sizes."""

import pytest
from forktask.cython_src.errors import UsageError
from forktask.cython_src.network import Add, Convolution, NetworkSpec, ReLU, get_network, network_names


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


@pytest.mark.parametrize("name", network_names())
def test_every_network_can_be_described(name):
    """Check that the layers of each network fit each other."""
    network = get_network(name)
    *_, (_, before, after) = network.shapes()
    assert before == after == (network.num_classes,)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ((ReLU("a"), ReLU("a")), "must differ"),
        ((ReLU("a", after="b"), ReLU("b")), "must come after"),
        ((Convolution("a", 4, 3, 0), Add("b", ("a", "input"))), "one shape"),
        ((Convolution("a", 4, 9, 0),), "must fit"),
        ((Convolution("a", 4, 3, 1, groups=2),), "must divide"),
    ],
)
def test_layers_that_do_not_fit_are_refused(layers, message):
    """Check that a network that cannot be computed says which layer is wrong."""
    with pytest.raises(UsageError, match=message):
        list(NetworkSpec("bad", (3, 8, 8), layers).shapes())


def test_unknown_network_is_refused():
    """Check that the message lists what there is."""
    with pytest.raises(UsageError, match="resnet18_224"):
        get_network("resnet50")
