"""The compiled CIFAR-10 CNN against values that PyTorch computed, and against PyTorch itself."""

import numpy as np

from cython_src.networks import store_pytorch_values as pytorch_values
from forktask.cython_src.binding.bind import bind
from forktask.cython_src.lowering.lower import lower
from forktask.forkjoin.executor import SerialExecutor

BATCH, STEPS = 5, 3
RATE, MOMENTUM, WEIGHT_DECAY = 0.01, 0.9, 5e-4


def rounding_of_a_sum(length):
    """Relative error to expect of a float32 sum of `length` products: roundings add up like a random walk."""
    return np.sqrt(length) * 2.0**-23


# The longest sums: over the pixels of all images (weight gradient of conv1), after the sums of the layers
# before it.
STEP_TOLERANCE = rounding_of_a_sum(BATCH * 32 * 32) + 3 * rounding_of_a_sum(25 * 20) + rounding_of_a_sum(320)


def relative_error(actual, expected):
    """Norm of the difference over the norm of what was expected."""
    return np.linalg.norm(actual - expected) / np.linalg.norm(expected)


def make_runner():
    """The compiled plan with the stored images in their order: bound plan, executor, parameters."""
    images, labels, parameters = pytorch_values.inputs()
    plan = lower(
        "cifar10_cnn",
        batch=BATCH,
        layout="nchw16",
        num_images=labels.size,
        num_batches=STEPS,
        num_iterations_logged=STEPS,
        momentum=pytorch_values.MOMENTUM,
        weight_decay=pytorch_values.WEIGHT_DECAY,
    )
    bound = bind(plan)
    bound.arrays["dataset.images"][:] = images.reshape(-1, *images.shape[2:])
    bound.arrays["dataset.labels"][:] = labels.ravel()
    bound.arrays["batch_order"][:] = np.arange(STEPS * BATCH).reshape(STEPS, BATCH)
    bound.arrays["learning_rates"][:] = pytorch_values.LEARNING_RATE
    for name, value in parameters.items():
        bound.arrays[name][:] = value
    executor = SerialExecutor(1)
    executor.prepare(bound)
    return bound, executor, parameters


def test_three_steps_equal_stored_pytorch_values():
    """Check losses, first gradients and final parameters against what PyTorch computed."""
    stored = np.load(pytorch_values.PATH)
    bound, executor, parameters = make_runner()
    executor.run(1)
    for name in parameters:
        assert relative_error(bound.view(f"{name}.grad"), stored[f"{name}.grad"]) < STEP_TOLERANCE, name
    executor.run(2, first_iteration=1)
    np.testing.assert_allclose(bound.arrays["losses"], stored["losses"], rtol=3 * STEP_TOLERANCE)
    for name, start in parameters.items():
        moved, expected = bound.arrays[name] - start, stored[f"{name}.final"] - start
        assert relative_error(moved, expected) < 3 * STEP_TOLERANCE, name
