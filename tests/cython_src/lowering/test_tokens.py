"""Plans of networks of tokens: spans, cuts, loops, idle reads, refusals. That they compute right is what
`tests/random_networks` says."""

import pytest
from cython_src.tokens_for_tests import CLASSIFIER, MASKED, SMALL, fill

from forktask.cython_src.binding.bind import bind
from forktask.cython_src.binding.checks import find_unused_reads, span_in_tasks
from forktask.cython_src.errors import UsageError
from forktask.cython_src.lowering.lower import initialise, lower
from forktask.cython_src.networks import gpt2
from forktask.cython_src.networks.layers import Embedding, Linear, Network, ReLU6, SoftmaxCrossEntropy, TiedHead, Tokens
from forktask.cython_src.networks.registry import get_network
from forktask.cython_src.plan.dependences import record_graph
from forktask.experiments.subjects.models import make_executor
from forktask.experiments.subjects.subject import fill_dataset

SMALL_SIZES = {"batch": 3, "sequence": 6, "num_images": 5, "num_batches": 2, "num_iterations_logged": 10}


def run(bound, count):
    """Run some steps from the first one on."""
    with make_executor("serial", 1) as executor:
        executor.prepare(bound)
        executor.run(count)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_weight_decay_may_be_for_matrices_alone(optimizer):
    """Check that the option changes vectors and no matrices, and leaves matrices their decay, of images too."""
    for network, options in ((SMALL, SMALL_SIZES), (get_network("lenet5"), {"batch": 3})):
        result = {}
        for decay in ("all", "matrices"):
            plan = lower(network, optimizer=optimizer, weight_decay=0.5, decay=decay, momentum=0.0, **options)
            bound = bind(plan)
            fill_dataset(bound, 0)
            initialise(bound, 0)
            bound.arrays["learning_rates"][...] = 0.01
            for name in plan.attributes["parameters"]:
                bound.arrays[name][...] += 0.5  # biases begin at zero, which does not decay
            run(bound, 1)
            result[decay] = {name: bound.arrays[name].copy() for name in plan.attributes["parameters"]}
        for name, value in result["all"].items():
            assert (value == result["matrices"][name]).all() == (value.ndim > 1), name


# Reads that the data decide: rows of the embedding, what is behind a ReLU, ignored labels and their logits, and
# neighbours of tokens at the ends of samples.
BY_DATA = (
    "wte.weight",
    "embeddings.word_embeddings.weight",
    "targets",
    "token_logsumexp",
    "cls.predictions",
    "embeddings.trigram.gradient",
)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"granularity": "images=1,channels=5,rows=4,heads=1"},
        {"granularity": "images=2,rows=4", "fusion": "none"},
        {"granularity": "images=1", "weight_gradients": "chain"},
    ],
    ids=str,
)
@pytest.mark.parametrize("network", [SMALL, MASKED, CLASSIFIER], ids=lambda network: network.name)
def test_blocks_declare_no_idle_read(network, options):
    """Check that every declared read is used, but for those that the data decide."""
    plan = lower(network, **SMALL_SIZES, **options)
    result = find_unused_reads(plan, "float64", initialise=fill, num_replays=1, blocks_per_loop=2)
    assert [(task, name) for task, name, _ in result if name not in BY_DATA and not name.endswith(".act")] == []


def test_rows_that_attend_to_earlier_ones_do_not_wait_for_later_ones():
    """Check that the first rows of a sequence pass a whole layer beside the load of the later ones, under causality."""
    plan = lower(ONE_BLOCK, batch=1, sequence=8, granularity="images=1,rows=4,heads=1", phase="forward")
    source, target, _ = record_graph(plan.accesses, closed=False).edges()

    def ancestors(node):
        result, stack = set(), [node]
        while stack:
            into = set(source[target == stack.pop()].tolist()) - result
            result |= into
            stack += into
        return {plan.task_name(task) for task in result if task < plan.num_tasks}

    projection = next(loop for loop in plan.loops if loop.name.endswith("attn.c_proj"))
    rows = {task: block.bounds for task, block in enumerate(projection.blocks, projection.first_task)}
    first, last = min(rows, key=rows.get), max(rows, key=rows.get)
    assert "wte[1]" not in ancestors(first) and {"wte[0]", "wte[1]"} <= ancestors(last)


ONE_BLOCK = gpt2.network("one_block", num_layers=1, features=32, heads=2, vocabulary=64, positions=8)
# load, embedding; ln_1, c_attn, attn, c_proj, ln_2, c_fc, c_proj; ln_f, lm_head; the loss and the way back; the
# gradient of the tokens' table and its update.
SPAN = 2 + 7 + 2 + 1 + 2 + 7 + 1 + 1


@pytest.mark.parametrize("granularity", ["images=64", "images=1", "images=1,rows=4,heads=1", "images=64,channels=16"])
def test_the_longest_chain_is_that_of_the_layers(granularity):
    """Check that a step's span is one task of each layer there and back, however loops are cut; where keys are, the
    parts of gradients of queries are added in one task more."""
    plan = lower(ONE_BLOCK, batch=4, sequence=8, granularity=granularity)
    assert span_in_tasks(record_graph(plan.accesses)) == SPAN + ("rows" in granularity)


def test_edges_grow_with_the_blocks_and_no_faster():
    """Check that each further sample brings 26 tasks, one a loop of the step up to the updates, and as many edges as
    the one before it."""
    plans = [lower(ONE_BLOCK, batch=batch, sequence=8, granularity="images=1") for batch in (1, 2, 3, 4)]
    assert [plan.num_tasks for plan in plans] == [45 + 26 * more for more in range(4)]
    assert [record_graph(plan.accesses).num_edges for plan in plans] == [189 + 169 * more for more in range(4)]


def test_auto_has_blocks_for_eight_threads():
    """Check that products of the 124M network, of a batch of 4 and of a single long sample, have 12 blocks or more, of
    at most 256 rows, and that short loops are not cut."""
    for options in ({"batch": 4, "sequence": 64}, {"batch": 1, "sequence": 1024}):
        for loop in lower("gpt2", phase="forward", **options).loops:
            if loop.kernel in ("linear_forward", "attention_forward"):
                assert 12 <= loop.num_blocks <= 64, (loop, loop.num_blocks)
    assert max(loop.num_blocks for loop in lower("gpt2_tiny", batch=1, sequence=16).loops) <= 16


def bad(*layers, answers="next"):
    return Network("bad", (4,), layers, Tokens(6, 8, answers))


@pytest.mark.parametrize(
    ("network", "options", "named"),
    [
        ("gpt2_tiny", {"sequence": 257}, ("sequence", "256")),
        ("gpt2_tiny", {"layout": "nhwc"}, ("Embedding", "'wte'")),
        ("gpt2_tiny", {"label_smoothing": 0.1}, ("label_smoothing", "0.1")),
        ("gpt2_tiny", {"frozen": "wpq"}, ("frozen", "wpq")),
        (bad(Embedding("a", 4), Linear("b", 5), SoftmaxCrossEntropy()), {}, ("vocabulary",)),
        (bad(Embedding("a", 4), TiedHead("b", "a")), {}, ("SoftmaxCrossEntropy",)),
        (bad(Embedding("a", 6), ReLU6("b"), TiedHead("c", "a"), SoftmaxCrossEntropy()), {}, ("ReLU6", "'b'")),
        (bad(Embedding("a", 6), Linear("b", 5), SoftmaxCrossEntropy(), answers="class"), {}, ("classifier",)),
    ],
)
def test_what_has_no_kernels_is_refused_by_name(network, options, named):
    """Check that one sentence names the option, layer or value."""
    with pytest.raises(UsageError) as caught:
        lower(network, batch=2, **{"sequence": 4 if isinstance(network, Network) else 64, **options})
    assert all(word in str(caught.value) for word in named) and "\n" not in str(caught.value)
