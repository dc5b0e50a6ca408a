"""Walks through memory: what a block touches, and that it does so once on each page."""

import numpy as np

from forktask.cython_src.binding.bind import bind
from forktask.cython_src.binding.checks import check_accesses
from forktask.cython_src.graphs.walks import LOOPS, walks
from forktask.cython_src.kernels.bench.bench import LINE_NUMBERS, PAGE_NUMBERS
from forktask.forkjoin.executor import SerialExecutor


def test_a_walk_comes_to_each_page_once():
    """Check the numbers after some passes, what both forms touch, and that pages do not share a cache's sets."""
    plan = walks()
    for form in ("cpu", "numpy"):
        check_accesses(plan, form)
    bound = bind(plan)
    with SerialExecutor() as executor:
        executor.prepare(bound)
        executor.run(3)
    memory = bound.arrays["memory"]
    assert (memory[:, :, 1] == 3 * len(LOOPS)).all()
    assert np.count_nonzero(memory) == memory[:, :, 1].size
    assert PAGE_NUMBERS * 8 % 4096 == LINE_NUMBERS * 8
