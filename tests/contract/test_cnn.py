"""The small CNN on the plan contract."""

import numpy as np
import pytest
from contract import cnn
from contract.common import assert_gradients, bound_plan, run_battery

from forktask.cython_src.binding.bind import Workers
from forktask.cython_src.binding.checks import span_in_tasks
from forktask.cython_src.plan.dependences import record_graph


@pytest.mark.parametrize("weight_gradients", ["partial", "chain"])
def test_plan_keeps_the_contract(weight_gradients):
    """Check accesses, thousands of orders, both memory modes, and that the graph is no wider than the formula."""
    plan, graph = run_battery(
        lambda memory: cnn.cnn_plan(weight_gradients=weight_gradients, memory=memory), cnn.fill, num_orders=150
    )
    groups = 2
    # load conv1 pool1 conv2 fc | fc data, conv2 data, pool1, conv1 weights (a chain of 2 * groups) | tree | update
    longest = 8 + (2 if weight_gradients == "partial" else 2 * groups) + 1
    assert span_in_tasks(graph) == longest
    # Loading the next batch hides behind the weights' update.
    for num_replays in (2, 3):
        assert span_in_tasks(graph, num_replays) == longest + (num_replays - 1) * (longest - 1)
    assert graph.num_edges <= 10 * plan.num_tasks


def test_edges_grow_with_tasks():
    """Check that twice the images give about twice the edges, not four times."""
    small, large = (record_graph(cnn.cnn_plan(batch=b, images=1).accesses) for b in (4, 8))
    assert large.num_edges < 2.2 * small.num_edges
    assert span_in_tasks(small) == span_in_tasks(large)


@pytest.mark.parametrize("weight_gradients", ["partial", "chain"])
def test_step_is_true(weight_gradients):
    """Check gradients by central differences of an independent loss, and three updates by their formula."""
    bound = bound_plan(cnn.cnn_plan(weight_gradients=weight_gradients), cnn.fill, "float64")
    a = bound.arrays
    velocity = {name: np.zeros(shape) for name, shape in cnn.SHAPES.items()}
    workers = Workers(1)
    for iteration in range(3):
        weights = {name: a[name].copy() for name in cnn.SHAPES}
        which = a["batch_order"][iteration % 3]
        for loop, record in enumerate(bound.plan.loops):
            for block in range(record.num_blocks):
                assert bound.run_task(loop, block, iteration, workers) == 0

        def loss(weights=weights, which=which):
            return cnn.reference_loss(a["images"][which], a["labels"][which], *weights.values())

        assert a["log"][iteration] == pytest.approx(loss(), rel=1e-12)
        gradients = {name: a[f"{name}.grad"] for name in cnn.SHAPES}
        assert_gradients(gradients, weights, loss, np.random.default_rng(iteration), count=8)
        for name in cnn.SHAPES:
            velocity[name] = 0.9 * velocity[name] + gradients[name]
            expected = weights[name] - a["learning_rates"][iteration] * velocity[name]
            np.testing.assert_allclose(a[name], expected, rtol=1e-12)
