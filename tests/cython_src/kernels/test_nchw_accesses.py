"""Kernels touch exactly what their blocks declare."""

import numpy as np
import pytest

from forktask.cython_src.binding.checks import check_accesses
from forktask.cython_src.lowering.lower import initialise, lower
from forktask.cython_src.networks.parts import convolutional_classifier

SMALL = convolutional_classifier("small", (2, 8, 32), (5, 4), 3)
CASES = [
    (3, {"granularity": "images=1,channels=2,rows=4", "layout": "nchw"}),
    (2, {"fusion": False, "granularity": "rows=2", "weight_gradients": "chain", "layout": "nchw"}),
    (2, {"phase": "forward", "granularity": "images=1"}),
    (19, {"layout": "nchw16", "granularity": "images=16,channels=3,rows=4"}),
    (19, {"layout": "nchw16", "fusion": False, "weight_gradients": "chain", "granularity": "channels=4"}),
    (19, {"layout": "nchw16", "phase": "forward", "fusion": False}),
    (19, {"conv": "winograd", "layout": "nchw16", "granularity": "images=16,channels=3,rows=3"}),
    (19, {"conv": "winograd", "layout": "nchw16", "weight_gradients": "chain"}),
]


def fill(bound):
    initialise(bound, 1)
    rng = np.random.default_rng(2)
    arrays = bound.arrays
    arrays["dataset.images"][...] = rng.standard_normal(arrays["dataset.images"].shape)
    arrays["dataset.labels"][...] = rng.integers(0, 3, arrays["dataset.labels"].shape)
    arrays["batch_order"][...] = rng.integers(0, len(arrays["dataset.labels"]), arrays["batch_order"].shape)
    if "learning_rates" in arrays:
        arrays["learning_rates"][...] = 0.01


@pytest.mark.parametrize("target", ["cpu", "numpy"])
@pytest.mark.parametrize(("batch", "options"), CASES)
def test_kernels_touch_what_they_declare(batch, options, target):
    """Check every kernel, in both forms: undeclared reads do not matter, undeclared writes do not happen."""
    plan = lower(SMALL, batch=batch, num_images=batch + 1, num_iterations_logged=4, **options)
    assert check_accesses(plan, target, initialise=fill, num_replays=2, blocks_per_loop=5) > len(plan.loops)
