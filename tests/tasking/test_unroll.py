"""Unrolled graphs: the same bits for any number of iterations, slots that take anti-dependences away."""

import numpy as np
import pytest
from cython_src.plan.test_dependences import follow_themselves
from hypothesis import given, settings
from hypothesis import strategies as st
from tasking.random_plans import kinds_plan, random_plan, shared_plan
from tasking.test_closure import order_of, repeated, unrolled_order
from tasking.test_executor import assert_same, content, run_serial, serial_content

from forktask.cython_src.binding.bind import BlockFailure, bind
from forktask.cython_src.binding.checks import check_accesses
from forktask.cython_src.plan.builder import PlanBuilder
from forktask.cython_src.plan.dependences import record_graph
from forktask.cython_src.plan.model import Block, read, update, write
from forktask.cython_src.plan.unroll import unroll
from forktask.tasking.executor import TaskIterExecutor

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("hash_kernel")]


def slots_of(plan, seed):
    """Random slots of the buffers that may have some."""
    rng = np.random.default_rng(seed)
    return {
        b.name: int(rng.integers(1, 5))
        for b in plan.buffers.values()
        if not b.persistent and b.name not in plan.arena_of
    }


@settings(max_examples=50)
@given(seed=st.integers(0, 2**32), times=st.integers(1, 5), kind=st.sampled_from(["random", "kinds", "full", "shared"]))
def test_an_unrolled_plan_is_its_plan_repeated(seed, times, kind):
    """Check two passes of the unrolled plan against as many of the plain one, with slots, in serial order."""
    make = {"random": random_plan, "kinds": kinds_plan, "full": lambda s: shared_plan(s, "full"), "shared": shared_plan}
    plan = make[kind](seed)
    unrolled = bind(unroll(plan, times, slots_of(plan, seed)))
    run_serial(unrolled, 2)
    assert_same(content(unrolled), serial_content(plan, [(2 * times,)]))


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32), times=st.integers(2, 3))
def test_the_closed_unrolled_graph_orders_what_the_plain_one_orders(seed, times):
    """Check two passes of the closed graph against the flat graph of as many iterations, without slots."""
    plan = kinds_plan(seed, num_loops=1 + seed % 3, max_blocks=4)
    flat = record_graph(repeated(plan.accesses, 2 * times), closed=False)
    source, target, _ = flat.edges()
    closed = record_graph(unroll(plan, times).accesses)
    alone = np.flatnonzero(follow_themselves(closed))
    source, target = np.append(source, alone), np.append(target, alone + closed.num_tasks)
    expected = order_of(flat.num_nodes, source, target, np.arange(flat.num_tasks))
    np.testing.assert_array_equal(unrolled_order(closed, 2), expected)


def prefetch_plan():
    """load writes a transient input buffer, the chain behind it reads that and updates a state."""
    builder = PlanBuilder("prefetch")
    builder.buffer("source", (4,), "uint64", role="dataset")
    builder.buffer("batch", (4,), "uint64", role="input")
    builder.buffer("state", (4,), "uint64", role="statistic")
    builder.loop(
        "load",
        "test_copy",
        {"out": "batch", "in": "source"},
        [Block((i, i + 1, i, i + 1), (write("batch", (i, i + 1)), read("source", (i, i + 1)))) for i in range(4)],
    )
    builder.loop(
        "use", "test_copy", {"out": "state", "in": "batch"}, [Block((0, 4, 0, 4), (read("batch"), update("state")))]
    )
    return builder.build()


def test_slots_let_loading_run_ahead():
    """Check that a load waits for the use of as many iterations before as there are slots, and that bits stay."""
    for slots in (1, 2, 3):
        plan = unroll(prefetch_plan(), 3, {"batch": slots})
        graph = record_graph(plan.accesses, closed=False)
        loads = [graph.num_intra[loop.first_task : loop.first_task + 4] for loop in plan.loops[::2]]
        assert [(waits > 0).all() for waits in loads] == [k >= slots for k in range(3)]
        check_accesses(plan, "cpu")
    for placement in ("stealing", "partitioned"):
        with TaskIterExecutor(3, unroll=2, slots=2, placement=placement) as executor:
            bound = bind(prefetch_plan())
            executor.prepare(bound)
            executor.run(9)
            assert_same({"state": bound.arrays["state"]}, serial_content(prefetch_plan(), [(9,)]))


def test_failures_and_events_name_tasks_of_the_plan():
    """Check that copies of a task count as the task: in the log and in the failure."""
    plan = random_plan(11, num_loops=5, fail=(7, 4))
    with TaskIterExecutor(2, unroll=4, event_capacity=10_000) as executor:
        executor.prepare(bind(plan))
        executor.run(6)
        events = executor.workers.events()
        assert sorted(zip(events["iteration"].tolist(), events["task"].tolist(), strict=True)) == [
            (k, t) for k in range(6) for t in range(plan.num_tasks)
        ]
        with pytest.raises(BlockFailure, match="failed in iteration 7 with status 7") as failure:
            executor.run(100)
        assert failure.value.task_name == plan.task_name(4)
