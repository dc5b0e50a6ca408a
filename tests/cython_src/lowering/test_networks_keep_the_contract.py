"""Every network's kernels, compiled and in NumPy, touch what their blocks declare and need what they declare."""

import dataclasses

import numpy as np
import pytest
from kinds import LONG

from forktask.cython_src.binding.bind import bind
from forktask.cython_src.binding.checks import AccessError, check_accesses, check_orders, find_unused_reads
from forktask.cython_src.kernels.convolution.algorithms import COMPARED
from forktask.cython_src.lowering.lower import initialise, lower
from forktask.cython_src.plan.model import READ

CASES = {
    "lanes": {"batch": 32, "granularity": "images=16"},
    "lanes, channels and rows": {"batch": 16, "granularity": "images=16,channels=8,rows=8"},
    "one image, channels and rows": {"batch": 1, "granularity": "images=1,channels=8,rows=16"},
    "flat": {"batch": 3, "granularity": "images=2", "layout": "flat"},
    "lanes, not full": {"batch": 20, "layout": "lanes"},
    "chain": {"batch": 32, "granularity": "images=16", "weight_gradients": "chain"},
    "no fusion": {"batch": 32, "granularity": "images=16", "fusion": False},
    "no fusion, flat": {"batch": 2, "granularity": "images=1,channels=4", "fusion": False, "layout": "flat"},
    "direct": {"batch": 32, "granularity": "images=16", "conv": "direct"},
    "winograd, channels and rows": {"batch": 16, "granularity": "images=16,channels=7,rows=4", "conv": "winograd"},
    "im2col, channels": {"batch": 16, "granularity": "images=16,channels=7", "conv": "im2col"},
    "if_blocked": {"batch": 16, "conv": "if_blocked"},
    "pad, chain, no fusion": {"batch": 16, "conv": "pad", "weight_gradients": "chain", "fusion": False},
    "winograd, no fusion": {"batch": 16, "conv": "winograd", "fusion": False},
    "forward": {"batch": 16, "phase": "forward"},
    "evaluate": {"batch": 16, "phase": "evaluate"},
}


def fill(bound):
    initialise(bound, 0)
    rng = np.random.default_rng(0)
    arrays = bound.arrays
    arrays["dataset.images"][...] = rng.normal(size=arrays["dataset.images"].shape)
    labels = arrays.get("dataset.labels")
    if labels is not None:
        labels[...] = rng.integers(10, size=labels.shape)
    if "batch_order" in arrays:
        order = arrays["batch_order"]
        order[...] = rng.integers(len(arrays["dataset.images"]), size=order.shape)
    if "learning_rates" in arrays:
        arrays["learning_rates"][...] = 0.01


@pytest.mark.parametrize("target", ["cpu", "numpy"])
@pytest.mark.parametrize(
    ("network", "case"),
    [
        *(("cifar10_cnn", case) for case in CASES if not any(algorithm in case for algorithm in COMPARED)),
        *(("lenet5", case) for case in ("lanes, not full", "winograd, channels and rows", "chain", "no fusion")),
        *(("lenet5", case) for case in CASES if any(algorithm in case for algorithm in COMPARED)),
    ],
)
def test_kernels_touch_what_they_declare(network, case, target):
    """Check accesses on poisoned memory, and that no declared read is idle, on a sample of each loop's blocks."""
    plan = lower(network, **CASES[case])
    blocks = 2 if LONG or target == "cpu" else 1  # the NumPy forms take most of the time
    options = {"initialise": fill, "num_replays": 1, "blocks_per_loop": blocks}
    check_accesses(plan, target, **options)
    assert find_unused_reads(plan, target, **options) == []


@pytest.mark.parametrize("case", ["lanes", "one image, channels and rows", "chain", "no fusion"])
@pytest.mark.parametrize("memory", ["full", "shared"])
def test_compiled_plans_equal_serial_in_random_orders(case, memory):
    """Check that random legal orders of the compiled kernels, iterations overlapping, leave the serial run's bits."""
    plan = lower("cifar10_cnn", **CASES[case], memory=memory, num_learning_rates=2)
    bound = bind(plan, target="cpu")
    fill(bound)
    check_orders(bound, num_orders=200 if plan.attributes["batch"] == 1 else 20, num_replays=2)


def without_access(plan, number, dropped):
    """The plan with one access of the first block of a loop left out."""
    loop = plan.loops[number]
    first = loop.blocks[0]
    accesses = tuple(a for i, a in enumerate(first.accesses) if i != dropped)
    blocks = (dataclasses.replace(first, accesses=accesses), *loop.blocks[1:])
    loops = list(plan.loops)
    loops[number] = dataclasses.replace(loop, blocks=blocks)
    return dataclasses.replace(plan, loops=tuple(loops))


def test_missing_accesses_are_found():
    """Negative control: leave out one access of a compiled block in each loop; that block must be named."""
    plan = lower("cifar10_cnn", batch=1, granularity="images=1,channels=8,rows=16")
    for number, loop in enumerate(plan.loops):
        accesses = loop.blocks[0].accesses
        buffers = [access.buffer for access in accesses]
        alone = [i for i, buffer in enumerate(buffers) if buffers.count(buffer) == 1]  # no other access may cover it
        dropped = alone[number % len(alone)]
        with pytest.raises(AccessError) as caught:
            check_accesses(without_access(plan, number, dropped), "cpu", initialise=fill, num_replays=1)
        assert caught.value.task_name == f"{loop.name}[0]", (accesses[dropped], caught.value)
        reads = accesses[dropped].kind == READ
        assert caught.value.fault in ({"undeclared read", "failed"} if reads else {"undeclared write"})
