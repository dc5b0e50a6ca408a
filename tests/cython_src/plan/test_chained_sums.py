"""Forms of chained sums: the same gradients within rounding, and the same bits in any order but where it is free."""

import numpy as np
import pytest

import forktask as ft
from forktask.cython_src.binding.checks import span_in_tasks
from forktask.cython_src.lowering.lower import initialise, lower
from forktask.cython_src.plan.chained_sums import FORMS
from forktask.cython_src.plan.dependences import record_graph
from forktask.experiments.sampling.models import make_executor
from forktask.experiments.sampling.subject import fill_dataset

NETWORKS = {
    "lanes": ("cifar10_cnn", {"batch": 48, "granularity": "images=16"}),
    "channels": ("starpu_cnn", {"batch": 6, "granularity": "images=1"}),
    "tokens": ("gpt2_tiny", {"batch": 4, "sequence": 64, "granularity": "images=1"}),
}


def weights_after(plan, model, threads, steps=3):
    """Return all parameters after some steps."""
    bound = ft.bind(plan)
    if "dataset.images" in bound.arrays or "dataset.tokens" in bound.arrays:
        fill_dataset(bound, 1)
    initialise(bound, 1)
    with make_executor(model, threads) as executor:
        executor.prepare(bound)
        executor.run(steps)
    return np.concatenate([bound.view(name).ravel() for name in plan.attributes["parameters"]])


@pytest.mark.parametrize("layout", NETWORKS)
def test_all_forms_give_the_gradients_of_the_chain(layout):
    """Check weights after steps of each form against the chain's, and a tree under a task model bit for bit."""
    network, options = NETWORKS[layout]
    plans = {form: lower(network, weight_gradients=form, **options) for form in FORMS}
    expected = weights_after(plans["chain"], "serial", 1)
    serial = weights_after(plans["tree"], "serial", 1)
    assert np.abs(serial - expected).max() <= 5e-5 * np.abs(expected).max()
    assert np.array_equal(weights_after(plans["tree"], "taskiter:placement=stealing", 2), serial)
    found = weights_after(plans["commutative"], "taskiter:placement=stealing", 2)
    assert np.abs(found - expected).max() <= 5e-5 * np.abs(expected).max()
    assert plans["tree"].deterministic and not plans["commutative"].deterministic


def test_a_tree_is_as_deep_as_its_pairs():
    """Check levels and copies of seven links, and that the longest chain of tasks is that of partial sums and three."""
    plans = {
        form: lower("starpu_cnn", batch=7, granularity="images=1", weight_gradients=form)
        for form in ("partial", "chain", "tree")
    }
    tree = plans["tree"]
    assert [loop.num_blocks for loop in tree.loops if loop.name.endswith(".conv1.weight.partials")] == [3, 2, 1]
    assert len([name for name in tree.buffers if name.startswith("conv1.weight.partials")]) == 7
    spans = {form: span_in_tasks(record_graph(plan.accesses, closed=False)) for form, plan in plans.items()}
    assert spans["tree"] == spans["partial"] + 3 < spans["chain"] + 3
