"""Whole networks against PyTorch itself."""

from functools import partial

import numpy as np
import pytest
from cython_src.networks_for_tests import SMALL
from kinds import LONG

from forktask.cython_src.binding.bind import bind
from forktask.cython_src.lowering.lower import initialise, lower
from forktask.cython_src.networks.layers import MaxPool, ReLU, ReLU6
from forktask.cython_src.networks.registry import FAMILIES, get_network
from forktask.experiments.subjects.models import make_executor
from forktask.experiments.subjects.subject import fill_dataset

pytestmark = pytest.mark.torch
STEPS = 3
FACTOR = 8  # our error over PyTorch's own, at most, where that is not below
RELATIVE = 1e-6  # of a number's norm
LARGE = [*(f"{family}{form}" for form in ("_64", "_224") for family in FAMILIES), "starpu_cnn"]


def follow(module, spec):
    """Let a PyTorch network's activations and largest elements be those that it is told: `passes` and `value`, or
    `where`, by layer."""
    from torch import nn

    class ToldActivation(nn.Module):
        def forward(self, x):
            return x * self.passes + self.value

    class ToldPool(nn.Module):
        def forward(self, x):
            return x.flatten(2).gather(2, self.where.flatten(2)).view(self.where.shape)

    for layer in spec.layers:
        if isinstance(layer, ReLU | ReLU6):
            module.modules_by_name[layer.name] = ToldActivation()
        elif isinstance(layer, MaxPool):
            module.modules_by_name[layer.name] = ToldPool()


def tell(module, spec, activations, places):
    """Tell what another program found: `activations(name)`, and `places(layer)` of largest elements, rows * width +
    columns."""
    import torch

    for layer in spec.layers:
        told = module.modules_by_name.get(layer.name)
        if isinstance(layer, ReLU | ReLU6):
            limit = 6.0 if isinstance(layer, ReLU6) else np.inf
            y = torch.tensor(np.asarray(activations(layer.name)))
            told.passes = ((y > 0) & (y < limit)).double()
            told.value = limit * (y >= limit).double() if limit < np.inf else 0.0
        elif isinstance(layer, MaxPool):
            told.where = torch.tensor(np.asarray(places(layer)), dtype=torch.int64)


def places_of(bound, layer, width):
    """Places of a pool's largest elements, from the index that its kernel leaves: the tap, row by row."""
    channels = bound.view(layer.name).shape[1]
    tap = bound.arrays[f"{layer.name}.index"][..., :channels].transpose(0, 3, 1, 2).astype(np.int64)
    stride = layer.stride or layer.size
    rows, columns = (stride * np.arange(n) - layer.padding for n in tap.shape[2:])
    return (rows[:, None] + tap // layer.size) * width + columns + tap % layer.size


def activations_of(bound, spec):
    """Name of an activation -> its result; where a depthwise convolution applies it with the norm before it, computed
    from what that norm reads."""
    inputs = spec.inputs()

    def result(name):
        if name in bound.plan.attributes["aliases"] or name in bound.arrays:
            return bound.view(name)
        norm = inputs[name][0]
        z = bound.view(inputs[norm][0])
        scale, shift = (bound.arrays[f"{norm}.{kind}"][: z.shape[1], None, None] for kind in ("scale", "shift"))
        return scale * z + shift

    return result


def compare(network, batch, factor=FACTOR, relative=RELATIVE, **options):
    """Losses, gradients, parameters and statistics of three steps against PyTorch in float64, step by step.

    Rounding grows from layer to layer and step to step, so PyTorch's own error in float32 is the measure: ours may be
    `factor` times as large. One thing is taken out: an activation whose argument is zero within rounding passes the
    gradient in one program and stops it in another, which alone can change a gradient by a hundredth; so does a pool
    over equal numbers. The truth is therefore PyTorch in float64, told which elements pass: those of our run for our
    error, those of PyTorch's run in float32 for its error.
    """
    import torch

    from forktask.experiments.peers.torch_executor import TorchTraining

    plan = lower(network, batch=batch, num_images=2 * batch, num_batches=2, **options)
    bound = bind(plan)
    fill_dataset(bound, 1)
    bound.arrays["dataset.labels"][...] %= plan.attributes["num_classes"]
    initialise(bound, 2)
    spec = get_network(network) if isinstance(network, str) else network
    single, truth, truth_of_single = (TorchTraining(bound, "eager", network=spec) for _ in range(3))
    for peer in (truth, truth_of_single):
        follow(peer.module.double(), spec)
        peer.samples = peer.samples.double()
    widths = {layer.name: before[-1] for layer, before, _ in spec.shapes()}
    seen = {}

    def watch(module, inputs, output, layer):
        seen[layer.name] = output.detach().clone()
        if isinstance(layer, MaxPool):
            size = layer.size, layer.stride or layer.size, layer.padding
            seen[layer.name] = torch.nn.functional.max_pool2d(inputs[0], *size, return_indices=True)[1]

    for layer in spec.layers:
        if isinstance(layer, ReLU | ReLU6 | MaxPool):
            single.module.modules_by_name[layer.name].register_forward_hook(partial(watch, layer=layer))
    worst = 0.0

    def check(actual, other, expected, expected_of_other, name, scale=None):
        nonlocal worst
        error, allowed = (
            np.linalg.norm(np.asarray(a, np.float64) - e) for a, e in ((actual, expected), (other, expected_of_other))
        )
        allowed += relative * np.linalg.norm(expected if scale is None else scale) + 1e-9
        worst = max(worst, error / allowed)
        assert error <= factor * allowed, (name, error / allowed, allowed, np.linalg.norm(expected))

    peers = (single, truth, truth_of_single)
    with make_executor("serial", 1) as executor:
        executor.prepare(bound)
        for step in range(STEPS):
            executor.run(1, first_iteration=step)
            single.run(1, step)
            tell(
                truth.module,
                spec,
                activations_of(bound, spec),
                lambda layer: places_of(bound, layer, widths[layer.name]),
            )
            tell(truth_of_single.module, spec, seen.get, lambda layer: seen[layer.name])
            truth.run(1, step)
            truth_of_single.run(1, step)
            check(bound.arrays["losses"][step], *(float(peer.losses[step]) for peer in peers), "losses")
            states = [peer.module.state_dict() for peer in peers]
            for name, buffer in plan.buffers.items():
                if buffer.role == "statistic" or name in plan.attributes["parameters"]:
                    # A mean may be nothing but rounding: what comes out of a norm and a convolution has none.
                    variance = (
                        states[1].get(name.replace("running_mean", "running_var"))
                        if name.endswith("running_mean")
                        else None
                    )
                    check(
                        bound.arrays[name],
                        *(state[name].numpy() for state in states),
                        (step, name),
                        None if variance is None else np.sqrt(variance.numpy()),
                    )
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


@pytest.mark.parametrize("name", LARGE if LONG else LARGE[:1])
def test_networks_for_large_images_equal_pytorch(name):
    """Check three training steps of the forms with the ImageNet stem, and of the network for images of 270 x 360."""
    compare(name, 2)


@pytest.mark.parametrize("name", SMALL)
def test_small_networks_equal_pytorch(name):
    """Check the same, layers of every kind, other optimizers, smoothed labels and clipping. Norms over few pixels
    enlarge rounding, by chance more in one program than in the other."""
    compare(SMALL[name], 6, 2 * FACTOR, label_smoothing=0.1, optimizer="adamw")
    compare(SMALL[name], 6, 2 * FACTOR, clip_norm=0.5)


def test_parameter_names_are_pytorchs():
    """Check names and shapes of parameters and statistics against the modules' own."""
    from forktask.experiments.peers.torch_network import torch_network

    for name in FAMILIES:
        network = get_network(name)
        module = torch_network(network)
        assert {n: tuple(p.shape) for n, p in module.named_parameters()} == network.parameter_shapes()
        statistics = {n: tuple(b.shape) for n, b in module.named_buffers() if not n.endswith("num_batches_tracked")}
        assert statistics == network.statistic_shapes()
