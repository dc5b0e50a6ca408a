"""Places and the order of programs; memory of graphs."""

import time

import numpy as np
import pytest
from tasking.random_plans import cells_plan

from forktask.cython_src.binding.bind import bind
from forktask.cython_src.graphs.task_bench import task_bench
from forktask.cython_src.plan.dependences import record_graph
from forktask.forkjoin.executor import ForkJoinExecutor
from forktask.tasking.executor import TaskIterExecutor
from forktask.tasking.runtimes import program_order

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("hash_kernel")]


@pytest.mark.parametrize(
    ("pattern", "width"), [("stencil_1d", 16), ("spread", 16), ("nearest", 64), ("all_to_all", 32)]
)
@pytest.mark.parametrize("placement", ["stealing", "partitioned"])
def test_a_graph_takes_128_bytes_a_task_and_4_an_edge(placement, pattern, width):
    """Check the recorded graph, and what the runtime makes of it and keeps."""
    plan = task_bench(pattern, width, 4000 // width, check=False)
    with TaskIterExecutor(4, placement=placement) as executor:
        bound = bind(plan)
        graph = executor.record(bound)
        size = sum(array.nbytes for array in vars(graph).values() if isinstance(array, np.ndarray))
        executor.prepare(bound, graph)
        for result in (size, executor._runtime.memory_bytes()):
            assert result <= 128 * plan.num_tasks + 4 * graph.num_edges


def programs(plan, num_threads, **options):
    with TaskIterExecutor(num_threads, **options) as executor:
        executor.prepare(bind(plan))
        return [p.tolist() for p in executor._runtime.programs()]


ROWS = [(2 * row, 2 * row + 2) for row in range(8)]
HALVES = [(2 * row + half, 2 * row + half + 1) for half in range(2) for row in range(8)]


def test_blocks_go_where_their_data_are():
    """Check a loop that numbers its blocks by halves of rows, behind one that numbers them by rows: each worker gets
    both halves of the rows that it has written."""
    found = programs(cells_plan(ROWS, HALVES, cost=[2, 1]), 2)
    assert [sorted(program) for program in found] == [
        [*range(4), *range(8, 12), *range(16, 20)],
        [*range(4, 8), *range(12, 16), *range(20, 24)],
    ]


@pytest.mark.parametrize(
    ("order", "share"), [("plan", [*range(4), *range(8, 16)]), ("place", [*range(4), *range(8, 12), *range(16, 20)])]
)
def test_static_shares_go_where_their_data_are(order, share):
    """Check fork-join on the same loops; the log has the plan's numbers."""
    with ForkJoinExecutor(2, event_capacity=100, region="persistent", order=order) as executor:
        executor.prepare(bind(cells_plan(ROWS, HALVES, cost=[2, 1])))
        executor.run(1)
        events = executor.workers.events()
    assert sorted(events["task"][events["worker"] == 0].tolist()) == share


def test_a_chain_goes_first_where_a_simulated_run_is_shorter():
    """Check a chain as long as all blocks of a loop that stands before it in the plan: newest first begins with the
    loop, so that the chain ends the step."""
    plan = cells_plan([(cell, cell + 1) for cell in range(8)], *[[(8, 9)]] * 4, cost=[1, 2, 2, 2, 2])
    begins = {order: [program[0] for program in programs(plan, 2, priority=order)] for order in ("newest", "auto")}
    assert begins["newest"] == [0, 4] and 8 in begins["auto"]


def test_ordering_programs_takes_time_in_proportion_to_threads():
    """Check a narrow graph, on which most of 512 workers find nothing to do at each step: eight times as many threads
    take about eight times as long, and would take 64 times if each idle worker looked at all others."""
    plan = task_bench("stencil_1d", 4, 4000, kernel="compute", work=10)
    graph, cost = record_graph(plan.accesses), np.full(plan.num_tasks, 1e5)

    def shortest_s(threads):
        times = []
        for _ in range(5):
            start = time.process_time()
            program_order(plan, graph, cost, threads)
            times.append(time.process_time() - start)
        return min(times)

    assert shortest_s(512) < 20 * shortest_s(64)
