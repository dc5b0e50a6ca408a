"""The compiled CIFAR-10 CNN against the float64 reference and against PyTorch's values."""

import numpy as np
import pytest

from cython_src import reference
from cython_src.networks import store_pytorch_values as pytorch_values
from forktask.cython_src.binding.bind import bind
from forktask.cython_src.lowering.lower import initialise, lower
from forktask.cython_src.networks.registry import get_network
from forktask.experiments.training.data import load_data
from forktask.experiments.training.safetensors import read_safetensors, write_safetensors
from forktask.forkjoin.executor import SerialExecutor

BATCH, STEPS = 5, 20
NETWORK = get_network("cifar10_cnn")
RATE, MOMENTUM, WEIGHT_DECAY = 0.01, 0.9, 5e-4
VARIANTS = {
    "lanes": {"layout": "lanes"},
    "flat": {"layout": "flat"},
    "chain": {"layout": "flat", "weight_gradients": "chain", "granularity": "images=1"},
    "unfused": {"layout": "lanes", "fusion": False},
    "rows": {"layout": "flat", "granularity": "images=1,channels=4,rows=8"},
    "shared": {"layout": "lanes", "memory": "shared"},
}


def rounding_of_a_sum(length):
    """Relative error to expect of a float32 sum of `length` products: roundings add up like a random walk."""
    return np.sqrt(length) * 2.0**-23


# The longest sums: over the pixels of all images (weight gradient of conv1), after the sums of the layers
# before it.
STEP_TOLERANCE = rounding_of_a_sum(BATCH * 32 * 32) + 3 * rounding_of_a_sum(25 * 20) + rounding_of_a_sum(320)


def relative_error(actual, expected):
    """Norm of the difference over the norm of what was expected."""
    return np.linalg.norm(actual - expected) / np.linalg.norm(expected)


def make_runner(images, labels, steps, **options):
    """The compiled plan with the data in the order in which they are given: bound plan and executor."""
    plan = lower(
        "cifar10_cnn",
        batch=BATCH,
        phase="train",
        num_images=len(labels),
        num_batches=steps,
        num_iterations_logged=steps,
        momentum=MOMENTUM,
        weight_decay=WEIGHT_DECAY,
        **options,
    )
    bound = bind(plan)
    bound.arrays["dataset.images"][:] = images
    bound.arrays["dataset.labels"][:] = labels
    bound.arrays["batch_order"][:] = np.arange(steps * BATCH).reshape(steps, BATCH)
    bound.arrays["learning_rates"][:] = RATE
    executor = SerialExecutor(1)
    executor.prepare(bound)
    return bound, executor


@pytest.fixture(scope="module")
def digits():
    data = load_data("digits")
    chosen = data.train[: BATCH * STEPS]
    return data.images[chosen], data.labels[chosen]


@pytest.fixture(scope="module")
def reference_run(digits):
    """Initial parameters, the steps of the reference and its final parameters."""
    images, labels = digits
    bound, _ = make_runner(images, labels, STEPS, layout="flat")
    initialise(bound, 3)
    start = {name: bound.arrays[name].astype(np.float64) for name in NETWORK.parameter_shapes()}
    sgd = reference.Sgd(start, float(np.float32(RATE)), MOMENTUM, WEIGHT_DECAY)
    steps = [sgd.step(NETWORK, images[i : i + BATCH], labels[i : i + BATCH]) for i in range(0, STEPS * BATCH, BATCH)]
    return start, steps, sgd.parameters


@pytest.mark.parametrize("variant", VARIANTS)
def test_first_step_equals_reference(digits, reference_run, variant):
    """Check loss, every parameter gradient and every activation of one step."""
    start, steps, _ = reference_run
    bound, executor = make_runner(*digits, STEPS, **VARIANTS[variant])
    for name, value in start.items():
        bound.arrays[name][:] = value
    executor.run(1)
    assert bound.arrays["losses"][0] == pytest.approx(steps[0].loss, rel=STEP_TOLERANCE)
    assert bound.arrays["correct"][0] == steps[0].correct
    for name in start:
        assert relative_error(bound.view(f"{name}.grad"), steps[0].gradients[name]) < STEP_TOLERANCE, name
    if variant != "shared":  # there, later activations lie on earlier ones
        seen = [name for name in steps[0].activations if name in bound.plan.attributes["aliases"]]
        assert {"pool1", "pool2", "pool3", "fc"} <= set(seen)
        for name in seen:
            assert relative_error(bound.view(name), steps[0].activations[name]) < STEP_TOLERANCE, name


@pytest.mark.parametrize("variant", VARIANTS)
def test_twenty_steps_equal_reference(digits, reference_run, variant):
    """Check losses and final parameters; rounding adds up, measured on how far the parameters moved."""
    start, steps, final = reference_run
    bound, executor = make_runner(*digits, STEPS, **VARIANTS[variant])
    for name, value in start.items():
        bound.arrays[name][:] = value
    executor.run(STEPS)
    np.testing.assert_allclose(
        bound.arrays["losses"], [step.loss for step in steps], rtol=STEPS * STEP_TOLERANCE, atol=STEP_TOLERANCE
    )
    for name in start:
        moved, expected = bound.arrays[name] - start[name], final[name] - start[name]
        assert relative_error(moved, expected) < STEPS * STEP_TOLERANCE, name


def test_three_steps_equal_stored_pytorch_values():
    """Check losses, first gradients and final parameters against what PyTorch computed."""
    stored = np.load(pytorch_values.PATH)
    images, labels, parameters = pytorch_values.inputs()
    shape = (-1, *images.shape[2:])
    bound, executor = make_runner(images.reshape(shape), labels.ravel(), 3, layout="lanes")
    assert (BATCH, RATE, MOMENTUM, WEIGHT_DECAY) == (
        pytorch_values.BATCH,
        pytorch_values.LEARNING_RATE,
        pytorch_values.MOMENTUM,
        pytorch_values.WEIGHT_DECAY,
    )
    for name, value in parameters.items():
        bound.arrays[name][:] = value
    executor.run(1)
    for name in parameters:
        assert relative_error(bound.view(f"{name}.grad"), stored[f"{name}.grad"]) < STEP_TOLERANCE, name
    executor.run(2, first_iteration=1)
    np.testing.assert_allclose(bound.arrays["losses"], stored["losses"], rtol=3 * STEP_TOLERANCE)
    for name, start in parameters.items():
        moved, expected = bound.arrays[name] - start, stored[f"{name}.final"] - start
        assert relative_error(moved, expected) < 3 * STEP_TOLERANCE, name


@pytest.mark.torch
def test_parameters_are_pytorchs(tmp_path, digits):
    """Check that saved parameters load into PyTorch's model and that a training step there is the same."""
    import torch

    images, labels = digits
    bound, executor = make_runner(images, labels, STEPS, layout="lanes")
    initialise(bound, 4)
    write_safetensors(tmp_path / "p", {name: bound.arrays[name] for name in NETWORK.parameter_shapes()})
    model = pytorch_values.pytorch_model(torch.float64)
    model.load_state_dict({name: torch.tensor(a) for name, a in read_safetensors(tmp_path / "p")[0].items()})
    loss = torch.nn.functional.cross_entropy(
        model(torch.tensor(images[:BATCH], dtype=torch.float64)), torch.tensor(labels[:BATCH], dtype=torch.int64)
    )
    loss.backward()
    executor.run(1)
    assert bound.arrays["losses"][0] == pytest.approx(loss.item(), rel=STEP_TOLERANCE)
    for name, parameter in model.named_parameters():
        assert relative_error(bound.view(f"{name}.grad"), parameter.grad.numpy()) < STEP_TOLERANCE, name
