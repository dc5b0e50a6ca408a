"""Forms of chained sums: how deep each one is. Random networks say that their gradients are the same."""

from forktask.cython_src.binding.checks import span_in_tasks
from forktask.cython_src.lowering.lower import lower
from forktask.cython_src.plan.dependences import record_graph


def test_a_tree_is_as_deep_as_its_pairs():
    """Check levels and copies of seven links, and that the longest chain of tasks is that of partial sums and three."""
    plans = {
        form: lower("starpu_cnn", batch=7, granularity="images=1", weight_gradients=form)
        for form in ("partial", "chain", "tree")
    }
    tree = plans["tree"]
    assert tree.deterministic
    assert [loop.num_blocks for loop in tree.loops if loop.name.endswith(".conv1.weight.partials")] == [3, 2, 1]
    assert len([name for name in tree.buffers if name.startswith("conv1.weight.partials")]) == 7
    spans = {form: span_in_tasks(record_graph(plan.accesses, closed=False)) for form, plan in plans.items()}
    assert spans["tree"] == spans["partial"] + 3 < spans["chain"] + 3
