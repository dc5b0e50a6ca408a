"""Task Bench workloads: their graphs, and that their tasks notice wrong inputs."""

import numpy as np
import pytest
from kinds import forms_of_models, threads_of

from forktask.cython_src.binding.bind import BlockFailure, Workers, bind
from forktask.cython_src.errors import UsageError
from forktask.cython_src.graphs.task_bench import PATTERNS, predecessors, replica, task_bench
from forktask.cython_src.plan.builder import PlanBuilder
from forktask.cython_src.plan.dependences import record_graph
from forktask.cython_src.plan.model import READ, Block, read, update
from forktask.experiments.subjects.models import make_executor
from forktask.forkjoin.executor import SerialExecutor


def through_the_builder(plan):
    """The same plan with regions instead of cells, from the definitions."""
    width, steps, radix = (plan.attributes[name] for name in ("width", "steps", "radix"))
    pattern = plan.attributes["pattern"]
    builder = PlanBuilder(plan.name)
    builder.buffer("cells", plan.buffers["cells"].shape, "int64", "temporary", carried=True)
    for step, loop in enumerate(plan.loops):
        before = (step - 1) % steps
        blocks = []
        for point in range(width):
            sources = predecessors(pattern, width, radix, step, point)
            ranges = np.split(sources, np.flatnonzero(np.diff(sources) > 1) + 1) if sources else []
            boxes = [(int(r[0]), int(r[-1]) + 1) for r in ranges]
            accesses = [update("cells", (step, step + 1), (point, point + 1))]
            accesses += [read("cells", (before, before + 1), box) for box in boxes]
            bounds = [point, *np.ravel(boxes).astype(int)]
            bounds += [0] * (loop.bounds.shape[1] - len(bounds))
            assert tuple(bounds) == loop.blocks[point].bounds
            blocks.append(Block(tuple(bounds), tuple(accesses)))
        builder.loop(loop.name, loop.kernel, loop.operands, blocks, attributes=loop.attributes)
    return builder.build()


def edges(plan):
    graph = record_graph(plan.accesses)
    return graph.num_joins, sorted(zip(*(part.tolist() for part in graph.edges()), strict=True))


@pytest.mark.parametrize("width, steps", [(1, 2), (7, 5), (8, 12)])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_fast_table_equals_the_builders(pattern, width, steps):
    """Check the access table made with arrays against the one PlanBuilder finds."""
    plan = task_bench(pattern, width, steps, radix=min(width, 4))
    assert edges(plan) == edges(through_the_builder(plan))


def test_predecessors_are_those_of_task_bench():
    """Check each pattern by hand at width 8."""
    expected = {
        "trivial": [],
        "no_comm": [3],
        "stencil_1d": [2, 3, 4],
        "fft": [1, 3, 5],
        "all_to_all": list(range(8)),
        "nearest": [1, 2, 3, 4, 5],
    }
    for pattern, points_read in expected.items():
        assert predecessors(pattern, 8, 5, 1, 3) == points_read
    assert predecessors("spread", 8, 4, 1, 3) == [0, 2, 3, 6]
    for pattern in PATTERNS:
        assert all(len(predecessors(pattern, 8, 4, step, p)) <= 8 for step in range(8) for p in range(8))


@pytest.mark.parametrize(
    "spec", forms_of_models("region", "schedule", "placement", "construct", "scheduler", of_outside=True)
)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_model_satisfies_the_checks(pattern, spec):
    """Check that no task complains, over several calls and whatever the first iteration, and that all ran."""
    plan = task_bench(pattern, 8, 6, kernel="load_imbalance", work=20)
    for target in ("cpu", "numpy"):
        bound = bind(plan, target=target)
        with make_executor(spec, threads_of(spec, 3)) as executor:
            executor.prepare(bound)
            executor.run(2)
            executor.run(2, 40)
        assert (bound.arrays["cells"][..., 0] == 4).all()


@pytest.mark.parametrize("target", ["cpu", "numpy"])
@pytest.mark.parametrize("pattern", [p for p in PATTERNS if p != "trivial"])
def test_a_task_that_runs_too_early_or_twice_notices(pattern, target):
    """Check the negative: each task with inputs fails when one of them has not run, or the iteration is another."""
    plan = task_bench(pattern, 8, 4)
    table = plan.accesses
    reads = [
        READ in table.access_kind[table.task_offsets[t] : table.task_offsets[t + 1]] for t in range(plan.num_tasks)
    ]
    workers = Workers(1)
    checked = 0
    for loop in range(1, 4):
        for block in range(plan.loops[loop].num_blocks):
            if not reads[plan.loops[loop].first_task + block]:
                continue
            bound = bind(plan, target=target)
            assert bound.run_task(loop, block, 0, workers) == 1
            for earlier in range(loop):
                for b in range(plan.loops[earlier].num_blocks):
                    assert bound.run_task(earlier, b, 0, workers) == 0
            assert bound.run_task(loop, block, 1, workers) == 1
            assert bound.run_task(loop, block, 0, workers) == 0
            assert bound.run_task(loop, block, 0, workers) == 1
            checked += 1
    assert checked
    bound = bind(plan, target=target)
    with SerialExecutor() as executor:
        executor.prepare(bound)
        executor.run(1)
        bound.arrays["cells"][1, :, 0] += 1
        with pytest.raises(BlockFailure, match=r"step\d\[\d\] failed in iteration 1 with status 1"):
            executor.run(1, 1)


def test_a_replica_keeps_graph_and_ratios():
    """Check that a replica has the edges of its plan and work in the ratio of the durations."""
    plan = task_bench("fft", 8, 4)
    durations = np.arange(1, plan.num_tasks + 1)
    copy = replica(plan, durations, 330)
    assert edges(copy) == edges(plan)
    work = np.concatenate([loop.bounds[:, 0] for loop in copy.loops])
    np.testing.assert_array_equal(work, durations * 20)
    assert copy.attributes["mean_work"] == 330
    run_once = bind(copy)
    with SerialExecutor() as executor:
        executor.prepare(run_once)
        executor.run(2)
    with pytest.raises(UsageError, match="32 positive numbers"):
        replica(plan, durations[1:], 330)
