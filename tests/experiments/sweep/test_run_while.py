"""Runs that end by a task's decision: exact under every model, whatever it overlaps."""

import numpy as np
import pytest
from kinds import forms_of_models, threads_of

from forktask import ITERATION, UserGraph
from forktask.cython_src.errors import UsageError
from forktask.experiments.subjects.models import parse_model

MODELS = forms_of_models("taskwait", "barrier", "placement", "unroll")
pytestmark = pytest.mark.timeout(120)


def graph_that_stops(decide_in):
    """Three tasks count iterations, one of them decides in the iterations given."""
    graph = UserGraph()
    counts = graph.array("counts", np.zeros(3, np.int64))
    for i in range(3):
        graph.task(lambda c: np.add(c, 1, out=c), updates=counts[i])
    graph.stop_when(lambda c, k: k in decide_in, reads=counts[1], args=[ITERATION])
    return graph, counts.view


@pytest.mark.parametrize("model", MODELS)
def test_a_decision_ends_the_run_after_exactly_the_lookahead(model):
    """Check the number of iterations for decisions early, late, twice and never, also from a later first iteration."""
    for decide_in, first in (({4}, 0), ({0}, 0), ({7, 5}, 3), ({12}, 10), (set(), 0)):
        graph, counts = graph_that_stops(decide_in)
        with graph:
            for lookahead in (2,) if parse_model(model).model.far_behind else (0, 1, 2, 5):
                counts[:] = 0
                later = [k for k in decide_in if k >= first]
                expected = min(min(later) - first + lookahead + 1, 9) if later else 9
                done = graph.run_while(
                    max_iterations=9,
                    lookahead=lookahead,
                    first_iteration=first,
                    model=model,
                    threads=threads_of(model, 2),
                )
                assert done == expected, (decide_in, lookahead)
                np.testing.assert_array_equal(counts, expected)


def test_an_array_of_ones_own_decides():
    """Check that a task can decide through any array, and that what is too short or absent is refused."""
    with UserGraph() as graph:
        stop = graph.array("mine", np.zeros(4))
        graph.task(lambda s, k: s.__setitem__(k % 4, k >= 10), updates=stop, args=[ITERATION])
        assert graph.run_while(stop=stop, max_iterations=100, lookahead=2, threads=2) == 13
        with pytest.raises(UsageError, match="more than lookahead = 4"):
            graph.run_while(stop=stop, max_iterations=100, lookahead=4)
        with pytest.raises(UsageError, match="stop_when"):
            graph.run_while(max_iterations=3)
        with pytest.raises(UsageError, match="lookahead of run_while must be a whole number of at least 0, got -1"):
            graph.run_while(stop=stop, max_iterations=100, lookahead=-1)
