"""Random graphs of users under every model: the bits of plain calls in the order of recording."""

import numpy as np
import pytest
from kinds import LONG, forms_of_models
from tasking.random_graphs import check, draw, record

from forktask.cython_src.binding.checks import check_orders

GRAPHS = 400 if LONG else 24
PARTS = 8  # that run side by side
OPTIONS = ("region", "schedule", "barrier", "taskwait", "placement", "unroll")
SPECS = forms_of_models(*OPTIONS, has=lambda m: m.max_threads != 1)


def test_all_kinds_of_accesses_are_drawn():
    """Check that some graphs have each kind, boxes that cut both dimensions, taskwaits and tasks without regions."""
    tasks = [task for seed in range(GRAPHS) for task in draw(seed).tasks]
    kinds = {kind for task in tasks if task for kind in task.regions}
    assert kinds == {"reads", "writes", "updates", "concurrent", "commutative", "reduction"}
    assert None in tasks and any(task and not task.regions for task in tasks)
    widths = {box[1][1] - box[1][0] for task in tasks if task for boxes in task.regions.values() for _, box in boxes}
    assert widths == {1, 2, 3}


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.timeout(1200 if LONG else 120)
def test_every_model_leaves_the_bits_of_the_recorded_order(part):
    """Check graphs of random accesses, each under all models on a random number of threads from 1 to 4."""
    for seed in range(part, GRAPHS, PARTS):
        rng = np.random.default_rng(seed)
        threads = {spec: int(rng.integers(1, 5)) for spec in SPECS}
        check(draw(seed), threads.items())


@pytest.mark.timeout(120)
def test_an_access_that_is_not_declared_is_found():
    """Check that random legal orders of graphs leave other bits once a task does not declare what it writes."""
    result = tried = 0
    for seed in range(GRAPHS):
        drawn = draw(seed)
        writers = [task.number for task in drawn.tasks if task and {"writes", "updates"} & {*task.regions}]
        if len(writers) < 2:
            continue
        tried += 1
        for writer in writers[:3]:
            try:
                check_orders(record(drawn, undeclared=writer)[0].bind(), num_orders=20, tolerance=0.0)
            except AssertionError:
                result += 1
                break
        check_orders(record(drawn)[0].bind(), num_orders=5, tolerance=0.0)
    assert result >= tried // 2 > 0
