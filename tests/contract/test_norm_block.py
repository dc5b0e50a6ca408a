"""Batch norm, residual and dropout with recomputation on the plan contract."""

import numpy as np
import pytest
from contract import norm_block
from contract.common import assert_gradients, bound_plan, run_battery

from forktask.cython_src.binding.bind import Workers
from forktask.cython_src.binding.checks import span_in_tasks


def test_plan_keeps_the_contract():
    """Check accesses, orders and both memory modes; the span is that of one block a loop, whatever the cut."""
    plan, graph = run_battery(lambda memory: norm_block.norm_plan(memory=memory), norm_block.fill, num_orders=200)
    # load, dense, sum, add, squares, add, norm | sums, add, data, weights, add | update; recomputation runs beside
    assert span_in_tasks(graph) == 13
    assert span_in_tasks(graph, 3) == 13 + 2 * 12  # the next load hides
    assert graph.num_edges <= 8 * plan.num_tasks


def test_dropout_changes_with_the_iteration():
    """Check that the mask is a function of iteration and element, and keeps about the asked share."""
    rows, columns = np.arange(200), np.arange(norm_block.C)
    first, second = (norm_block.keep_mask(k, rows, columns) for k in (0, 1))
    assert (first != second).any()
    np.testing.assert_array_equal(first[50:60], norm_block.keep_mask(0, rows[50:60], columns))
    assert abs(first.mean() - norm_block.KEEP) < 0.05


def test_step_is_true():
    """Check gradients by central differences of an independent loss, and the running statistics by their formula."""
    bound = bound_plan(norm_block.norm_plan(), norm_block.fill, "float64")
    a = bound.arrays
    workers = Workers(1)
    for iteration in range(3):
        weights = {name: a[name].copy() for name in norm_block.SHAPES}
        running_mean = a["running_mean"].copy()
        for loop, record in enumerate(bound.plan.loops):
            for block in range(record.num_blocks):
                assert bound.run_task(loop, block, iteration, workers) == 0
        keep = norm_block.keep_mask(iteration, np.arange(norm_block.ROWS), np.arange(norm_block.C))
        x, t = a["x"].copy(), a["t"].copy()

        def loss(weights=weights, x=x, t=t, keep=keep):
            return norm_block.reference_loss(x, t, keep, **weights)

        tiles = len(a["losses"])
        assert a["log"][iteration] * tiles == pytest.approx(loss(), rel=1e-12)
        gradients = {name: a[f"{name}.grad"] for name in norm_block.SHAPES}
        assert_gradients(gradients, weights, loss, np.random.default_rng(iteration))
        expected = 0.9 * running_mean + 0.1 * (x @ weights["w"].T).mean(axis=0)
        np.testing.assert_allclose(a["running_mean"], expected, rtol=1e-12)
