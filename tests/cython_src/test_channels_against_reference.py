"""Networks in the layout "channels" compute what the float64 reference does, which shares nothing but the network."""

import numpy as np
import pytest
from networks_for_tests import SMALL, fill

from forktask.cython_src import reference
from forktask.cython_src.checks import run_serial
from forktask.cython_src.lowering import lower
from forktask.cython_src.program import bind
from forktask.cython_src.storage import Storage

STEPS = 3
CASES = {
    "by cost": {},
    "cut everywhere": {"granularity": "images=1,channels=16,rows=2"},
    "nothing joined": {"fusion": "none"},
    "statistics only": {"fusion": "statistics", "granularity": "images=2"},
    "residual only": {"fusion": "residual"},
    "chain, shared memory": {"weight_gradients": "chain", "granularity": "images=1", "memory": "shared"},
}


def run(network, target, steps=STEPS, batch=3, **options):
    """Bound plan after `steps` steps, and the reference's optimiser and last step on the same data."""
    plan = lower(network, batch, num_images=batch + 2, num_batches=2, **options)
    bound = bind(plan, target=target)
    fill(bound)
    arrays = bound.arrays
    truth = reference.Sgd(
        {name: arrays[name] for name in plan.attributes["parameters"]}, 0.05,
        plan.attributes["momentum"], plan.attributes["weight_decay"],
    )  # fmt: skip
    run_serial(bound, steps)
    losses = []
    for k in range(steps):
        chosen = arrays["batch_order"][k % 2]
        step = truth.step(network, arrays["dataset.images"][chosen], arrays["dataset.labels"][chosen],
                          options.get("label_smoothing", 0.0))  # fmt: skip
        losses.append(step.loss)
        assert arrays["correct"][k] == step.correct
    np.testing.assert_allclose(arrays["losses"][:steps], losses, rtol=1e-9 if target == "float64" else 1e-4)
    return bound, truth, step


def close(actual, expected, tolerance):
    """Within `tolerance` of the largest element."""
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * max(np.abs(expected).max(), 1e-3))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", SMALL)
def test_three_steps_equal_the_reference(name, case):
    """Check losses, right answers, all parameters, gradients, statistics and activations after three steps."""
    network = SMALL[name]
    bound, truth, step = run(network, "float64", **CASES[case])
    for parameter, expected in truth.parameters.items():
        close(bound.arrays[parameter], expected, 1e-9)
        close(bound.view(f"{parameter}.grad"), step.gradients[parameter], 1e-9)
    for statistic, expected in step.statistics.items():
        close(bound.arrays[statistic], expected, 1e-9)
    shown = bound.plan.attributes["aliases"]
    if "memory" not in CASES[case]:
        for layer, expected in step.activations.items():
            if layer in shown and layer != "softmax":
                close(bound.view(layer), expected, 1e-9)
    assert {"input", "linear"} <= set(shown)
