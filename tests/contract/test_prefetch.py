"""Two input slots by unrolling: loading runs ahead without renaming at run time."""

import numpy as np
import pytest
from contract import cnn
from contract.common import bound_plan, run_battery, run_serial

from forktask.cython_src.binding.checks import span_in_tasks
from forktask.cython_src.plan.dependences import record_graph


def test_unrolled_plan_keeps_the_contract():
    """Check accesses and orders of two steps with two slots, and that they take the span of two steps."""
    _, graph = run_battery(
        lambda memory: cnn.cnn_plan(unroll=2, slots=2, memory=memory), cnn.fill, num_orders=60, num_replays=2
    )
    # Both batches load at once; each later step starts with conv1.
    assert span_in_tasks(graph) == 11 + 10
    assert span_in_tasks(graph, 2) == 11 + 3 * 10


@pytest.mark.parametrize("slots", [1, 2])
def test_unrolling_changes_no_bit(slots):
    """Check that two passes of an unrolled plan equal four of the plain one, iteration numbers and logs included."""
    plain = bound_plan(cnn.cnn_plan(), cnn.fill)
    unrolled = bound_plan(cnn.cnn_plan(unroll=2, slots=slots), cnn.fill)
    assert unrolled.iteration_stride == 2
    run_serial(plain, 4)
    run_serial(unrolled, 2)
    for name in (*cnn.SHAPES, "log"):
        np.testing.assert_array_equal(plain.arrays[name], unrolled.arrays[name], err_msg=name)


def test_second_slot_lets_loading_run_ahead():
    """Check that with two slots the load of step 1 waits for nothing in step 0, and with one slot it does."""
    for slots, waits in ((1, True), (2, False)):
        plan = cnn.cnn_plan(unroll=2, slots=slots)
        graph = record_graph(plan.accesses, closed=False)
        loads = [loop for loop in plan.loops if loop.name == "load"]
        first = loads[1].first_task
        assert (graph.num_intra[first : first + loads[1].num_blocks] > 0).all() == waits
