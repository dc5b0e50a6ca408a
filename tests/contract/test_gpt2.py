"""GPT-2 with 2-D tiles, tied head, clipping and AdamW on the plan contract."""

import numpy as np
import pytest
from contract import gpt2
from contract.common import assert_gradients, bound_plan, run_battery

from forktask.cython_src.binding.bind import Workers
from forktask.cython_src.binding.checks import span_in_tasks
from forktask.cython_src.plan.dependences import record_graph


def test_plan_keeps_the_contract():
    """Check accesses, orders and both memory modes, the span by formula and a bound on the edges."""
    plan, graph = run_battery(lambda memory: gpt2.gpt2_plan(memory), gpt2.fill, num_orders=25, num_replays=2)
    forward = 2 + 8 * gpt2.LAYERS + 4  # load, embed | layers | norm, head, softmax parts, loss
    backward = 3 + 9 * gpt2.LAYERS + 1  # dlogits, head, norm | layers | embedding
    update = 3  # squares, clip, AdamW
    assert span_in_tasks(graph) == forward + backward + update
    assert span_in_tasks(graph, 2) == 2 * (forward + backward + update) - 1  # clipping cuts: only loading hides
    assert graph.num_edges <= 12 * plan.num_tasks


def test_causal_tiles_are_no_barrier():
    """Check that the first rows of a sequence pass a whole layer without waiting for the later ones."""
    plan = gpt2.gpt2_plan()
    graph = record_graph(plan.accesses, closed=False)
    source, target, _ = graph.edges()
    into = [[] for _ in range(graph.num_nodes)]
    for s, t in zip(source.tolist(), target.tolist(), strict=True):
        into[t].append(s)

    def ancestors(node):
        seen, stack = set(), [node]
        while stack:
            for s in into[stack.pop()]:
                if s not in seen:
                    seen.add(s)
                    stack.append(s)
        return {plan.task_name(t) for t in seen if t < graph.num_tasks}

    out = next(loop for loop in plan.loops if loop.name == "h0.out.w forward")
    first = ancestors(out.first_task)  # rows 0 to 2, first half of the columns
    assert "embed[0]" in first and "embed[1]" not in first
    assert "embed[0]" in ancestors(out.first_task + 2)  # rows 3 to 5 attend to the earlier ones


def test_step_is_true():
    """Check gradients by central differences of an independent loss, clipping and AdamW by their formulas."""
    bound = bound_plan(gpt2.gpt2_plan(), gpt2.fill, "float64")
    a = bound.arrays
    workers = Workers(1)
    m, v = ({name: np.zeros(shape) for name, shape in gpt2.SHAPES.items()} for _ in range(2))
    for iteration in range(2):
        weights = {name: a[name].copy() for name in gpt2.SHAPES}
        for loop, record in enumerate(bound.plan.loops):
            for block in range(record.num_blocks):
                assert bound.run_task(loop, block, iteration, workers) == 0
        tokens, targets = a["tokens"].copy(), a["targets"].copy()
        assert (tokens[1:] == targets[:-1]).sum() >= gpt2.N - 2

        def loss(weights=weights, tokens=tokens, targets=targets):
            return gpt2.reference_loss(weights, tokens, targets)

        assert a["log"][iteration] == pytest.approx(loss(), rel=1e-12)
        gradients = {name: a[f"{name}.grad"] for name in gpt2.SHAPES}
        assert_gradients(gradients, weights, loss, np.random.default_rng(iteration), count=4)
        norm = np.sqrt(sum((g**2).sum() for g in gradients.values()))
        assert a["norm"][iteration] == pytest.approx(norm, rel=1e-12)
        assert norm > gpt2.MAX_NORM
        for name, g in gradients.items():
            g = g * gpt2.MAX_NORM / norm
            m[name] = gpt2.BETA1 * m[name] + (1 - gpt2.BETA1) * g
            v[name] = gpt2.BETA2 * v[name] + (1 - gpt2.BETA2) * g**2
            step = m[name] / (1 - gpt2.BETA1 ** (iteration + 1))
            step /= np.sqrt(v[name] / (1 - gpt2.BETA2 ** (iteration + 1))) + gpt2.EPSILON
            decay = gpt2.DECAY if g.ndim == 2 else 0.0
            expected = weights[name] - gpt2.RATE * (step + decay * weights[name])
            np.testing.assert_allclose(a[name], expected, rtol=1e-11, atol=1e-15, err_msg=name)
