"""Whole networks against PyTorch itself."""

import os

import numpy as np
import pytest
from forktask.cython_src.lowering import initialise, lower
from forktask.cython_src.network import FAMILIES, ReLU, ReLU6, get_network
from forktask.cython_src.program import bind
from forktask.experiments.measure import fill_dataset
from forktask.experiments.models import make_executor
from networks_for_tests import SMALL

pytestmark = pytest.mark.torch
STEPS = 3
FACTOR = 8  # our error over PyTorch's own, at most, where that is not below
RELATIVE = 1e-6  # of a number's norm


def same_signs(module, relus):
    """Let a PyTorch network's activations pass what it is told to pass: `passes` and `value`, by layer."""
    from torch import nn

    class Told(nn.Module):
        def forward(self, x):
            return x * self.passes + self.value

    for name in relus:
        module.modules_by_name[name] = Told()


def tell(module, activations):
    """Set what passes from the activations that another program found."""
    import torch

    for name, (y, limit) in activations.items():
        told = module.modules_by_name[name]
        y = torch.tensor(np.asarray(y))
        told.passes = ((y > 0) & (y < limit)).double()
        told.value = limit * (y >= limit).double() if np.isfinite(limit) else 0.0


def compare(network, batch, factor=FACTOR, relative=RELATIVE, **options):
    """Losses, gradients, parameters and statistics of three steps against PyTorch in float64, step by step.

    Rounding grows from layer to layer and step to step, so PyTorch's own error in float32 is the measure: ours may be
    `factor` times as large. One thing is taken out: an activation whose argument is zero within rounding passes the
    gradient in one program and stops it in another, which alone can change a gradient by a hundredth. So the truth is
    PyTorch in float64 told which elements pass: for our error those that passed in our run, for PyTorch's those in its.
    """
    torch = pytest.importorskip("torch")
    from forktask.experiments.torch_worker import TorchExecutor

    plan = lower(network, batch, num_images=2 * batch, num_batches=2, **options)
    bound = bind(plan)
    fill_dataset(bound, 1)
    bound.arrays["dataset.labels"][...] %= plan.attributes["num_classes"]
    initialise(bound, 2)
    spec = get_network(network) if isinstance(network, str) else network
    limits = {r.name: 6.0 if isinstance(r, ReLU6) else np.inf for r in spec.layers if isinstance(r, ReLU | ReLU6)}
    single, truth, truth_of_single = (TorchExecutor(bound, "eager", network=spec) for _ in range(3))
    for peer in (truth, truth_of_single):
        same_signs(peer.module.double(), limits)
        peer.images = peer.images.double()
    seen = {}
    for name in limits:
        single.module.modules_by_name[name].register_forward_hook(
            lambda module, inputs, output, name=name: seen.update({name: output.detach().clone()})
        )
    worst = 0.0

    def check(actual, other, expected, expected_of_other, name):
        nonlocal worst
        error, allowed = (
            np.linalg.norm(np.asarray(a, np.float64) - e) for a, e in ((actual, expected), (other, expected_of_other))
        )
        allowed += relative * np.linalg.norm(expected) + 1e-9
        worst = max(worst, error / allowed)
        assert error <= factor * allowed, (name, error / allowed, allowed, np.linalg.norm(expected))

    peers = (single, truth, truth_of_single)
    with make_executor("serial", 1) as executor:
        executor.prepare(bound)
        for step in range(STEPS):
            executor.run(1, first_iteration=step)
            single.run(1, step)
            tell(truth.module, {name: (bound.view(name), limit) for name, limit in limits.items()})
            tell(truth_of_single.module, {name: (seen[name], limit) for name, limit in limits.items()})
            truth.run(1, step)
            truth_of_single.run(1, step)
            check(bound.arrays["losses"][step], *(float(peer.losses[step]) for peer in peers), "losses")
            states = [peer.module.state_dict() for peer in peers]
            for name, buffer in plan.buffers.items():
                if buffer.role == "statistic" or name in plan.attributes["parameters"]:
                    check(bound.arrays[name], *(state[name].numpy() for state in states), (step, name))
            if not options.get("clip_norm"):  # PyTorch clips the gradient in its place, we where it is used
                gradients = [{n: p.grad.numpy() for n, p in peer.module.named_parameters()} for peer in peers]
                for name in gradients[0]:
                    check(bound.view(f"{name}.grad"), *(g[name] for g in gradients), (step, f"{name}.grad"))
    assert torch.get_default_dtype() == torch.float32
    return worst


@pytest.mark.parametrize("conv", ["direct", "auto"])
@pytest.mark.parametrize("name", FAMILIES)
def test_full_networks_equal_pytorch(name, conv):
    """Check three training steps of each network's CIFAR-10 form."""
    compare(name, 4, conv=conv)


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("FORKTASK_LONG_TESTS"), reason="minutes; `make test-peers` runs it")
@pytest.mark.parametrize("name", [*(f"{family}{form}" for form in ("_64", "_224") for family in FAMILIES), "starpu_cnn"])
def test_networks_for_large_images_equal_pytorch(name):
    """Check three training steps of the forms with the ImageNet stem, and of the network for images of 270 x 360."""
    compare(name, 2)


@pytest.mark.parametrize("name", SMALL)
def test_small_networks_equal_pytorch(name):
    """Check the same, layers of every kind, other optimisers, smoothed labels and clipping. Norms over few pixels
    enlarge rounding, by chance more in one program than in the other."""
    compare(SMALL[name], 6, 2 * FACTOR, label_smoothing=0.1, optimizer="adamw")
    compare(SMALL[name], 6, 2 * FACTOR, clip_norm=0.5)


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
