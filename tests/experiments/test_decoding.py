"""Generating with keys and values that are kept."""

from contextlib import ExitStack

import numpy as np
import pytest
from cython_src.tokens_for_tests import BOTH_WAYS, SMALL

from forktask.cython_src.binding.bind import bind
from forktask.cython_src.errors import UsageError
from forktask.cython_src.lowering.lower import initialise, lower
from forktask.cython_src.networks.registry import get_network
from forktask.experiments.sampling.models import make_executor
from forktask.experiments.training.decoding import NextToken, can_decode, plan_of_one_token
from forktask.experiments.training.generate import generate


def parameters_of(network):
    """Random parameters, far from zero."""
    bound = bind(lower(network, batch=1, sequence=4, phase="forward"))
    initialise(bound, 3)
    rng = np.random.default_rng(3)
    names = bound.plan.attributes["parameters"]
    return {name: bound.arrays[name] + rng.normal(size=bound.arrays[name].shape).astype("f4") * 0.2 for name in names}


@pytest.mark.parametrize(
    ("network", "model", "threads"),
    [
        (SMALL, "serial", 1),
        (SMALL, "forkjoin", 2),
        (SMALL, "taskgraph", 2),
        (SMALL, "taskiter", 3),
        (get_network("gpt2_tiny"), "serial", 1),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_tokens_are_those_without_the_cache(network, model, threads):
    """Check a text within the window and far beyond it, from prompts of one token, some, and as many as the window."""
    parameters, sequence = parameters_of(network), 12
    for prompt in ([5], [*range(7)], [*range(12)], [*range(15)]):
        options = {"sequence": sequence, "temperature": 1.5, "seed": 4, "model": model, "threads": threads}
        found = [[*generate(network, parameters, prompt, 20, **options, cache=cache)] for cache in (True, False)]
        assert found[0] == found[1] and len({*found[0]}) > 3


@pytest.mark.parametrize("target", ["cpu", "numpy"])
def test_a_row_has_the_bits_of_a_whole_pass(target):
    """Check logits of each row, computed one after the other, against one pass over all; rows to come stay as they
    are."""
    plan = lower(SMALL, batch=1, sequence=12, phase="forward")
    whole, parts = bind(plan, target=target), bind(plan, target=target)
    parameters = parameters_of(SMALL)
    for bound in (whole, parts):
        for name, array in parameters.items():
            bound.arrays[name][...] = array
        bound.arrays["dataset.tokens"][...] = np.arange(13) % 7
        bound.arrays["logits"][...] = np.nan
    with make_executor("serial", 1) as executor:
        executor.prepare(whole)
        executor.run(1)
    with ExitStack() as stack:
        next_token = NextToken(SMALL, parts, "serial", 1, stack)
        for row in range(12):
            assert np.isnan(parts.view("logits")[0, row:]).all()
            next_token.run(row)
            if target == "cpu":
                np.testing.assert_array_equal(parts.view("logits")[0, : row + 1], whole.view("logits")[0, : row + 1])
            else:
                np.testing.assert_allclose(parts.view("logits")[0, row], whole.view("logits")[0, row], atol=1e-5)


def test_a_token_costs_one_row():
    """Check that the products of the plan of one token are those of one of 64, whatever stands before it."""
    network = get_network("gpt2_small")
    whole = lower(network, batch=1, sequence=64, phase="forward")
    flops = [
        sum(loop.flops for loop in plan.loops if loop.kernel == "linear_forward")
        for plan in (whole, plan_of_one_token(network, whole))
    ]
    assert flops[0] == pytest.approx(64 * flops[1])


def test_bounds_that_do_not_fit_are_refused():
    """Check the shape and the loop's number, and which networks are decoded."""
    bound = bind(lower(SMALL, batch=1, sequence=4, phase="forward"))
    with pytest.raises(UsageError, match=r"bounds of loop 'wte' must have shape"):
        bound.set_bounds(1, np.zeros((1, 3), np.int32))
    with pytest.raises(UsageError, match="got number 99"):
        bound.set_bounds(99, np.zeros((1, 2), np.int32))
    assert can_decode(SMALL, "taskiter") and not can_decode(BOTH_WAYS, "taskiter")
    assert not can_decode(SMALL, "gpu_taskiter")
