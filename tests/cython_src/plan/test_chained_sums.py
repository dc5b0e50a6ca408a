"""Forms of chained sums: how deep each one is. Random networks say that their gradients are the same."""

from forktask.cython_src.binding.checks import span_in_tasks
from forktask.cython_src.lowering.lower import lower
from forktask.cython_src.plan.builder import PlanBuilder
from forktask.cython_src.plan.dependences import record_graph
from forktask.cython_src.plan.model import Block, update


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


def test_a_chain_is_what_its_loops_say_it_is():
    """Check that loops whose names and attributes are those of links stay as they are unless they name their chain."""
    names = {}
    for chain in ("", "w"):
        builder = PlanBuilder("chained")
        builder.buffer("sums", (4,), role="parameter")
        for link in range(2):
            blocks = [Block((0,), (update("sums"),))]
            builder.loop(f"w.{link}", "any", {"out": "sums"}, blocks, attributes={"accumulate": link}, chain=chain)
        builder.rewrite_chains("tree")
        names[chain] = [loop.name for loop in builder.loops]
    assert names == {"": ["w.0", "w.1"], "w": ["w", "w.sum1.sums"]}
