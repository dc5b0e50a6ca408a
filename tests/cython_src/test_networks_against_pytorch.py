"""Whole networks against PyTorch itself."""

import os

import numpy as np
import pytest
from forktask.cython_src.lowering import initialise, lower
from forktask.cython_src.network import FAMILIES, get_network
from forktask.cython_src.program import bind
from forktask.experiments.measure import fill_dataset
from forktask.experiments.models import make_executor
from networks_for_tests import SMALL

pytestmark = pytest.mark.torch
STEPS = 3


def compare(network, batch, factor=4, **options):
    """Losses, gradients, parameters and statistics of three steps against PyTorch in float64.

    Rounding grows from layer to layer and step to step, so PyTorch's own error in float32 is the measure: ours may be
    `factor` times as large. And where it moves a number across zero, a ReLU lets another gradient pass: that alone may
    change a gradient by some thousandths.
    """
    torch = pytest.importorskip("torch")
    from forktask.experiments.torch_worker import TorchExecutor

    plan = lower(network, batch, num_images=2 * batch, num_batches=2, **options)
    bound = bind(plan)
    fill_dataset(bound, 1)
    bound.arrays["dataset.labels"][...] %= plan.attributes["num_classes"]
    initialise(bound, 2)
    spec = network if not isinstance(network, str) else None
    single, double = (TorchExecutor(bound, "eager", network=spec) for _ in range(2))
    double.module.double()
    double.images = double.images.double()
    with make_executor("serial", 1) as executor:
        executor.prepare(bound)
        executor.run(STEPS)
    for peer in (single, double):
        peer.run(STEPS)

    def check(actual, other, truth, name, relative=1e-5):
        error, allowed = (np.linalg.norm(np.asarray(a, np.float64) - truth) for a in (actual, other))
        assert error <= factor * (allowed + relative / 4 * np.linalg.norm(truth)) + 1e-6, (
            name,
            error,
            allowed,
            np.linalg.norm(truth),
        )

    truth = [float(x) for x in double.losses]
    check(bound.arrays["losses"][:STEPS], [float(x) for x in single.losses], truth, "losses")
    states = [peer.module.state_dict() for peer in (single, double)]
    for name, buffer in plan.buffers.items():
        if buffer.role == "statistic" or name in plan.attributes["parameters"]:
            check(bound.arrays[name], *(state[name].numpy() for state in states), name, 5e-3)
    if not options.get("clip_norm"):  # PyTorch clips the gradient in its place, we where it is used
        gradients = [
            {n: p.grad.numpy() for n, p in peer.module.named_parameters()} for peer in (single, double)
        ]
        for name in gradients[0]:
            check(bound.view(f"{name}.grad"), gradients[0][name], gradients[1][name], name, 2e-2)
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize("conv", ["direct", "auto"])
@pytest.mark.parametrize("name", FAMILIES)
def test_full_networks_equal_pytorch(name, conv):
    """Check three training steps of each network's CIFAR-10 form. Winograd's form rounds more, as it says, and with
    four images norms divide by small deviations."""
    compare(name, 4, factor=4 if conv == "direct" else 40, conv=conv)


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("FORKTASK_LONG_TESTS"), reason="minutes; `make test-peers` runs it")
@pytest.mark.parametrize("name", [*(f"{family}{form}" for form in ("_64", "_224") for family in FAMILIES), "starpu_cnn"])
def test_networks_for_large_images_equal_pytorch(name):
    """Check three training steps of the forms with the ImageNet stem, and of the network for images of 270 x 360."""
    compare(name, 2)


@pytest.mark.parametrize("name", SMALL)
def test_small_networks_equal_pytorch(name):
    """Check the same, layers of every kind, other optimisers, smoothed labels and clipping."""
    compare(SMALL[name], 6, label_smoothing=0.1, optimizer="adamw")
    compare(SMALL[name], 6, clip_norm=0.5)


def test_parameter_names_are_pytorchs():
    """Check names and shapes of parameters and statistics against the modules' own."""
    pytest.importorskip("torch")
    from forktask.experiments.torch_worker import torch_network

    for name in FAMILIES:
        network = get_network(name)
        module = torch_network(network)
        assert {n: tuple(p.shape) for n, p in module.named_parameters()} == network.parameter_shapes()
        statistics = {
            n: tuple(b.shape) for n, b in module.named_buffers() if not n.endswith("num_batches_tracked")
        }
        assert statistics == network.statistic_shapes()
